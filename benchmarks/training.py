"""Speed of the training loop beside the bare cost of its passes, and beside other libraries' trainers.

    python benchmarks/training.py

The bare cost is what no trainer can avoid: for each step the attack's passes, one pass forward and back
for the weights, and the optimiser. Rounds alternate, so that a busy machine disturbs all alike; seconds
of the processor and of the clock are medians over rounds. Peers: adversarial-robustness-toolbox
(`AdversarialTrainerMadryPGD`) and secml-torch (`AdversarialTrainer`), fetched once into a folder of their
own; what cannot be had is left out, and the record says so. The loop's own precision is fp32 here.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attacks_peers import apart
from recording import Spent, Watch, add_out, bf16_note, finish

import robvit
from robvit.data import open_data
from robvit.progress import progress
from robvit.record import Table
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


def ways(images: Any, batch: int, peers: dict[str, Any]) -> dict[str, Callable[[int], None]]:
    """The trainers by name, each for a number of inner steps."""
    x, y = images.tensors()
    found: dict[str, Callable[[int], None]] = {
        "bare passes": lambda steps: bare(x, y, batch, steps),
        "robvit": lambda steps: loop(images, batch, steps),
    }
    return found | {name: partial(PEERS[name][1], x, y, batch) for name in peers}


def at_hand() -> tuple[dict[str, Any], list[str]]:
    """The other libraries that can be had, by name, and what to say of the others."""
    found: dict[str, Any] = {}
    notes = []
    for name, (library, _) in PEERS.items():
        try:
            found[name] = apart(library)
        except (ImportError, subprocess.CalledProcessError) as error:
            notes.append(f"{name} cannot be had: {error}")
    return found, notes + [f"{name} {module.__version__.strip()}." for name, module in found.items()]


PEERS = {"ART": ("art", art), "secml-torch": ("secmlt", secml)}


def middle(taken: list[Spent]) -> Spent:
    return Spent(*(statistics.median(part) for part in zip(*taken, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 10], help="inner steps")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    add_out(parser)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    images = open_data("sample", split="train", limit=args.batch * args.batches)
    rows = []
    peers, notes = at_hand()
    trainers = ways(images, args.batch, peers)
    with progress("training", total=len(args.steps) * args.rounds) as advance:
        for steps in args.steps:
            taken: dict[str, list[Spent]] = {name: [] for name in trainers}
            for _ in range(args.rounds):
                for name, trainer in trainers.items():
                    watch = Watch()
                    trainer(steps)
                    taken[name].append(watch.read())
                advance(1, note=f"{steps} inner steps")
            own, least = middle(taken["robvit"]), middle(taken["bare passes"])
            for name, each in taken.items():
                cpu, seconds = middle(each)
                ratios = [cpu / least.cpu, cpu / own.cpu, seconds / own.seconds]
                rows.append([steps, name, len(images) / cpu, cpu, seconds, *ratios])
    columns = ["inner steps", "trainer", "images a CPU second", "CPU seconds", "seconds"]
    columns += ["times bare, CPU", "times ours, CPU", "times ours, seconds"]
    note = (
        f"{args.batches} batches of {args.batch}, medians of {args.rounds} rounds, threads: {args.threads}."
    )
    table = Table("Training beside other libraries", columns, rows, note)
    model = {"name": "robvit-mini, random weights"}
    finish(args.out, [table], model=model, data=images.facts(), notes=[bf16_note(), *notes])


if __name__ == "__main__":
    main()
