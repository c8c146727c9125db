"""What AAS-AT costs: one move of the scales beside the training between two moves, in CPU seconds.

    python benchmarks/aas_at.py              # robvit-mini; --images and --every describe the training meant

One move of the scales and single training steps are measured in turns, so that a busy machine disturbs both
alike; the length of a whole training follows from the number of its steps.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import robvit
from robvit.attacks import find_scales
from robvit.data import open_data
from robvit.training.inner_attack import Inner, InnerAttack


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="robvit-mini")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--inner-steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=50_000, help="of the training meant")
    parser.add_argument("--every", type=int, default=10, help="epochs from one move to the next")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = robvit.load(options.model).train()
    x, y = open_data("sample", split="train", limit=options.batch, size=model.input_size[0]).tensors()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step() -> None:
        adv = InnerAttack(Inner(steps=options.inner_steps), 8 / 255, 2 / 255, seed=0)(model, x, y)
        optimizer.zero_grad()
        F.cross_entropy(model(adv), y).backward()
        optimizer.step()

    step()  # the first pass of a process is slower
    both = [(seconds(step), seconds(lambda: find_scales(model, [(x, y)]))) for _ in range(options.rounds)]
    one, move = (statistics.median(side) for side in zip(*both, strict=True))
    steps = math.ceil(options.images / options.batch) * (options.every - 1)
    print(f"{options.model}, batches of {options.batch}, {options.inner_steps} inner steps")
    print(f"one training step {one:.2f} s, one move of the scales {move:.2f} s")
    print(
        f"with {options.images:,} images and a move every {options.every} epochs, {steps:,} steps: "
        f"{move / (one * steps):.4%} of the training"
    )


if __name__ == "__main__":
    main()
