"""Protocols: how a model is judged, written down as data under a name with a version.

A protocol is a YAML file: threats, attacks with their settings, seeds, the images, and what each
attacker knows. Those of the package are in `protocols/`; anybody's own file does as well. A name such as
`quick@1` never changes its meaning: another meaning is another version.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from robvit import plugins
from robvit.attacks import ATTACKS
from robvit.attacks.audited import refuse_batches
from robvit.audit import SIZE
from robvit.budget import check_budget, check_psnr, parse_number
from robvit.data.corruptions import CORRUPTIONS
from robvit.errors import InputError
from robvit.evaluation.attackers import ATTACKERS, WHITE_BOX
from robvit.files import YAML_BYTES, given_path, parse_yaml, read_text
from robvit.registry import unknown
from robvit.settings import check_setting, is_fraction
from robvit.threat import Threat

NO_TOKENS, RANDOM_TOKENS = CONTROLS = ("no tokens", "random tokens")
RESERVED = {
    "seed": "`seeds` of the protocol",
    "early_stop": "the runner",
    "judge": "the runner",
    "targeted": "calls of the attack itself, with the classes wanted: a protocol knows true labels",
}

Number = Annotated[float, BeforeValidator(parse_number)]


def _strange(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An unknown name as an error of a value, so that pydantic says in which field."""
    return InputError(str(unknown(kind, name, list(known))))


class Strict(BaseModel):
    """A part of a protocol; keys nobody knows are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ThreatField(Strict):
    """A norm and a budget in pixels, such as 8/255."""

    norm: str
    eps: Number
    psnr: float | None = None

    @model_validator(mode="after")
    def _in_range(self) -> ThreatField:
        check_budget(self.norm, self.eps, usable=True)
        check_psnr(self.psnr)
        return self

    def threat(self) -> Threat:
        return Threat(self.norm, self.eps, self.psnr)


class Subset(Strict):
    """Which images: at most `count`, drawn by the seed; `digest` pins the list of names and labels."""

    count: int | None = Field(default=None, ge=1)
    seed: int = 0
    digest: str | None = None


class Attack(Strict):
    """One attack: its settings, its threat if not the protocol's, and what the attacker knows.

    An `audited` one goes on with a sample of what the attacks before left, and with all if one of it falls.
    """

    attack: str
    settings: dict[str, Any] = Field(default_factory=dict)
    threat: ThreatField | None = None
    attacker: str = WHITE_BOX
    audited: bool = False

    @model_validator(mode="after")
    def _known(self) -> Attack:
        brought = plugins.is_spec(self.attack) or plugins.is_offered(ATTACKS.kind, self.attack)
        if self.attack not in ATTACKS and not brought:
            raise _strange("attack", self.attack, ATTACKS.names)
        info = ATTACKS.info(self.attack)
        if info.task != "classes":
            raise InputError(f"{self.attack} attacks {info.task}, a protocol judges classifiers")
        if self.attacker not in ATTACKERS:
            raise _strange("attacker", self.attacker, ATTACKERS.names)
        if info.gradients and not ATTACKERS.info(self.attacker).gradients:
            raise InputError(
                f"a {self.attacker} attacker has no gradients, {self.attack} needs them; take square"
            )
        refuse_batches(self.attack, self.settings)
        for name, value in self.settings.items():
            if name in RESERVED:
                raise InputError(f"settings.{name} is not for an attack to set but for {RESERVED[name]}")
            if name not in info.defaults:
                raise _strange(f"setting of {self.attack}", name, info.defaults)
            check_setting(f"settings.{name}", value, info.defaults[name])
        return self

    def ready(self, seed: int) -> dict[str, Any]:
        """The settings as the attack takes them, with the seed."""
        given = {k: parse_number(v) if is_fraction(v) else v for k, v in self.settings.items()}
        return {**given, "seed": seed}


class AttackerBudget(Strict):
    """What attackers who learn spend: token sets, images of their own, steps, and their attack's steps."""

    sets: int = Field(default=5, ge=1)
    images: int = Field(default=128, ge=1)
    steps: int = Field(default=40, ge=1)
    batch: int = Field(default=16, ge=1)
    attack_steps: int = Field(default=8, ge=1)
    leak_steps: int = Field(default=100, ge=1)


class Corruptions(Strict):
    """Common corruptions at these severities; all of them unless some are named."""

    severities: list[Annotated[int, Field(ge=1, le=5)]] = Field(default_factory=lambda: [1, 2, 3, 4, 5])
    names: list[str] | None = None


class Protocol(Strict):
    """How a model is judged. With `survivors`, an attack only sees images on which none before succeeded.

    `audit` is how many survivors the `audited` attacks try.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*@[1-9][0-9]*$")
    about: str
    threat: ThreatField | None = None
    attacks: list[Attack] = Field(default_factory=list)
    seeds: list[int] = Field(default_factory=lambda: [0], min_length=1)
    subset: Subset = Subset()
    survivors: bool = False
    controls: list[str] = Field(default_factory=list)
    attacker_budget: AttackerBudget = AttackerBudget()
    features: bool = False
    corruptions: Corruptions | None = None
    audit: int = Field(default=SIZE, ge=1)

    @model_validator(mode="after")
    def _whole(self) -> Protocol:
        for place, entry in enumerate(self.attacks):
            budget = entry.threat or self.threat
            if budget is None:
                raise InputError(f"attacks.{place} ({entry.attack}) has no threat; give one, or one for all")
            if budget.norm not in (norms := ATTACKS.info(entry.attack).norms):
                raise InputError(
                    f"attacks.{place}: {entry.attack} works in {', '.join(norms)}, not {budget.norm}"
                )
        if self.corruptions is not None and self.attacks:
            raise InputError("attacks and corruptions are two protocols; leave one out")
        self._check_audit()
        if self.survivors and self.controls:
            raise InputError("survivors: controls are judged on all images; leave survivors or controls out")
        for name in (self.corruptions and self.corruptions.names) or ():
            if name not in CORRUPTIONS:
                raise _strange("corruption", name, CORRUPTIONS.names)
        for control in self.controls:
            if control not in CONTROLS:
                raise _strange("control", control, CONTROLS)
        return self

    def _check_audit(self) -> None:
        """Refuse an audit of anything but what white-box attacks left."""
        audited = [entry.audited for entry in self.attacks]
        if not any(audited):
            return
        if not self.survivors or audited != sorted(audited) or all(audited):
            raise InputError(
                "audited attacks try a sample of what others left: set survivors: true, and put them last"
            )
        if any(entry.attacker != WHITE_BOX for entry in self.attacks):
            raise InputError("an audit bounds what a white-box attacker can do; leave other attackers out")

    def with_audit(self, size: int | None) -> Protocol:
        """The same with so many survivors tried by the audited attacks; None for as many as it wants."""
        if size is None:
            return self
        if not any(entry.audited for entry in self.attacks):
            raise InputError(
                f"audit is for protocols with audited attacks, {self.name} has none; leave it out"
            )
        if size < 1:
            raise InputError(f"audit must be 1 or more, got {size}")
        return self.model_copy(update={"audit": size})

    @property
    def needs_tokens(self) -> bool:
        """Whether it judges a model with secret tokens."""
        return bool(self.controls) or any(ATTACKERS.info(a.attacker).needs_tokens for a in self.attacks)

    @property
    def learns(self) -> bool:
        """Whether an attacker learns from images of their own."""
        return any(ATTACKERS.info(entry.attacker).learns for entry in self.attacks)

    def digest(self) -> str:
        """SHA-256 of all rules: what a name stands for."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()

    def threat_of(self, entry: Attack) -> Threat:
        budget = entry.threat or self.threat
        assert budget is not None
        return budget.threat()


def names() -> list[str]:
    """The protocols of the package."""
    return sorted(
        path.name.removesuffix(".yaml") for path in _folder().iterdir() if path.name.endswith(".yaml")
    )


def find(protocol: str | Path | Protocol) -> Protocol:
    """A protocol by its name (`quick@1`), or from a YAML file; bundled names are for the bundled rules."""
    if isinstance(protocol, Protocol):
        return _not_impersonating(protocol)
    text = str(protocol)
    if text in names():
        return _bundled(text)
    path = given_path(text)
    if path.suffix not in (".yaml", ".yml"):
        raise unknown("protocol", text, names(), "Or give the path of a .yaml file.")
    return _not_impersonating(_read(read_text(path, "a protocol", YAML_BYTES), text))


def _bundled(name: str) -> Protocol:
    return _read(_folder().joinpath(f"{name}.yaml").read_text(encoding="utf-8"), name)


def _not_impersonating(rules: Protocol) -> Protocol:
    """Refuse other rules under the name of a bundled protocol."""
    if rules.name in names() and rules.digest() != _bundled(rules.name).digest():
        raise InputError(
            f"{rules.name} is a bundled protocol, and these are other rules; give them a name of their own, "
            f"such as my-{rules.name}"
        )
    return rules


def _folder() -> Any:
    return resources.files("robvit.evaluation").joinpath("protocols")


def _read(text: str, where: str) -> Protocol:
    try:
        return Protocol(**parse_yaml(text, where))
    except ValidationError as error:
        raise InputError(f"{where}: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    """One thing that is wrong, a misspelt key before others: the field, what is expected, what came."""
    found = min(error.errors(), key=lambda flaw: flaw["type"] != "extra_forbidden")
    place = ".".join(str(part) for part in found["loc"])
    if found["type"] == "extra_forbidden":
        return f"{place}: {unknown('field', str(found['loc'][-1]), _fields(found['loc'][:-1]))}"
    if found["type"] == "missing":
        return f"{place} is missing; add it"
    if found["type"] == "value_error":  # our own words, which say what came
        return ": ".join(filter(None, (place, str(found["ctx"]["error"]))))
    return f"{place}: {found['msg']}, got {reprlib.repr(found['input'])}"


def _fields(place: tuple[int | str, ...]) -> list[str]:
    """The fields of the part at this place of a protocol."""
    part: Any = Protocol
    for step in place:
        if isinstance(step, str):
            wanted = part.model_fields[step].annotation
            choices = [wanted, *get_args(wanted)]
            part = next(c for c in choices if isinstance(c, type) and issubclass(c, Strict))
    return list(part.model_fields)
