"""Does attention saturate, and does it cost gradients? The mechanism that attention scaling rests on.

For each attention layer: Delta, the largest minus the second largest score before the softmax; which
rows of the softmax are one-hot in a precision, so that they pass no gradient on; and which gradients of
the scores vanish in it. For the whole model: how far rounding takes its gradient from that in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from robvit.attacks.core import frozen, gradient
from robvit.attacks.losses import margin
from robvit.attacks.precision import DTYPES, fused_layers, plain_attention
from robvit.attention import scaled, watch
from robvit.record import Curve, Table
from robvit.threat import Threat

QUANTILES = (0.5, 0.9, 0.99, 1.0)
BINS = 40

Scales = torch.Tensor | Sequence[float] | None


@dataclass
class LayerSaturation:
    """One attention layer over all images: Delta of every row (rows,), and shares by precision.

    `one_hot`: rows whose softmax is exactly one-hot. `zero_weights`: attention weights that are zero.
    `dead_rows`: rows none of whose score gradients is left. `zero_gradients`: score gradients that are zero.
    """

    delta: torch.Tensor
    one_hot: dict[str, float]
    zero_weights: dict[str, float]
    dead_rows: dict[str, float]
    zero_gradients: dict[str, float]

    def quantiles(self) -> list[float]:
        """Delta at the QUANTILES."""
        return self.delta.double().quantile(torch.tensor(QUANTILES, dtype=torch.float64)).tolist()


def score_gaps(scores: torch.Tensor) -> torch.Tensor:
    """Delta of every row of scores (... T), the largest minus the second largest: (rows,)."""
    top = scores.topk(2, dim=-1).values
    return (top[..., 0] - top[..., 1]).flatten().cpu()


@dataclass
class _Tally:
    """Sums of shares over batches, weighted by their rows."""

    delta: list[torch.Tensor] = field(default_factory=list)
    shares: dict[tuple[str, str], float] = field(default_factory=dict)
    rows: int = 0

    def add(self, scores: torch.Tensor, grad: torch.Tensor) -> None:
        self.delta.append(score_gaps(scores))
        rows = self.delta[-1].numel()
        self.rows += rows
        for name, dtype in DTYPES.items():
            # As fused kernels do: low-precision scores, the softmax in float32, its result rounded.
            weights = scores.to(dtype).float().softmax(-1).to(dtype)
            rounded = grad.to(dtype)
            shares = {
                "one_hot": ((weights > 0).sum(-1) == 1),
                "zero_weights": weights == 0,
                "dead_rows": (rounded == 0).all(-1),
                "zero_gradients": rounded == 0,
            }
            for kind, hits in shares.items():
                key = (kind, name)
                self.shares[key] = self.shares.get(key, 0.0) + rows * float(hits.float().mean())

    def layer(self) -> LayerSaturation:
        kinds = ("one_hot", "zero_weights", "dead_rows", "zero_gradients")
        shares = {k: {n: self.shares[k, n] / self.rows for n in DTYPES} for k in kinds}
        return LayerSaturation(torch.cat(self.delta), **shares)


def saturation(
    model: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]], *, scales: Scales = None
) -> list[LayerSaturation]:
    """What every attention layer does to these images and labels; with `scales`, in the scaled model.

    The gradients are those of the summed margins for the scores. Where masks or windows shut entries out,
    those count as zero weights.
    """
    tallies: list[_Tally] = []
    with plain_attention(fused_layers(model)), frozen(model):  # a fused kernel holds no scores
        for x, y in batches:
            with _scaled(model, scales), watch(model, scores=True) as recording, torch.enable_grad():
                value = margin(model(x.detach().clone().requires_grad_()), y).sum()
            grads = torch.autograd.grad(value, recording.scores)
            tallies = tallies or [_Tally() for _ in recording.scores]
            for tally, scores, grad in zip(tallies, recording.scores, grads, strict=True):
                tally.add(scores.detach(), grad)
    return [tally.layer() for tally in tallies]


def _scaled(model: nn.Module, scales: Scales) -> AbstractContextManager[None]:
    return nullcontext() if scales is None else scaled(model, scales)


@dataclass(frozen=True)
class GradientQuality:
    """The gradient of the margin for the pixels, means over images.

    `rounding`: 1 minus its cosine with the gradient of the same model in float64. `wrong_signs`: the share
    of pixels whose sign differs there. `noise`: 1 minus the cosine with the gradient at a random point
    near by. `zero`: the share of pixels with no gradient, by precision.
    """

    rounding: float
    wrong_signs: float
    noise: float
    zero: dict[str, float]


def gradient_quality(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    scales: Scales = None,
    near: float = 1 / 255,
    seed: int = 0,
) -> GradientQuality:
    """How far rounding and roughness spoil the gradient. x (B 3 H W) in [0,1], y (B,)."""
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)).to(x)
    point = Threat("linf", near).random(x, noise)
    with frozen(model), _scaled(model, scales):
        own, exact, nearby = (
            gradient(network, at, lambda output: margin(output, y))[2].flatten(1).double()
            for network, at in ((model, x), (_in_double(model), x.double()), (model, point))
        )
    cosine = [F.cosine_similarity(own, other).mean() for other in (exact, nearby)]
    return GradientQuality(
        rounding=float(1 - cosine[0]),
        wrong_signs=float((own.sign() != exact.sign()).double().mean()),
        noise=float(1 - cosine[1]),
        zero={name: float((own.to(dtype) == 0).double().mean()) for name, dtype in DTYPES.items()},
    )


def _in_double(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """The same model, computed in float64; its own weights stay as they are."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    exact = {name: v.double() if v.is_floating_point() else v for name, v in state.items()}
    return lambda x: functional_call(model, exact, x)


def delta_curve(
    title: str, before: list[LayerSaturation], after: list[LayerSaturation] | None = None
) -> list[Curve]:
    """Histograms of Delta, one a layer: a share of rows for each bin's middle."""
    curves = []
    for place, layer in enumerate(before):
        lines = {"unscaled": histogram(layer.delta)}
        if after is not None:
            lines["scaled"] = histogram(after[place].delta)
        curves.append(
            Curve(
                f"{title}, block {place + 1}",
                "Delta before the softmax",
                "share of rows",
                lines,
                percent=True,
            )
        )
    return curves


def histogram(delta: torch.Tensor, top: float | None = None) -> list[list[float]]:
    """Points [middle of a bin, share of rows] from zero to `top`, or to the largest; the rest is left out."""
    top = max(float(delta.max()) if top is None else top, 1e-6)
    counts = torch.histc(delta.float(), BINS, 0.0, top) / delta.numel()
    width = top / BINS
    return [[(i + 0.5) * width, share] for i, share in enumerate(counts.tolist())]


def saturation_table(title: str, layers: list[LayerSaturation], blocks: Sequence[int] | None = None) -> Table:
    """One row a block: Delta's quantiles, and what is one-hot or without gradient in each precision, in %."""
    columns = ["block", "median", "90 %", "99 %", "largest"]
    columns += [f"one-hot rows, {n} %" for n in DTYPES] + [f"dead gradient rows, {n} %" for n in DTYPES]
    rows: list[list[object]] = []
    for place in blocks if blocks is not None else range(len(layers)):
        layer = layers[place]
        shares = [100 * part[n] for part in (layer.one_hot, layer.dead_rows) for n in DTYPES]
        rows.append([str(place + 1), *layer.quantiles(), *shares])
    limits = ", ".join(f"{n} {smallest_exponent(n):.1f}" for n in DTYPES)
    note = (
        f"A weight rounds to zero where its score is below the largest by: {limits}. After the last block "
        "often the class token alone is read; then the rows of all others have no gradient anyway."
    )
    return Table(title, columns, rows, note)


def smallest_exponent(precision: str) -> float:
    """How far below the largest score a weight rounds to zero in a precision, subnormal numbers included."""
    info = torch.finfo(DTYPES[precision])
    return -math.log(info.smallest_normal * info.eps / 2)
