"""What an evaluation will cost, before it starts: passes, time and memory, from short probes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from robvit.attacks import ATTACKS, AttackWarning, run
from robvit.attacks.core import Model, prepared
from robvit.attacks.cost import Forecast, Passes, forecast_of
from robvit.attention import attention_layers
from robvit.data.corruptions import CORRUPTIONS
from robvit.evaluation.attackers import ATTACKERS
from robvit.evaluation.protocol import Attack, Protocol
from robvit.threat import Threat

# Whole numbers among the settings that are larger are not run: passes grow linearly with each of them, so
# what they cost follows from two smaller ones, which attacks in L1 can split 3 to 3 to 4.
FEW, MANY = 10, 20


@dataclass(frozen=True)
class Plan:
    """The passes of a protocol's parts: clean images, each attack, what each attacker learns, corruptions."""

    clean: Passes
    attacks: list[Passes]
    learning: dict[str, Passes]
    corruptions: Passes

    @property
    def total(self) -> Passes:
        parts = [self.clean, *self.attacks, *self.learning.values(), self.corruptions]
        return Passes(sum(part.forward for part in parts), sum(part.backward for part in parts))


def forecast(plan: Plan, net: Model, x: torch.Tensor) -> Forecast:
    """The cost of a plan on images like x (B 3 H W), of which a few are passed through the network."""
    return forecast_of(plan.total, net, x)


def plan_of(protocol: Protocol, net: nn.Module, *, count: int, classes: int) -> Plan:
    """The passes of a protocol on `count` images; an attack that can't attack the network is refused."""
    attacks = []
    for entry in protocol.attacks:
        models = ATTACKERS.info(entry.attacker).models(protocol.attacker_budget)
        layers = len(attention_layers(net)) if ATTACKS.info(entry.attack).needs == "attention" else 0
        one = attack_passes(entry, protocol.threat_of(entry), classes, layers)
        attacks.append(one.times(audited_count(entry, protocol, count) * len(protocol.seeds) * models))
    known = dict.fromkeys(entry.attacker for entry in protocol.attacks)
    learning = {name: ATTACKERS.info(name).learning(protocol.attacker_budget) for name in known}
    wanted = protocol.corruptions
    corrupted = 0 if wanted is None else len(set(wanted.severities)) * len(wanted.names or CORRUPTIONS)
    return Plan(
        clean=Passes(count * (1 + len(protocol.controls)), 0),
        attacks=attacks,
        learning={name: Passes(passes, passes) for name, passes in learning.items()},
        corruptions=Passes(count * corrupted, 0),
    )


def audited_count(entry: Attack, protocol: Protocol, count: int) -> int:
    """How many of `count` images an attack sees at most, if an audit's sample does not break."""
    return min(count, protocol.audit) if entry.audited else count


def attack_passes(entry: Attack, threat: Threat, classes: int, layers: int = 0) -> Passes:
    """The passes of a protocol's attack on one image on which it never succeeds."""
    return passes_of(entry.attack, entry.ready(0), threat, classes, layers)


def passes_of(attack: str, given: dict[str, Any], threat: Threat, classes: int, layers: int = 0) -> Passes:
    """The passes of an attack with the given settings on one image that stays correct, counted on a toy.

    The toy has as many attention `layers` as the judged model, if the attack works on those.
    """
    toy: nn.Module = Steadfast(classes) if not layers else SteadfastViT(classes, layers)
    x, y = torch.full((1, 3, 8, 8), 0.5), torch.zeros(1, dtype=torch.long)

    def passes(settings: dict[str, Any]) -> Passes:
        large = _first_large(settings)
        if large:
            value = _get(settings, large)
            few, many = (passes(_with(settings, large, number)) for number in (FEW, MANY))
            slope = (value - FEW) / (MANY - FEW)
            return Passes(*(round(a + slope * (b - a)) for a, b in zip(few, many, strict=True)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AttackWarning)
            ready = prepared(attack, toy, settings, lambda *_: [(x, y)]).settings
            outcome = run(attack, toy, x, y, threat, **ready)
        return Passes(outcome.forward, outcome.backward)

    defaults = {k: v for k, v in ATTACKS.info(attack).defaults.items() if _is_large(v)}
    return passes(defaults | given)


class Steadfast(nn.Module):
    """A linear model of 8x8 images that no budget of a protocol moves away from class 0."""

    slopes: torch.Tensor
    lead: torch.Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        slopes = torch.randn(classes, 3 * 64, generator=torch.Generator().manual_seed(0))
        self.register_buffer("slopes", 1e-3 * slopes)
        self.register_buffer("lead", _lead(classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.slopes.T + self.lead


class SteadfastViT(nn.Module):
    """A tiny transformer of 8x8 images that stays with class 0, however its attention is scaled."""

    lead: torch.Tensor

    def __init__(self, classes: int, layers: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.net = VisionTransformer(
                img_size=8, patch_size=4, embed_dim=4, depth=layers, num_heads=1, num_classes=classes
            ).eval()
        self.register_buffer("lead", _lead(classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(x)
        return 1e-3 * logits.tanh() + self.lead


def _lead(classes: int) -> torch.Tensor:
    return 20.0 * (torch.arange(classes) == 0)


def _is_large(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > MANY


def _first_large(settings: dict[str, Any]) -> tuple[str, ...]:
    """Where the first number stands that is too large to be run, inside settings of settings too."""
    for name, value in settings.items():
        if _is_large(value) and name != "seed":
            return (name,)
        if isinstance(value, dict) and (inner := _first_large(value)):
            return (name, *inner)
    return ()


def _get(settings: dict[str, Any], place: tuple[str, ...]) -> Any:
    return settings[place[0]] if len(place) == 1 else _get(settings[place[0]], place[1:])


def _with(settings: dict[str, Any], place: tuple[str, ...], value: int) -> dict[str, Any]:
    inner = value if len(place) == 1 else _with(settings[place[0]], place[1:], value)
    return {**settings, place[0]: inner}
