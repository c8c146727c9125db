"""What makes an attack's result doubtful, seen on its first images and told as warnings."""

from __future__ import annotations

import warnings

import torch

from robvit.attacks import losses
from robvit.attacks.core import Model, gradient

LOOKED_AT = 16  # images: enough to notice, and cheap


class AttackWarning(UserWarning):
    """Something that makes an attack's result doubtful; the class's name stands in the outcome."""


class SoftmaxOutput(AttackWarning):
    """The model returns probabilities: its gradients vanish where it is sure of itself."""


class RandomisedOutput(AttackWarning):
    """The model answers differently when asked again, and one answer decides: use eot and `samples`."""


class ZeroGradient(AttackWarning):
    """The gradient of the margin is zero everywhere for some images."""


class AuditedSample(AttackWarning):
    """FAB and Square tried a sample of the survivors only; the message bounds what they would break."""


class PrecisionDisagreement(AttackWarning):
    """Low precision claimed successes that full precision did not confirm; those were attacked again."""


class PrecisionUnavailable(AttackWarning):
    """The device cannot compute in a low precision, so fp32 was used in its place."""


class PrecisionUnsound(AttackWarning):
    """The model returns NaN, or other classes for clean images, in low precision; fp32 was used."""


class PrecisionOfAudit(AttackWarning):
    """An audit is of what full precision leaves, so fp32 was used in place of a low precision."""


def doubts(
    model: Model, x: torch.Tensor, y: torch.Tensor | None, clean: torch.Tensor, gradients: bool, steady: bool
) -> set[str]:
    """Warn of what makes results doubtful, judged on the first of x (B 3 H W); the names of the warnings.

    `steady` says that the logits `clean` (B K) are the answer of the same model to the same images.
    """
    if y is None or y.ndim != 1 or y.is_floating_point():
        return set()
    found: list[tuple[type[AttackWarning], str]] = []
    few = min(len(x), LOOKED_AT)
    if not gradients:
        again = model(x[:few])
    else:
        again, _, grad = gradient(model, x[:few], lambda output: losses.margin(output, y[:few]))
        dead = int((grad.flatten(1).abs().amax(1) == 0).sum())
        if dead:
            text = f"the gradient is zero for {dead} of {few} images; use square or bpda as well"
            found.append((ZeroGradient, text))
    if bool((again >= 0).all() and ((again.sum(1) - 1).abs() < 1e-3).all()):
        found.append((SoftmaxOutput, "the model's outputs look like probabilities; pass logits"))
    if steady and not torch.allclose(again, clean[:few], rtol=1e-2, atol=1e-3 * float(clean.abs().max())):
        found.append(
            (RandomisedOutput, "two answers to the same images differ; attack eot(model), set samples")
        )
    for category, text in found:
        warnings.warn(text, category, stacklevel=3)
    return {category.__name__ for category, _ in found}
