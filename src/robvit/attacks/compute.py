"""How to compute on this machine: the precision, the attention kernel and the threads that are fastest.

A probe passes a few images of the actual model through each choice and takes the clock's word. It costs at
most a few seconds and is left out where the work itself is short. Nothing is believed of low precision but
speed: `run` confirms every success with the model as it is.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from robvit.attacks.core import Model, frozen, gradient
from robvit.attacks.cost import probed, wait_for
from robvit.attacks.precision import DTYPES, PLAIN, Autocast, check_precision, fused_layers, searched
from robvit.attacks.sanity import AttackWarning, PrecisionOfAudit, PrecisionUnavailable, PrecisionUnsound
from robvit.errors import InputError
from robvit.files import parse_json, read_text, write_json
from robvit.processes import processes

SHORT = 30.0  # seconds of work below which nothing is probed
LONGEST = 6.0  # seconds of a probe after which no further choice is tried, be it of threads or of precision
GAIN = 1.2  # a choice must be so many times as fast to be taken
SIDES = {"cuda": 4096}  # of the matrices whose products are timed: small ones keep a GPU waiting (unmeasured)
SIDE = 256  # of those on other devices
HOPELESS = 6  # so many times as slow at first, a choice is not timed: that would take long, and it would lose
NEAR = 0.1  # of the length of features: so far may low precision move them
LEAD = 0.05  # of the logits' range: answers that are nearer to a tie may differ in low precision
BEGUN = ("shards", "state-0.safetensors")  # what a run leaves in its folder on the way
Key = tuple[str, str, tuple[int, ...]]  # what was wanted, on which device, for which images
SETTLED: WeakKeyDictionary[nn.Module, dict[Key, Compute]] = WeakKeyDictionary()  # found by this process


@dataclass(frozen=True)
class Compute:
    """What was chosen: `precision` of the search and `threads` on a `device`; `wanted` is what was asked for.

    `warnings` are names of warning classes: why a precision that was asked for or tried is not used. `short`
    says that the work was too little to probe for.
    """

    wanted: str
    precision: str
    threads: int
    device: str
    warnings: list[str] = field(default_factory=list)
    short: bool = False

    def __str__(self) -> str:
        kernel = " with plain attention" if self.precision.endswith(PLAIN) else ""
        threads = f", {self.threads} thread{'s' * (self.threads > 1)}" if self.device == "cpu" else ""
        return f"{self.precision.removesuffix(PLAIN)}{kernel} on {self.device}{threads}"

    def rules(self) -> dict[str, Any]:
        """What a record tells of the precision."""
        return {"precision": self.precision, "wanted precision": self.wanted, "warnings": self.warnings}

    def machine(self) -> dict[str, Any]:
        """What a record tells of the machine, on which the result does not depend."""
        return {"device": self.device, "threads": self.threads}

    def notes(self) -> list[str]:
        """Why a precision is not used, a sentence for each reason."""
        kinds = {kind.__name__: kind for kind in (PrecisionOfAudit, PrecisionUnavailable, PrecisionUnsound)}
        return [f"{name}: {kinds[name].__doc__}" for name in self.warnings if name in kinds]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The chosen number of threads inside, and the number of before afterwards."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def searched(self, model: Model) -> Model:
        """The model as attacks search on it."""
        return searched(model, self.precision)


def settle(
    model: nn.Module, x: torch.Tensor, *, wanted: str, passes: float, keep: Path | None = None
) -> Compute:
    """Choose for a work of so many `passes` over single images like x (B 3 H W), on the device of x.

    With `keep`, a file in the folder of a run, what was chosen there before is kept, on any machine: a
    precision is part of a result. Of several processes the first one chooses.
    """
    check_precision(wanted, auto=True)
    state = processes()
    if state.is_main_process or keep is None:
        found = _chosen(model, x, wanted, passes, keep)
        if keep is not None:
            write_json(keep, asdict(found))
    state.wait_for_everyone()
    return found if state.is_main_process or keep is None else _read(keep)


def _chosen(model: nn.Module, x: torch.Tensor, wanted: str, passes: float, keep: Path | None) -> Compute:
    """What the folder says, or this process found before, or a probe finds."""
    before = _read(keep) if keep is not None and keep.exists() else None
    if before is not None and wanted in ("auto", before.wanted):
        now = probe(model, x, "fp32", passes)  # threads are this machine's
        return replace(before, wanted=wanted, threads=now.threads, device=now.device)
    begun = keep is not None and any((keep.parent / name).exists() for name in BEGUN)
    if before is None and begun and wanted == "auto":
        return replace(probe(model, x, "fp32", passes), wanted=wanted)  # begun before there was a choice
    known, key = SETTLED.setdefault(model, {}), (wanted, x.device.type, tuple(x.shape[1:]))
    if key not in known:
        found = probe(model, x, wanted, passes)
        if not found.short:
            known[key] = found
        return found
    return known[key]


def _read(path: Path) -> Compute:
    content: Any = parse_json(read_text(path, "a choice"), path, "how a run computes")
    try:
        found = Compute(**content)
        check_precision(found.precision)
    except (TypeError, AttributeError, InputError) as error:
        raise InputError(f"{path} does not say how a run computes: {error}; remove it") from None
    return found


@torch.no_grad()
def probe(model: Model, x: torch.Tensor, wanted: str, passes: float) -> Compute:
    """Time the choices on a few images; only what was asked for is tried unless that is "auto"."""
    device, names, until = x.device.type, set[str](), time.monotonic() + LONGEST
    x = x[: probed(len(x), device)]
    drawn_from = [] if device == "cpu" else [x.device]
    # A model that draws numbers goes on after the probe as it would have without it.
    with frozen(model), warnings.catch_warnings(), torch.random.fork_rng(drawn_from):
        warnings.simplefilter("ignore")
        short = _is_short(model, x, passes)
        threads = torch.get_num_threads() if short or device != "cpu" else _threads(model, x, until)
        chosen = Compute(wanted, "fp32", threads, device, short=short)
        with chosen.in_use():
            precision = "fp32"
            if wanted not in ("auto", "fp32"):
                flaw = _flaw(model, x, wanted)
                names |= {flaw.__name__} if flaw else set()
                precision = "fp32" if flaw else wanted
            elif wanted == "auto" and not short:
                precision = _fastest(model, x, names, until)
    return replace(chosen, precision=precision, warnings=sorted(names))


def _is_short(model: Model, x: torch.Tensor, passes: float) -> bool:
    """Whether the work is not worth a probe; a first pass may be slow, so that a second one decides."""
    for _ in range(2 if passes else 0):
        start = time.monotonic()
        model(x)
        wait_for(x.device.type)
        if passes * (time.monotonic() - start) / len(x) < SHORT:
            return True
    return not passes


def _fastest(model: Model, x: torch.Tensor, names: set[str], until: float) -> str:
    """The fastest sound precision; `names` takes the warnings of those that are not sound."""
    own = _step_seconds(model, x)
    best, seconds = "fp32", own / GAIN
    for precision in _choices(model, x.device):
        if time.monotonic() > until:
            break
        first = time.monotonic()
        flaw = _flaw(model, x, precision)
        if flaw is not None:
            names.add(flaw.__name__)
        elif time.monotonic() - first < HOPELESS * own:
            took = _step_seconds(Autocast(model, precision), x)
            if took < seconds:
                best, seconds = precision, took
    return best


def _choices(model: Model, device: torch.device) -> list[str]:
    """What is worth a try: low precision only where the device multiplies matrices faster in it."""
    low = "bf16"
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        low = "fp16"
    fused = bool(fused_layers(model))
    found = [low + PLAIN, low] if fused else [low]
    return (found if _multiplies_faster(low, device) else []) + (["fp32" + PLAIN] if fused else [])


def _multiplies_faster(precision: str, device: torch.device) -> bool:
    """Whether matrix products are faster than in fp32: passes in a slow precision would take too long."""
    side = SIDES.get(device.type, SIDE)
    a = torch.ones(side, side, device=device)
    b = a.to(DTYPES[precision])
    try:
        return GAIN * _quickest(lambda: b @ b, device.type) < _quickest(lambda: a @ a, device.type)
    except RuntimeError:
        return False


def _flaw(model: Model, x: torch.Tensor, precision: str) -> type[AttackWarning] | None:
    """Why a precision cannot be used: the device lacks it, or the model breaks in it."""
    clean = model(x)
    try:
        output, _, grad = gradient(Autocast(model, precision), x, lambda logits: logits.flatten(1).sum(1))
    except (RuntimeError, InputError):
        return PrecisionUnavailable
    if not bool(output.isfinite().all() and grad.isfinite().all()):
        return PrecisionUnsound
    if output.shape != clean.shape:
        return PrecisionUnsound
    if clean.ndim != 2 or clean.shape[1] < 2:  # features or a map: they must stay near
        return PrecisionUnsound if (output - clean).norm() > NEAR * clean.norm() else None
    top = clean.topk(2, dim=1).values
    sure = (top[:, 0] - top[:, 1]) > LEAD * (clean.amax(1) - clean.amin(1))
    return PrecisionUnsound if bool(((output.argmax(1) != clean.argmax(1)) & sure).any()) else None


def _threads(model: Model, x: torch.Tensor, until: float) -> int:
    """The number of threads that is fastest now; the present one where somebody chose it."""
    now = torch.get_num_threads()
    if "OMP_NUM_THREADS" in os.environ or processes().num_processes > 1:
        return now
    best, seconds = 1, float("inf")
    try:
        for count in sorted({1, *(2**i for i in range(1, 10) if 2**i < now), now}):
            torch.set_num_threads(count)
            took = _step_seconds(model, x, HOPELESS * seconds)
            if took < 0.95 * seconds:
                best, seconds = count, took
            if time.monotonic() > until:
                break
    finally:
        torch.set_num_threads(now)
    return best


def _step_seconds(model: Model, x: torch.Tensor, most: float = float("inf")) -> float:
    """The seconds of a forward and a backward pass; the quicker of two, after one that warms up.

    If that one takes longer than `most`, it is not tried again.
    """

    def step() -> None:
        try:
            gradient(model, x, lambda output: output.flatten(1).sum(1))
        except InputError:  # a model without gradients has no backward pass to wait for
            model(x)

    return _quickest(step, x.device.type, most)


def _quickest(call: Callable[[], object], device: str, most: float = float("inf")) -> float:
    found = list[float]()
    while len(found) < 3:
        start = time.monotonic()
        call()
        wait_for(device)
        found.append(time.monotonic() - start)
        if found[0] > most:
            return found[0]
    return min(found[1:])
