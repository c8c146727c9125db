"""Objectives: an output and a target for each image -> (B,), all of them to be maximised.

B batch, T tokens, D width, K classes. Any callable of the same form serves as well as a name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from robvit.attacks.core import Objective, require_labels
from robvit.errors import IGNORE, InputError
from robvit.registry import Registry

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class LossInfo:
    """What is known about a loss: whether going down it leads to the class that is its target."""

    targeted: bool = True


LOSSES: Registry[Loss, LossInfo] = Registry("loss", LossInfo)


def objective_of(loss: str | Loss, target: torch.Tensor | None, targeted: bool = False) -> Objective:
    """A loss, by name or as a callable, bound to the targets of a batch; its negative if `targeted`."""
    function = LOSSES[loss] if isinstance(loss, str) else loss
    if target is None:
        raise InputError(
            "this attack needs labels or another target an image, got none; label-free is: feature"
        )
    if targeted:
        require_labels(target, "a targeted attack")
        if isinstance(loss, str) and not LOSSES.info(loss).targeted:
            raise InputError(
                f"{loss} does not lead to a class wanted; take cross_entropy or margin, or apgd_t"
            )

    def objective(output: torch.Tensor, rows: torch.Tensor, step: int, /) -> torch.Tensor:
        value = function(output, target[rows])
        if value.shape != (len(output),):
            raise InputError(
                f"a loss must return ({len(output)},), one number an image, got {tuple(value.shape)}"
            )
        return -value if targeted else value

    return objective


@LOSSES.add()
def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of logits (B K) with labels (B,) or probabilities (B K).

    With labels it is computed from the gap to the other classes: the gradient then keeps its direction
    where the right probability rounds to one, at which the usual form stops to see the right class.
    """
    if target.ndim > 1:
        return F.cross_entropy(output, target, reduction="none")
    others = output.scatter(1, target[:, None], -torch.inf).logsumexp(1)
    return F.softplus(others - output.gather(1, target[:, None])[:, 0])


@LOSSES.add()
def margin(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The best wrong logit over the right one (Carlini and Wagner); above zero means misclassified."""
    own = output.gather(1, target[:, None])[:, 0]
    return best_other(output, target) - own


def best_other(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The largest entry of each row (B K) that is not the label's."""
    return output.scatter(1, target[:, None], -torch.inf).amax(1)


def likeliest_wrong(output: torch.Tensor, labels: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` likeliest classes but the label, or as many as there are: (B K), (B,) -> (B count)."""
    return output.scatter(1, labels[:, None], -torch.inf).topk(min(count, output.shape[1] - 1), dim=1).indices


@LOSSES.add(targeted=False)  # constant where the class wanted is the last of three
def dlr(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Difference of logits ratio (2003.01690): the margin over the gap from the first to the third logit.

    With two classes every ratio that ignores shift and scale is constant, so it is the plain margin.
    """
    if output.shape[1] < 3:
        return margin(output, target)
    top = output.topk(3, dim=1).values
    return margin(output, target) / (top[:, 0] - top[:, 2]).clamp_min(1e-12)


def dlr_targeted(output: torch.Tensor, target: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Targeted difference of logits ratio (2003.01690): the class `wanted` (B,) over the label's.

    The paper's scale needs four classes. With three it is the length of the centred logits, since
    their range would make the loss constant wherever the wanted class is the last; with two, none.
    """
    gap = (output.gather(1, wanted[:, None]) - output.gather(1, target[:, None]))[:, 0]
    classes = output.shape[1]
    if classes < 3:
        return gap
    if classes == 3:
        spread = (output - output.mean(1, keepdim=True)).square().sum(1).sqrt()
        return gap / spread.clamp_min(1e-12)
    top = output.topk(4, dim=1).values
    return gap / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2).clamp_min(1e-12)


def gama(output: torch.Tensor, target: torch.Tensor, reference: torch.Tensor, weight: float) -> torch.Tensor:
    """Guided margin (2011.14969): the margin of probabilities, plus `weight` times the squared distance
    of the probabilities from the `reference` (B K)."""
    probabilities = output.softmax(1)
    return margin(probabilities, target) + weight * (probabilities - reference).square().sum(1)


@LOSSES.add()
def kl(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence of the logits' probabilities from those in `target` (B K), as in TRADES."""
    return F.kl_div(output.log_softmax(1), target, reduction="none").sum(1)


@LOSSES.add()
def cosine(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Minus the cosine over the feature axis, averaged over tokens: (B T D) or (B D)."""
    return -F.cosine_similarity(output, target, dim=-1).view(len(output), -1).mean(1)


@LOSSES.add()
def embedding_l2(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The squared distance of embeddings, averaged over tokens if there are any: (B T D) or (B D)."""
    return (output - target).square().sum(-1).view(len(output), -1).mean(1)


@LOSSES.add()
def pixel_cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross-entropy over labelled pixels: (B K H W), labels (B H W); negative ones and 255 are ignored."""
    return segpgd(output, target, 0.5) * 2


def segpgd(output: torch.Tensor, target: torch.Tensor, wrong: float) -> torch.Tensor:
    """Per-pixel cross-entropy where wrong pixels weigh `wrong`, right ones 1 - `wrong` (2207.12391)."""
    ignored = (target < 0) | ((target == IGNORE) & (output.shape[1] <= IGNORE))
    labels = target.masked_fill(ignored, 0)
    loss = F.cross_entropy(output, labels, reduction="none")
    weight = torch.where(output.argmax(1) == labels, 1 - wrong, wrong) * ~ignored
    return (loss * weight).flatten(1).sum(1) / (~ignored).flatten(1).sum(1).clamp_min(1)
