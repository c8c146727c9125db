"""Which share of the processor's matrix products does an attack step reach? Prints a markdown table.

python benchmarks/peak.py

The peak is what a large matrix product reaches, measured in the same precision on as many threads before
and after each step; a step is one forward pass and one backward pass to the pixels, as attacks take it.
Its operations are counted on plain attention. DINOv2-small has random weights: they do not matter here.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

import robvit
from robvit.attacks.core import frozen, gradient
from robvit.attacks.precision import PRECISIONS, Autocast

SIDE = 1536  # of the matrices whose product is the peak
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def quickest(call: Callable[[], object], runs: int) -> float:
    """The seconds of the quickest run, after one that warms up."""
    found = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return min(found[1:])


def peak(precision: str, runs: int) -> float:
    """Operations a second of a large matrix product."""
    dtype = DTYPES[precision.partition("/")[0]]
    a, b = (torch.randn(SIDE, SIDE).to(dtype) for _ in range(2))
    return 2 * SIDE**3 / quickest(lambda: a @ b, runs)


def step(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    gradient(model, x, lambda output: output.flatten(1).sum(1))


def operations(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> int:
    """The floating-point operations of a step, as torch counts them."""
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        model(x.clone().requires_grad_()).sum().backward()
    return int(counter.get_total_flops())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, default=16, help="images in a step")
    parser.add_argument("--runs", type=int, default=5, help="of each, of which the quickest counts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="fp32", choices=PRECISIONS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    mini = robvit.load("robvit-mini").eval()
    small = robvit.load("vit_small_patch14_dinov2", pretrained=False, img_size=112).eval()
    print(f"`{' '.join(['python', *sys.argv])}`\n")
    print(
        "| model | images | precision | GFLOP an image | ms an image | GFLOP/s | peak | share of the peak |"
    )
    print("|---" * 8 + "|")
    for name, net, size in (("robvit-mini", mini, 32), ("DINOv2-small, 112 px", small.features, 112)):
        x = torch.rand(options.batch, 3, size, size)
        with torch.no_grad(), frozen(net):
            work = operations(Autocast(net, "fp32/plain"), x)
            model = net if options.precision == "fp32" else Autocast(net, options.precision)
            before = peak(options.precision, options.runs)
            seconds = quickest(lambda model=model, x=x: step(model, x), options.runs)
            highest = max(before, peak(options.precision, options.runs))
        print(
            f"| {name} | {len(x)} | {options.precision} | {work / len(x) / 1e9:.2f} "
            f"| {1e3 * seconds / len(x):.1f} | {work / seconds / 1e9:.1f} | {highest / 1e9:.1f} "
            f"| {work / seconds / highest:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
