"""Figure 2 of the attention-scaling paper: do scores before the softmax grow until it underflows?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from robvit.attacks.precision import DTYPES
from robvit.attacks.scales import find_scales
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.measuring.saturation import (
    GradientQuality,
    LayerSaturation,
    delta_curve,
    gradient_quality,
    saturation,
    saturation_table,
)
from robvit.progress import progress
from robvit.record import Record, Table
from robvit.studies.aas.common import PAPER, PUBLISHED
from robvit.studies.common import StudyContext, study


@study("aas-fig2", paper=PAPER, title="Fig. 2: differences before the softmax, with and without scaling")
def differences(
    context: StudyContext, *, batch: int = 8, starts: int = 1, objective: str = "unit", space: str = "linear"
) -> Record:
    """Delta in every block, what underflows in each precision, and what that does to gradients."""
    model = context.load("vit-base")
    images = context.dataset("sample", None, model.input_size[0], context.count(32))
    x, y = next(_labelled(model, images, batch))
    scales = find_scales(
        model, [(x, y)], starts=starts, objective=objective, space=space, seed=context.seed
    ).values
    before, after = (_layers(model, images, batch, s) for s in (None, scales))
    quality = [gradient_quality(model, x, y, scales=s, seed=context.seed) for s in (None, scales)]
    record = context.record(model, images)
    record.curves = delta_curve("Fig. 2: Delta", before, after)
    record.tables = [
        _beside_paper(before, after, scales),
        saturation_table("Unscaled, block by block", before),
        saturation_table("Scaled, block by block", after),
        _gradients(quality),
    ]
    record.metrics = {"largest Delta": max(float(layer.delta.max()) for layer in before)}
    record.notes = [answer(before, quality[0])]
    return record


def _labelled(model: Model, images: ImageDataset, batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches with the model's own answers: margins then need no labels, and any images will do."""
    for x, _ in images.batches(batch):
        with torch.no_grad():
            yield x, model(x).argmax(1)


def _layers(
    model: Model, images: ImageDataset, batch: int, scales: tuple[float, ...] | None
) -> list[LayerSaturation]:
    name = "scores" if scales is None else "scores, scaled"

    def watched() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        with progress(name, total=len(images)) as advance:
            for x, y in _labelled(model, images, batch):
                yield x, y
                advance(len(x))

    return saturation(model, watched(), scales=scales)


def _beside_paper(
    before: list[LayerSaturation], after: list[LayerSaturation], scales: tuple[float, ...]
) -> Table:
    columns = [
        "block",
        "scale",
        "99 % of rows below",
        "largest",
        "paper's axis ends",
        "largest, scaled",
        "paper's axis ends, scaled",
    ]
    rows: list[list[object]] = []
    for place, (layer, then) in enumerate(zip(before, after, strict=True)):
        ends = PUBLISHED["fig2"].row(str(place + 1)) if len(before) == 12 else (None, None)
        rows.append(
            [
                str(place + 1),
                f"{scales[place]:.2g}",
                layer.quantiles()[2],
                float(layer.delta.max()),
                ends[0],
                float(then.delta.max()),
                ends[1],
            ]
        )
    note = "The paper shows histograms of a normally trained ViT-B/16 on ImageNet-100 for blocks 1, 6 and 12."
    return Table("Fig. 2: Delta, the largest minus the second largest score", columns, rows, note)


def _gradients(quality: list[GradientQuality]) -> Table:
    rows: list[list[object]] = []
    for name, one in zip(("unscaled", "scaled"), quality, strict=True):
        errors = [f"{v:.2g}" for v in (one.rounding, one.wrong_signs, one.noise)]
        rows.append([name, *errors, *(100 * one.zero[p] for p in DTYPES)])
    columns = ["model", "1 - cosine with float64", "wrong signs", "1 - cosine 1/255 away"]
    columns += [f"pixels without gradient, {p} %" for p in DTYPES]
    return Table("The margin's gradient for the pixels", columns, rows)


def answer(layers: list[LayerSaturation], quality: GradientQuality) -> str:
    """Whether the paper's mechanism is there, in two sentences."""
    last, peak = layers[-1], max(float(layer.delta.max()) for layer in layers)
    hot = {p: 100 * max(layer.one_hot[p] for layer in layers) for p in DTYPES}
    shares = ", ".join(f"{p} {share:.2g} %" for p, share in hot.items())
    return (
        f"Delta is at most {peak:.3g} anywhere and {float(last.delta.max()):.3g} in the last block; one-hot "
        f"rows, in the worst block: {shares}. The float32 gradient differs from float64's by "
        f"1 - cosine = {quality.rounding:.2g}, with {100 * quality.wrong_signs:.2g} % of signs wrong."
    )
