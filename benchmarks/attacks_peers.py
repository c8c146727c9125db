"""The same attacks by other libraries, on the same model and pictures: what the benchmarks share."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import foolbox
import pyautoattack
import torch

import robvit
from robvit.attacks import ATTACKS, Count, certify, fooled, frozen
from robvit.threat import Threat, parse_number

NAMES = {"linf": "Linf", "l2": "L2", "l1": "L1"}
FOOLBOX = {"linf": foolbox.attacks.LinfPGD, "l2": foolbox.attacks.L2PGD, "l1": foolbox.attacks.L1PGD}


@dataclass(frozen=True)
class Result:
    """What an attack did: who stands (B,), passes a picture, seconds."""

    standing: torch.Tensor
    forward: float
    backward: float
    seconds: float


class Network(torch.nn.Module):
    """A callable as a module, which the other libraries ask for; it adds nothing."""

    def __init__(self, model: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


def arguments(about: str, count: int) -> argparse.Namespace:
    """The command line both benchmarks have."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--model", default="robvit-mini-robust", help="alias or path")
    parser.add_argument("--data", default="sample", help="data set")
    parser.add_argument("--count", type=int, default=count, help="pictures")
    parser.add_argument("--norm", default="linf", choices=NAMES)
    parser.add_argument("--eps", default="8/255", type=parse_number)
    parser.add_argument("--queries", type=int, default=5000, help="of Square, alone and in AutoAttack")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="attacks, separated by commas")
    return parser.parse_args()


def prepared(options: argparse.Namespace) -> tuple[robvit.Model, torch.Tensor, torch.Tensor, Threat]:
    """The model in eval mode, the pictures it gets right among the first ones, labels, threat."""
    torch.set_num_threads(options.threads)
    logging.disable(logging.WARNING)  # the other libraries write a line a step
    model = robvit.load(options.model).eval().requires_grad_(False)
    pictures = robvit.data.open_data(options.data, limit=options.count)
    x = torch.stack([pictures[i][0] for i in range(len(pictures))])
    y = torch.tensor([int(pictures[i][1]) for i in range(len(pictures))])
    with torch.no_grad():
        right = ~fooled(model(x), y)
    return model, x[right], y[right], Threat(options.norm, options.eps)


def clock_for(x: torch.Tensor) -> Callable[[], float]:
    """CPU seconds on a CPU, so that other work on the machine does not count; else seconds of the clock."""
    return time.process_time if x.device.type == "cpu" else time.perf_counter


def measured(
    model: robvit.Model, x: torch.Tensor, y: torch.Tensor, work: Callable[[Count], torch.Tensor]
) -> Result:
    """Run `work` on a counting model; judge its pictures with a pass that does not count."""
    counted, clock = Count(model), clock_for(x)
    start = clock()
    adv = work(counted)
    seconds = clock() - start
    with torch.no_grad(), frozen(model):
        standing = ~fooled(model(adv), y)
    return Result(standing, counted.forward / len(x), counted.backward / len(x), seconds)


def ours(
    model: robvit.Model, x: torch.Tensor, y: torch.Tensor, threat: Threat, name: str, **settings: object
) -> Result:
    """One of our attacks, called as the others are; its budget is certified, not timed."""
    made: list[torch.Tensor] = []

    def work(counted: Count) -> torch.Tensor:
        made.append(ATTACKS[name](counted, x, y, threat, **settings))
        return made[0]

    result = measured(model, x, y, work)
    certify(x, made[0], threat)
    return result


def with_pyautoattack(
    model: robvit.Model, x: torch.Tensor, y: torch.Tensor, threat: Threat, attacks: list[str], queries: int
) -> Result:
    """pyautoattack with the settings of its standard version, for any subset of its attacks."""

    def work(counted: Count) -> torch.Tensor:
        adversary = pyautoattack.AutoAttack(
            Network(counted).eval(), norm=NAMES[threat.norm], eps=threat.eps, version="custom",
            attacks=attacks, seed=0, device=x.device,
        )  # fmt: skip
        adversary.apgd.n_restarts = adversary.fab.n_restarts = adversary.apgd_targeted.n_restarts = 1
        adversary.fab.n_target_classes = adversary.apgd_targeted.n_target_classes = 9
        adversary.square.n_queries = queries
        if threat.norm == "l1":
            adversary.apgd.use_largereps = adversary.apgd_targeted.use_largereps = True
        return adversary.run_standard_evaluation(x, y, batch_size=128)[0]

    return measured(model, x, y, work)


def with_foolbox(
    model: robvit.Model, x: torch.Tensor, y: torch.Tensor, threat: Threat, steps: int, restarts: int
) -> Result:
    """foolbox's PGD with our default step size."""

    def work(counted: Count) -> torch.Tensor:
        torch.manual_seed(0)
        bounded = foolbox.PyTorchModel(Network(counted).eval(), bounds=(0, 1), device=x.device)
        attack = FOOLBOX[threat.norm](rel_stepsize=2.5 / steps, steps=steps, random_start=True)
        criterion = foolbox.criteria.Misclassification(y)
        return attack.repeat(restarts)(bounded, x, criterion, epsilons=threat.eps)[1]

    return measured(model, x, y, work)
