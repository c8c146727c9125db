"""`robvit.load`: one door to every model, with its weights, its tokens and its head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from robvit import plugins
from robvit.backbones import download, folders, weights, zoo
from robvit.backbones import validate as checked
from robvit.backbones.building import Size, build_adapted, fill
from robvit.backbones.heads import FeatureHead, load_head
from robvit.backbones.model import Model
from robvit.backbones.normalising import Normalise, statistics
from robvit.backbones.trained_on import agreed_size
from robvit.defenses.lora import LoRA
from robvit.defenses.pool import TokenPool, load_tokens
from robvit.defenses.tokens import RobustTokens
from robvit.defenses.tora.io import adapted, load_adapters
from robvit.defenses.tora.modules import Adapters
from robvit.errors import InputError, RobvitError
from robvit.sharing import kind_on_hub, shared_kind

# timm builds DINOv2 for 518x518; its users and the papers take 224, at a tenth of the cost.
USUAL_SIZE = {"dinov2": 224}


def load(
    name: str | nn.Module,
    *,
    pretrained: bool = True,
    tokens: RobustTokens | TokenPool | str | Path | None = None,
    head: FeatureHead | str | Path | None = None,
    lora: LoRA | str | Path | None = None,
    adapters: Adapters | str | Path | None = None,
    img_size: Size | None = None,
    patch_size: int | None = None,
    num_classes: int | None = None,
    drop_path: float = 0.0,
    normalise: Normalise = "model",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pos_embed: Literal["timm", "hub"] = "timm",
    arch: str | None = None,
) -> Model:
    """A model on pixels, ready to judge or attack: (B 3 H W) in [0,1] to logits (B K).

    Tokens, head, adapters and LoRA are objects, files, folders of `save_pretrained` or hf:OWNER/NAME, and are
    refused if they belong to other weights.

    name: an alias (`robvit models`), any timm name, the path of a checkpoint, hf:OWNER/NAME on the hub, a
        folder of transformers' or timm's, "module:function", which is imported and called, or a network of
        your own, which is taken as it is; NAME@COMMIT takes the weights of that commit of the hub's
        repository
    pretrained: whether to load weights, or start from random ones
    tokens: robustness tokens, or a pool, of which every call draws a set: attack that with `eot`
    head: a head on frozen features
    adapters: TORA's, which bring heads of their own
    lora: factors that are merged into the weights; heads of the original still fit, tokens and adapters
        must have been trained on the result
    img_size, patch_size: another size, if left out that of what the model carries or its own; positions and
        patch embeddings are resampled, the stem of an XCiT strides less
    num_classes: another number of classes, with a classifier that starts afresh
    drop_path: stochastic depth, for training
    normalise: the network's own statistics unless you know better; the published robust XCiT checkpoints,
        given as a file with arch="xcit-s12" and its like, take "none"
    mean, std: the same as numbers for each channel, both together
    pos_embed: how positions are interpolated to another size: as timm does, or as the DINOv2 hub does
        ("hub"), which the published tokens were trained with
    arch: the network of a checkpoint that does not say what it is: a name, or "module:function"
    """
    if (mean is None) != (std is None):
        raise InputError("mean and std belong together; give both, or normalise=")
    if mean is not None and std is not None:
        normalise = (tuple(mean), tuple(std))
    lora = _own_lora(name, lora) if pretrained and isinstance(name, str) else lora
    parts = _Parts.opened(tokens=tokens, head=head, lora=lora, adapters=adapters)
    positions = None if pos_embed == "timm" else pos_embed
    fresh: dict[str, Any] = {"num_classes": num_classes, "patch_size": patch_size, "pos_embed": positions}
    fresh["drop_path"] = drop_path or None
    if isinstance(name, nn.Module):
        _refuse_fresh(fresh | {"arch": arch}, f"this {type(name).__name__} is built")
        return parts.on(wrap(name, normalise, img_size))
    code = arch if arch and plugins.is_spec(arch) else name
    if plugins.is_spec(code) and not code.startswith(zoo.TORCHVISION) and not zoo.is_folder(code):
        _refuse_fresh(fresh, f"{code} builds its own")
        model = brought(plugins.made(code), name, normalise, img_size)
        if code != name:  # a checkpoint of that network
            _fill_brought(model, name)
        return parts.on(model)
    img_size = parts.size() if img_size is None else img_size
    if zoo.is_folder(name):
        alone = {"patch_size": patch_size, "num_classes": num_classes, "drop_path": drop_path or None}
        folders.refuse(name, pretrained=pretrained or None, **alone)
        return parts.on(
            folders.open_folder(name, normalise=normalise, img_size=img_size, pos_embed=pos_embed)
        )
    path = zoo.local_file(name)
    tensors, origin = weights.state_dict(name) if pretrained else (None, None)
    named = arch or (origin.timm_name if path and origin else name)
    if not named:
        raise InputError(
            f"{name} does not say which network it holds; name it with arch=, such as arch='xcit-s12'"
        )
    try:
        known = zoo.resolve(named)
    except RobvitError as error:
        raise InputError(f"{name}: {error}") if path and not arch else error from None
    if path and tensors is not None:
        checked.check_size(known, tensors, name)
    trained = origin.build if origin else {}
    size = img_size or trained.get("img_size") or USUAL_SIZE.get(known.family)
    size = tuple(size) if isinstance(size, list) else size
    classes = trained.get("num_classes") if num_classes is None else num_classes
    if classes is None and path and tensors is not None:
        classes = checked.classes_in(tensors)
    patch_size = patch_size or trained.get("patch_size")
    net = build_adapted(known, img_size=size, patch_size=patch_size, num_classes=classes, drop_path=drop_path)
    if tensors is not None:
        fill(net, tensors, name, pos_embed, keep_head=num_classes is None)
    if path and normalise == "model":
        normalise = trained.get("normalise") or ("none" if known.raw else "model")
    own = statistics(net, normalise)
    size = img_size or trained.get("img_size")
    size = (size, size) if isinstance(size, int) else size and tuple(size)
    model = Model(
        net,
        name=name,
        mean=own[0],
        std=own[1],
        input_size=size,
        original=trained.get("original") or "",
        revision=origin.revision if origin else "",
        names=trained.get("names") or () if num_classes is None else (),
        usual_resize=trained.get("resize") or "",
    )
    return parts.on(model.eval())


def _refuse_fresh(options: dict[str, Any], why: str) -> None:
    """Refuse options of networks that robvit builds for one that comes from elsewhere."""
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{option} is for networks that robvit builds; {why}")


def brought(made: Any, name: str, normalise: Normalise, img_size: Size | None) -> Model:
    """What a function of somebody's returned as a model of that name: a model of robvit's, or a network."""
    if isinstance(made, Model):
        wanted = (img_size, img_size) if isinstance(img_size, int) else img_size
        if wanted is not None and made.input_size != tuple(wanted):
            raise InputError(f"{name} returns a model for {made.input_size[0]} pixels, not for {img_size}")
        if normalise != "model":
            raise InputError(
                f"{name} returns a model that normalises by itself; leave normalise, mean and std out"
            )
        return made.replace(name=name).eval()
    if not isinstance(made, nn.Module):
        raise InputError(
            f"{name} must return a network, a torch.nn.Module, got {type(made).__name__}; "
            "a plain function is taken by `attack`, `evaluate`, `check`, `doctor` and `review` alone"
        )
    if normalise == "model" and not says_normalisation(made):
        raise InputError(
            f"nothing tells how the network of {name} wants its pixels normalised; have it return "
            "robvit.Model(net, mean=..., std=...)"
        )
    return wrap(made, normalise, img_size).replace(name=name)


def _fill_brought(model: Model, path: str) -> None:
    """Load a checkpoint into a network of somebody's, whose classifier may have been made anew since."""
    tensors, origin = weights.state_dict(path)
    net: Any = model.net
    classes = origin.build.get("num_classes")
    if classes is not None and classes != model.classes and hasattr(net, "reset_classifier"):
        net.reset_classifier(classes)
    checked.load_strict(net, tensors, path)


def says_normalisation(net: nn.Module) -> bool:
    """Whether a network tells how it wants its pixels, as timm's do."""
    return bool(getattr(net, "pretrained_cfg", None))


def wrap(net: nn.Module, normalise: Normalise, img_size: Size | None) -> Model:
    """A network of anybody's as a model on pixels; if it is not timm's, its normalisation must be told."""
    if isinstance(net, Model):
        raise InputError(f"{net.name} is a model of robvit's already; use it as it is, or model.replace(...)")
    if normalise == "model" and not says_normalisation(net):
        raise InputError(
            f"nothing tells how {type(net).__name__} wants its pixels normalised; give mean= and std=, "
            'or normalise="none" if it does so itself'
        )
    mean, std = statistics(net, normalise)
    size = (img_size, img_size) if isinstance(img_size, int) else img_size
    return Model(net, mean=mean, std=std, input_size=size).eval()


@dataclass(frozen=True)
class _Parts:
    """What a model is to carry."""

    lora: LoRA | None
    head: FeatureHead | None
    tokens: RobustTokens | TokenPool | None
    adapters: Adapters | None

    @classmethod
    def opened(
        cls,
        *,
        tokens: RobustTokens | TokenPool | str | Path | None,
        head: FeatureHead | str | Path | None,
        lora: LoRA | str | Path | None,
        adapters: Adapters | str | Path | None,
    ) -> _Parts:
        """The parts as objects, read where they are files."""
        return cls(
            _opened(lora, LoRA, LoRA.load),
            _opened(head, FeatureHead, load_head),
            _opened(tokens, RobustTokens, load_tokens),
            _opened(adapters, Adapters, load_adapters),
        )

    def size(self) -> tuple[int, int] | None:
        """The image size that they were trained on."""
        return agreed_size(vars(self))

    def on(self, model: Model) -> Model:
        """The model with them, each checked against its weights."""
        if self.lora is not None:
            model = self.lora.merge(model)
        if self.head is not None:
            self.head.check(model)
            model = model.replace(head=self.head)
        if self.tokens is not None:
            self.tokens.check(model)
            model = model.replace(tokens=self.tokens)
        if self.adapters is not None:
            if self.head is not None:
                raise InputError("adapters bring heads of their own; give adapters or a head, not both")
            model = adapted(model, self.adapters)
        return model


def _opened(part: Any, kind: Any, read: Callable[[str | Path], Any]) -> Any:
    """A part as it is, or from its file, or from a folder of `save_pretrained` here or on the hub."""
    if not isinstance(part, str | Path):
        return part
    start = next((one for one in zoo.HUB if str(part).startswith(one)), "")
    if not start and not Path(part).is_dir():
        return read(part)
    place = str(part).removeprefix(start)
    if kind is RobustTokens:
        shared = kind_on_hub(place) if start else shared_kind(Path(part))
        kind = TokenPool if shared == TokenPool.shared_as else kind
    return kind.from_pretrained(place)


def _own_lora(name: str, lora: LoRA | str | Path | None) -> LoRA | str | Path | None:
    """The LoRA to merge: the one given or, for an alias that is a tuned network, the one that is bundled."""
    known = zoo.ALIASES.get(name)
    if known is None or not known.tuned_from:
        return lora
    if lora is not None:
        raise InputError(f"{name} has a LoRA of its own; load {known.tuned_from} with lora= for another")
    return download.bundled_path(known)
