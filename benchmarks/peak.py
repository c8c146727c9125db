"""Which share of the processor's matrix products does an attack step reach?

python benchmarks/peak.py

The peak is what a large matrix product reaches, measured in the same precision on as many threads before
and after each step; a step is one forward pass and one backward pass to the pixels, as attacks take it.
Its operations are counted on plain attention. A second table has the step once more with the patch
projection's gradient as torch's convolution computes it, which attacks replace by one matrix product.
DINOv2-small has random weights: they do not matter here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from recording import add_out, bf16_note, finish, quickest
from torch.utils.flop_counter import FlopCounterMode

import robvit
from robvit.attacks.compute import probe
from robvit.attacks.core import frozen, gradient
from robvit.attacks.precision import DTYPES, PRECISIONS, Autocast
from robvit.progress import progress
from robvit.record import Table

SIDE = 1536  # of the matrices whose product is the peak
LONG = 1e9  # passes that are worth a probe
AIMS = {"fp32": 0.85, "bf16": 0.6}  # shares of the peak that a step is to reach
COLUMNS = ["model", "images", "precision", "GFLOP an image", "ms an image", "CPU ms an image", "GFLOP/s"]
COLUMNS += ["peak", "share of the peak", "aim"]
PROJECTED = ["model", "images", "CPU ms an image", "by the convolution's own", "own / ours"]
TURNS = 3  # of ours and the convolution's, so that both meet the same machine


def peak(precision: str, runs: int) -> float:
    """Operations a second of a large matrix product."""
    dtype = DTYPES[precision.partition("/")[0]]
    a, b = (torch.randn(SIDE, SIDE).to(dtype) for _ in range(2))
    return 2 * SIDE**3 / quickest(lambda: a @ b, runs).seconds


def step(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    gradient(model, x, lambda output: output.flatten(1).sum(1))


def operations(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> int:
    """The floating-point operations of a step, as torch counts them."""
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        model(x.clone().requires_grad_()).sum().backward()
    return int(counter.get_total_flops())


def row(
    name: str, model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, runs: int, how: str
) -> list[object]:
    """One line: a step of a model in a precision beside the peak of the moment."""
    with torch.no_grad(), frozen(model):
        work = operations(Autocast(model, "fp32/plain"), x)
        searched = model if how == "fp32" else Autocast(model, how)
        before = peak(how, runs)
        spent = quickest(lambda: step(searched, x), runs)
        highest = max(before, peak(how, runs))
    each = [1e3 * seconds / len(x) for seconds in (spent.seconds, spent.cpu)]
    rate, aim = work / spent.seconds, AIMS.get(how.partition("/")[0])
    return [name, len(x), how, work / len(x) / 1e9, *each, rate / 1e9, highest / 1e9, rate / highest, aim]


def projected(
    name: str, model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, runs: int
) -> list[object]:
    """One line: a step in fp32 as attacks take it, and with the convolution's own gradient."""
    ours, own = list[float](), list[float]()
    with torch.no_grad():
        for _ in range(TURNS):
            own.append(quickest(lambda: step(model, x), runs).cpu)
            with frozen(model):
                ours.append(quickest(lambda: step(model, x), runs).cpu)
    return [name, len(x), *(1e3 * min(found) / len(x) for found in (ours, own)), min(own) / min(ours)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, default=16, help="images in a step")
    parser.add_argument("--runs", type=int, default=5, help="of each, of which the quickest counts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--precision", nargs="+", choices=PRECISIONS, help="fp32 and what the probe chooses, if left out"
    )
    add_out(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    mini = robvit.load("robvit-mini").eval().requires_grad_(False)
    small = robvit.load("vit_small_patch14_dinov2", pretrained=False, img_size=112)
    small.eval().requires_grad_(False)
    models = [("robvit-mini", mini, 32), ("DINOv2-small, 112 px", small.features, 112)]
    rows, gradients = list[list[object]](), list[list[object]]()
    with progress("peak", total=len(models)) as advance:
        for name, model, size in models:
            x = torch.rand(options.batch, 3, size, size)
            chosen = options.precision or dict.fromkeys(["fp32", probe(model, x, "auto", LONG).precision])
            rows += [row(name, model, x, options.runs, how) for how in chosen]
            gradients.append(projected(name, model, x, options.runs))
            advance(1, note=name)
    note = f"Threads: {options.threads}; the quickest of {options.runs} runs."
    tables = [
        Table("Share of the matrix peak", COLUMNS, rows, note),
        Table("The patch projection's gradient", PROJECTED, gradients, f"{note} robvit-mini has none."),
    ]
    names = ", ".join(name for name, *_ in models)
    data = {"spec": "random pixels", "count": options.batch}
    finish(options.out, tables, model={"name": names}, data=data, notes=[bf16_note()])


if __name__ == "__main__":
    main()
