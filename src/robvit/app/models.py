"""The models of the playground: the bundled ones, and where its weights are DINOv2-small, plain and tuned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from robvit.attacks import ATTACKS
from robvit.backbones import zoo
from robvit.backbones.download import on_disk
from robvit.backbones.heads import FeatureHead, load_head
from robvit.backbones.model import Model
from robvit.certification.dropping import TokenDropping
from robvit.data.cifar import CIFAR10_CLASSES
from robvit.defenses.tokens import RobustTokens
from robvit.errors import InputError, RobvitError, Unsupported, WrongBackbone
from robvit.loading import load
from robvit.progress import Log, silent

Part = TypeVar("Part", RobustTokens, FeatureHead)

FOUNDATION, TUNED, BUNDLED = "dinov2-small", "dinov2-small-robust", ("robvit-mini", "robvit-mini-robust")
SIZE = 112  # pixels; the side of the demo's images, a quarter of the cost of 224
OFF, SECRET, KNOWN = (
    "off",
    "secret",
    "known",
)  # tokens, and whether the attacker knows them


@dataclass(frozen=True)
class PlaygroundModel:
    """A model without and, where there are any, with its tokens, and the names of its classes."""

    name: str
    undefended: Model
    hardened: Model | None = None
    classes: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The side of the images it takes."""
        return self.undefended.input_size[0]

    @property
    def attacks(self) -> list[str]:
        """The attacks that make sense on it: iterated ones in L-inf, on features alone without classes."""
        return [
            entry.name
            for entry in ATTACKS
            if entry.info.kind == "budget"
            and "linf" in entry.info.norms
            and (entry.name == "fgsm" or "steps" in entry.info.defaults)
            and "queries" not in entry.info.defaults  # the ensembles take minutes
            and not (entry.info.needs or entry.info.batch_coupled)
            and entry.info.task in (("classes", "features") if self.classes else ("features",))
        ]

    @property
    def tokens(self) -> list[str]:
        """The settings of the tokens that it has."""
        return [OFF] if self.hardened is None else [OFF, SECRET, KNOWN]

    @property
    def note(self) -> str:
        """What a visitor should know who finds a control missing."""
        if self.classes and (self.hardened is not None or self.name == TUNED):
            return ""
        if self.name == TUNED:
            return (
                f"{TUNED} takes the classifier of {FOUNDATION}, which `robvit demo` makes; "
                "until then its features are attacked."
            )
        lacks = "has no tokens here" if self.hardened is None else "has tokens here"
        if not self.classes:
            lacks += " and no classifier, so its features are attacked and no class is named"
        remedy = (
            "`robvit demo` makes them; then start `robvit app` again in the same folder"
            if self.name == FOUNDATION
            else "`robvit robustify` makes them, `robvit app --tokens FILE` takes them; "
            "on so small a network they hardly help"
        )
        return f"{self.name} {lacks}: {remedy}."

    @property
    def uncertifiable(self) -> str:
        """Why no patch certificate can be had of it; nothing where one can."""
        if not self.classes:
            return f"{self.name} has no classes that a patch could change; give it a head"
        try:
            TokenDropping(self.undefended)
        except Unsupported as error:
            return str(error)
        return ""

    def pair(self, tokens: str) -> tuple[Model, Model]:
        """The model that is attacked and the model that is judged."""
        if tokens == OFF:
            return self.undefended, self.undefended
        assert self.hardened is not None
        return (self.undefended if tokens == SECRET else self.hardened), self.hardened


def playground_models(
    tokens: Path | None = None, head: Path | None = None, *, demo: Path | None = None, log: Log = silent
) -> dict[str, PlaygroundModel]:
    """All models by name; the files of tokens and head go to the model for whose weights they were made.

    What is not given is looked for in the folder of a demo, which may have been of another model or size:
    what fits none here is left out, and `log` hears of it.
    """
    names = [FOUNDATION, TUNED] if on_disk(zoo.resolve(FOUNDATION)) else []
    models = {name: load(name, img_size=SIZE) for name in names}
    models |= {name: load(name) for name in BUNDLED}
    places = (None, None) if demo is None else (demo / "tokens.safetensors", demo / "head.safetensors")
    robust = _part(tokens, places[0], RobustTokens.load, models, log)
    trained = _part(head, places[1], load_head, models, log)
    found = {}
    for name, model in models.items():
        if trained is not None and trained.fingerprint in (model.fingerprint(), model.original_fingerprint):
            trained.check(model)
            model = model.replace(head=trained)
        own = robust if robust is not None and robust.fingerprint == model.fingerprint() else None
        hardened = None if own is None else model.replace(tokens=own)
        found[name] = PlaygroundModel(name, model, hardened, _class_names(model))
    return found


def _part(
    given: Path | None,
    found: Path | None,
    read: Callable[[Path], Part],
    models: dict[str, Model],
    log: Log,
) -> Part | None:
    """What is in the file that was given, which must fit a model; else in the one that is found and does."""
    if given is not None:
        return _fitting(given, read, models)
    if found is None or not found.is_file():
        return None
    try:
        return _fitting(found, read, models)
    except RobvitError as error:
        log(f"the demo's {found.name} is left out: {error}")
        return None


def _fitting(path: Path, read: Callable[[Path], Part], models: dict[str, Model]) -> Part:
    made = read(path)
    own = [model for model in models.values() if model.fingerprint() == made.fingerprint]
    if not own:
        raise WrongBackbone(
            f"{path} was made for weights with fingerprint {made.fingerprint[:12] or 'unknown'}, "
            f"which none of the models here has: {', '.join(models)}; make it for one of them"
        )
    for model in own:
        made.check(model)
    return made


def _class_names(model: Model) -> list[str]:
    if model.classes == 0:
        return []
    if isinstance(model.head, FeatureHead) and model.head.kind == "segmentation":
        raise InputError("the playground shows whole images' classes; give a linear or knn head")
    named = model.head.names if isinstance(model.head, FeatureHead) else CIFAR10_CLASSES
    return list(named) or [f"class {i}" for i in range(model.classes)]
