"""Speed of the training loop beside the bare cost of its passes, and beside other libraries' trainers.

    python benchmarks/training.py            # CPU seconds of one thread; peers run where they are installed

The bare cost is what no trainer can avoid: for each step the attack's passes, one pass forward and back
for the weights, and the optimiser. Rounds alternate, so that a busy machine disturbs all alike, and
CPU seconds of this process are counted, not time on the clock. Peers: adversarial-robustness-toolbox
(`AdversarialTrainerMadryPGD`) and secml-torch (`AdversarialTrainer`), in an environment of their own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import robvit
from robvit.data import open_data
from robvit.training.fit import Fit
from robvit.training.recipe import make_recipe
from robvit.training.splits import Splits

EPS = 8 / 255


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return robvit.load("robvit-mini", pretrained=False).train()


def bare(x: torch.Tensor, y: torch.Tensor, batch: int, steps: int) -> None:
    """PGD training by hand: no loader, no seeds, no checks."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for some, labels in zip(x.split(batch), y.split(batch), strict=True):
        adv = some + (2 * torch.rand_like(some) - 1) * EPS
        model.eval().requires_grad_(False)
        for _ in range(steps):
            adv.requires_grad_()
            (grad,) = torch.autograd.grad(F.cross_entropy(model(adv), labels), adv)
            adv = (adv.detach() + EPS / 4 * grad.sign()).clamp(some - EPS, some + EPS).clamp(0, 1)
        model.train().requires_grad_(True)
        optimizer.zero_grad()
        F.cross_entropy(model(adv), labels).backward()
        optimizer.step()


def loop(images: Any, batch: int, steps: int) -> None:
    """The same by the loop, with flips and crops, seeds and guards; without the judging between epochs."""
    keys = {
        "inner": {"steps": steps, "step": 0.25},
        "batch": batch,
        "epochs": 1,
        "validate_every": 99,
        "judge_steps": 1,
        "augment": {"crop": "pad", "flip": True},
        "clip": 1.0,
    }
    with tempfile.TemporaryDirectory() as folder:
        fit = Fit(network(), Splits(images, images.take([0])), make_recipe(keys), folder=Path(folder))
        fit.run()


def art(x: torch.Tensor, y: torch.Tensor, batch: int, steps: int) -> None:
    from art.defences.trainer import AdversarialTrainerMadryPGD
    from art.estimators.classification import PyTorchClassifier

    model = network()
    classifier = PyTorchClassifier(
        model,
        torch.nn.CrossEntropyLoss(),
        (3, 32, 32),
        10,
        clip_values=(0, 1),
        device_type="cpu",
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    )
    trainer = AdversarialTrainerMadryPGD(
        classifier, nb_epochs=1, batch_size=batch, eps=EPS, eps_step=EPS / 4, max_iter=steps
    )
    trainer.fit(x.numpy(), F.one_hot(y, 10).numpy())


def secml(x: torch.Tensor, y: torch.Tensor, batch: int, steps: int) -> None:
    from secmlt.adv.backends import Backends
    from secmlt.adv.evasion.pgd import PGD
    from secmlt.defenses.adv_training.pytorch.adversarial_trainer import AdversarialTrainer

    model = network()
    attack = PGD(
        perturbation_model="linf",
        epsilon=EPS,
        num_steps=steps,
        step_size=EPS / 4,
        random_start=True,
        lb=0.0,
        ub=1.0,
        backend=Backends.NATIVE,
    )
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch)
    trainer = AdversarialTrainer(torch.optim.AdamW(model.parameters(), lr=1e-3), epochs=1)
    trainer.train(model, loader, attack)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 10], help="inner steps")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    images = open_data("sample", split="train", limit=args.batch * args.batches)
    x, y = images.tensors()
    for steps in args.steps:
        ways: dict[str, Callable[[], None]] = {
            "bare passes": lambda steps=steps: bare(x, y, args.batch, steps),
            "robvit": lambda steps=steps: loop(images, args.batch, steps),
        }
        if importlib.util.find_spec("art"):
            ways["ART"] = lambda steps=steps: art(x, y, args.batch, steps)
        if importlib.util.find_spec("secmlt"):
            ways["secml-torch"] = lambda steps=steps: secml(x, y, args.batch, steps)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.rounds):
            for name, way in ways.items():
                start = time.process_time()
                way()
                seconds[name].append(time.process_time() - start)
        least = statistics.median(seconds["bare passes"])
        for name, taken in seconds.items():
            middle = statistics.median(taken)
            rate = args.batch * args.batches / middle
            row = {
                "inner steps": steps,
                "trainer": name,
                "images a CPU second": round(rate, 1),
                "times bare": round(middle / least, 3),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
