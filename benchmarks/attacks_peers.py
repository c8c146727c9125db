"""The same attacks by other libraries, on the same model and images: what the benchmarks share."""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import eagerpy
import foolbox
import pyautoattack
import torch
from opening import Opened, add_options, correct_ones, opened
from recording import Spent, Watch

from robvit.attacks import Count, frozen, misclassified, run
from robvit.attacks.losses import cosine
from robvit.files import cache_dir
from robvit.threat import Threat

Model = Callable[[torch.Tensor], torch.Tensor]

NAMES = {"linf": "Linf", "l2": "L2", "l1": "L1"}
FOOLBOX = {"linf": foolbox.attacks.LinfPGD, "l2": foolbox.attacks.L2PGD, "l1": foolbox.attacks.L1PGD}
# These pin versions that do not agree with ours, so they live in a folder of their own.
APART = {
    "torchattacks": "torchattacks==3.5.1",
    "adv_lib": "adv-lib==0.2.8",
    "art": "adversarial-robustness-toolbox==1.20.1",
    "secmlt": "secml-torch==1.5",
    **{name: name for name in ("six", "cloudpickle", "joblib", "threadpoolctl", "narwhals")},
    "sklearn": "scikit-learn",
}
# What nothing of ours brings.
NEEDS = {"art": ("six", "narwhals", "sklearn", "cloudpickle", "joblib", "threadpoolctl")}


def apart(name: str) -> ModuleType:
    """A library from its own folder, fetched with the little it needs besides; torch is ours."""
    folder = str(cache_dir("peers"))
    if folder not in sys.path:
        sys.path.append(folder)
    for module in (name, *NEEDS.get(name, ())):
        if importlib.util.find_spec(module) is None:
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
            subprocess.run([*command, APART[module]], check=True, stdout=sys.stderr)  # noqa: S603  our own words
            importlib.invalidate_caches()
    stub = ModuleType("visdom")  # adv-lib draws with it, if asked
    stub.__dict__["Visdom"] = object
    stub.__spec__ = importlib.machinery.ModuleSpec("visdom", None)
    sys.modules.setdefault("visdom", stub)
    return importlib.import_module(name)


@dataclass(frozen=True)
class Result:
    """What an attack did: who stands (B,), or the features' cosine (B,); passes an image; what it took."""

    standing: torch.Tensor
    forward: float
    backward: float
    spent: Spent


class Network(torch.nn.Module):
    """A callable as a module, which the other libraries ask for; it adds nothing."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


def arguments(about: str, count: int, more: Callable[[argparse.ArgumentParser], None]) -> argparse.Namespace:
    """The command line both benchmarks have, with what `more` adds to it."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="robvit-mini-robust", help="alias or path")
    parser.add_argument("--data", default="sample", help="dataset")
    add_options(parser, count)
    parser.add_argument("--queries", type=int, default=5000, help="of Square, alone and in AutoAttack")
    parser.add_argument("--only", default="", help="attacks, separated by commas")
    more(parser)
    return parser.parse_args()


def prepared(options: argparse.Namespace) -> tuple[Opened, torch.Tensor, torch.Tensor]:
    """The model with its images and the budget; the images it gets right, and their labels."""
    logging.disable(logging.WARNING)  # the other libraries write a line a step
    found = opened(options)
    return found, *correct_ones(found.net, found.images, batch=32).tensors()


def measured(
    model: Model, x: torch.Tensor, y: torch.Tensor | None, work: Callable[[Count], torch.Tensor]
) -> Result:
    """Run `work` on a counting model; judge its images with a pass that does not count."""
    counted, watch = Count(model), Watch()
    adv = work(counted)
    spent = watch.read()
    with torch.no_grad(), frozen(model):
        standing = -cosine(model(adv), model(x)) if y is None else ~misclassified(model(adv), y)
    return Result(standing, counted.forward / len(x), counted.backward / len(x), spent)


def ours(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    name: str,
    precision: str = "fp32",
    **settings: object,
) -> Result:
    """One of our attacks by the public runner: with its checks, its confirmations and its certificate."""
    watch = Watch()
    outcome = run(name, model, x, y, threat, batch=len(x), precision=precision, **settings)
    spent, standing = watch.read(), ~outcome.success
    if y is None:
        with torch.no_grad(), frozen(model):
            standing = -cosine(model(outcome.adv), model(x))
    return Result(standing, outcome.forward / len(x), outcome.backward / len(x), spent)


def with_pyautoattack(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor,
    threat: Threat,
    attacks: list[str],
    queries: int,
    batch: int = 128,
) -> Result:
    """pyautoattack with the settings of its standard version, for any subset of its attacks."""

    def work(counted: Count) -> torch.Tensor:
        adversary = pyautoattack.AutoAttack(
            Network(counted).eval(),
            norm=NAMES[threat.norm],
            eps=threat.eps,
            version="custom",
            attacks=attacks,
            seed=0,
            device=x.device,
        )
        sparse = threat.norm == "l1"
        adversary.fab.n_restarts = adversary.apgd_targeted.n_restarts = 1
        adversary.apgd.n_restarts, adversary.fab.n_target_classes = 5 if sparse else 1, 9
        adversary.apgd_targeted.n_target_classes = 5 if sparse else 9
        adversary.apgd.use_largereps = adversary.apgd_targeted.use_largereps = sparse
        adversary.square.n_queries = queries
        return adversary.run_standard_evaluation(x, y, batch_size=batch)[0]

    return measured(model, x, y, work)


def with_foolbox(
    model: Model, x: torch.Tensor, y: torch.Tensor, threat: Threat, steps: int, restarts: int
) -> Result:
    """foolbox's PGD with our default step size."""

    def work(counted: Count) -> torch.Tensor:
        torch.manual_seed(0)
        bounded = foolbox.PyTorchModel(Network(counted).eval(), bounds=(0, 1), device=x.device)
        attack = FOOLBOX[threat.norm](rel_stepsize=2.5 / steps, steps=steps, random_start=True)
        criterion = foolbox.criteria.Misclassification(y)
        return attack.repeat(restarts)(bounded, x, criterion, epsilons=threat.eps)[1]

    return measured(model, x, y, work)


def with_torchattacks(model: Model, x: torch.Tensor, y: torch.Tensor, threat: Threat, steps: int) -> Result:
    """torchattacks' PGD with our default step size."""
    library: Any = apart("torchattacks")

    def work(counted: Count) -> torch.Tensor:
        torch.manual_seed(0)
        network = Network(counted).eval()
        network.place = torch.nn.Parameter(x[0, 0, 0, :1].clone())  # it asks a parameter for the device
        return library.PGD(network, eps=threat.eps, alpha=2.5 * threat.eps / steps, steps=steps)(x, y)

    return measured(model, x, y, work)


def with_advlib(model: Model, x: torch.Tensor, y: torch.Tensor, threat: Threat, steps: int) -> Result:
    """adv-lib's PGD with our default step size."""
    apart("adv_lib")
    pgd_linf: Any = importlib.import_module("adv_lib.attacks").pgd_linf

    def work(counted: Count) -> torch.Tensor:
        torch.manual_seed(0)
        return pgd_linf(
            Network(counted).eval(), x, y, threat.eps, steps=steps, relative_step_size=2.5 / steps
        )

    return measured(model, x, y, work)


def features_with_foolbox(model: Model, x: torch.Tensor, threat: Threat, steps: int) -> Result:
    """foolbox's PGD with the cosine of features as its loss; no other library takes a loss of one's own."""

    def work(counted: Count) -> torch.Tensor:
        clean = counted(x).detach()

        class FeaturePGD(foolbox.attacks.LinfPGD):
            def get_loss_fn(self, model: Any, labels: Any) -> Any:
                return lambda inputs: eagerpy.astensor(cosine(model(inputs).raw, clean).sum())

        torch.manual_seed(0)
        bounded = foolbox.PyTorchModel(Network(counted).eval(), bounds=(0, 1), device=x.device)
        attack = FeaturePGD(rel_stepsize=2.5 / steps, steps=steps, random_start=True)
        criterion = foolbox.criteria.Misclassification(torch.zeros(len(x), dtype=torch.long))
        return attack.run(bounded, x, criterion, epsilon=threat.eps)

    return measured(model, x, None, work)


def features_by_hand(model: Model, x: torch.Tensor, threat: Threat, steps: int) -> Result:
    """The loop of the published recipes: a sign step, a clamp to the ball, a clamp to the box."""

    def work(counted: Count) -> torch.Tensor:
        torch.manual_seed(0)
        clean = counted(x).detach()
        adv = (x + threat.eps * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
        for _ in range(steps):
            adv = adv.detach().requires_grad_()
            cosine(counted(adv), clean).mean().backward()
            assert adv.grad is not None
            adv = adv.detach() + 2.5 * threat.eps / steps * adv.grad.sign()
            adv = (x + (adv - x).clamp(-threat.eps, threat.eps)).clamp(0, 1)
        return adv.detach()

    return measured(model, x, None, work)
