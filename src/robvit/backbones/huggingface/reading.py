"""Networks from folders: those of transformers' `save_pretrained`, and those that timm keeps on the hub.

Only safetensors are opened, and `config.json`; transformers is not needed and no code of a folder is run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from robvit.backbones import zoo
from robvit.backbones.heads import HEADS, LinearHead
from robvit.backbones.huggingface.config import CONFIG, Config, read_config, read_object, read_preprocessor
from robvit.backbones.huggingface.layouts import REGISTERS, Tensors, to_timm
from robvit.backbones.validate import check_size, load_strict
from robvit.errors import InputError, Unsupported
from robvit.files import parse_json, read_text
from robvit.tensor_files import read_tensors

WEIGHTS, SHARDS = "model.safetensors", "model.safetensors.index.json"
PROJECTION = "visual_projection."
TEXT_TOWER = ("text_model.", "text_projection.", "logit_scale")
USUAL_SIDE = {518: 224}  # DINOv2 has positions for 518 pixels; its own preprocessor gives it 224


@dataclass(frozen=True)
class Opened:
    """A network of a folder, what it wants its pixels to be, and its classifier as a head, if it has one."""

    net: nn.Module
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: str = ""
    side: int | None = None
    classifier: Tensors = field(default_factory=dict)  # weight (K F), bias (K,)
    kind: str = ""  # the head that sees what the classifier saw
    names: tuple[str, ...] = ()

    def head(self, fingerprint: str) -> LinearHead | None:
        """The classifier as a head on the weights with this fingerprint."""
        if not self.classifier:
            return None
        weight, bias = self.classifier["weight"], self.classifier["bias"]
        make: Any = HEADS[self.kind]
        head: LinearHead = make(weight.shape[1], len(weight), fingerprint, list(self.names) or None)
        with torch.no_grad():
            head.linear.weight.copy_(weight)
            head.linear.bias.copy_(bias)
        return head.eval()


def open_transformers(folder: Path, side: int | None = None) -> Opened:
    """The network that `save_pretrained` wrote into a folder, for images of `side` pixels."""
    config = read_config(folder, read_object(folder / CONFIG))
    prepared = read_preprocessor(folder)
    tensors = {name: t for name, t in read_weights(folder).items() if not name.startswith(TEXT_TOWER)}
    classifier, kind = _classifier(config, tensors, folder)
    projection = tensors.pop(f"{PROJECTION}weight", None)
    state = to_timm(config.layout, tensors, folder)
    _check_depth(config.num_hidden_layers, state, folder)
    options = config.options()
    if options.get("final_norm") is False:
        state = {name: t for name, t in state.items() if not name.startswith("norm.")}
    if projection is not None:
        options["num_classes"] = len(projection)
        state |= {"head.weight": projection, "head.bias": torch.zeros(len(projection))}
    side = side or prepared.side or USUAL_SIDE.get(config.image_size, config.image_size)
    net = _built(config, options, state, folder, side)
    layout = config.layout
    mean, std = (prepared.image_mean or layout.mean), (prepared.image_std or layout.std)
    if not prepared.do_normalize:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    names = tuple(config.names) if len(config.names) == len(classifier.get("bias", ())) else ()
    return Opened(net, mean, std, prepared.resize, side, classifier, kind, names)


def _check_depth(told: int, state: Tensors, folder: Path) -> None:
    """Refuse a config with layers of which no tensor is there, before seconds are spent on building them."""
    held = len({name.split(".")[1] for name in state if name.startswith("blocks.")})
    if told > held:
        raise InputError(
            f"the weights of {folder} do not fit its {CONFIG}: it tells of {told} layers, {held} are there"
        )


def read_weights(folder: Path) -> Tensors:
    """The tensors of a folder, as 32-bit floats: of one file, or of the parts that an index names."""
    names = [WEIGHTS]
    if not (folder / WEIGHTS).is_file():
        names = shards_in(folder)
    tensors: Tensors = {}
    for name in names:
        tensors |= read_tensors(folder / name, "a file of weights")[0]
    return {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}


def shards_in(folder: Path) -> list[str]:
    """The names of the files that the weights of a folder are spread over."""
    if not (folder / SHARDS).is_file():
        raise InputError(
            f"{folder} has no {WEIGHTS}; pickles such as pytorch_model.bin are not opened: save it again "
            "with transformers' save_pretrained, which writes safetensors"
        )
    index = parse_json(read_text(folder / SHARDS, "an index of weights"), folder / SHARDS, "an index")
    held = index.get("weight_map") if isinstance(index, dict) else None
    names = sorted({str(name) for name in held.values()}) if isinstance(held, dict) else []
    if not names or any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
        raise InputError(f"{folder / SHARDS} must name safetensors files beside it, got {names[:3]}")
    return names


def _classifier(config: Config, tensors: Tensors, folder: Path) -> tuple[Tensors, str]:
    """The classifier among the tensors, taken out, and the kind of head that it is."""
    own = {name: tensors.pop(name) for name in list(tensors) if name.partition(".")[0].endswith("classifier")}
    if not own:
        return {}, ""
    try:
        if "cls_classifier.weight" in own:  # the mean of two linear layers is one on both their tokens
            weights = (own["cls_classifier.weight"], own["distillation_classifier.weight"])
            biases = (own["cls_classifier.bias"], own["distillation_classifier.bias"])
            found = {"weight": torch.cat(weights, 1) / 2, "bias": (biases[0] + biases[1]) / 2}
            kind = "linear-prefix"
        else:
            found = {"weight": own["classifier.weight"], "bias": own["classifier.bias"]}
            kind = next(iter(config.layout.classifiers.values()))
    except (KeyError, RuntimeError):
        raise InputError(f"{folder} is damaged: its classifier is not whole, got {sorted(own)}") from None
    width = config.hidden_size * (2 if kind in ("linear", "linear-prefix") else 1)
    if found["bias"].ndim != 1 or found["weight"].shape != (len(found["bias"]), width):
        got = tuple(found["weight"].shape)
        raise InputError(f"{folder} is damaged: its classifier must be (K {width}) with (K,), got {got}")
    return found, kind


def _built(config: Config, options: dict[str, Any], state: Tensors, folder: Path, side: int) -> nn.Module:
    """The network with its weights at its size; what does not fit is refused before memory is spent."""
    known = zoo.Known(str(folder), config.timm_name, config.model_type, "", 0.0, options=options)
    try:
        check_size(known, state, str(folder))
        if side != config.image_size:
            # What transformers does too: it smooths for DINOv2 with registers alone.
            smooth, prefix = config.layout is REGISTERS, 0 if config.layout is REGISTERS else config.prefix
            grid = side // config.patch_size
            state["pos_embed"] = interpolated(state["pos_embed"], grid, prefix, smooth=smooth)
        net = zoo.build(known, img_size=side)
    except (TypeError, AssertionError, RuntimeError, KeyError) as error:
        raise Unsupported(f"timm cannot build the network of {folder}: {error}") from None
    load_strict(net, state, str(folder))
    for part in net.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = config.layer_norm_eps
    return net


def interpolated(positions: torch.Tensor, side: int, prefix: int, *, smooth: bool = False) -> torch.Tensor:
    """Positions (1 P+M*M D) for another number of patches, bicubic: (1 P+side*side D)."""
    first, patches = positions[:, :prefix], positions[:, prefix:]
    before = math.isqrt(patches.shape[1])
    square = patches.reshape(1, before, before, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(square, size=(side, side), mode="bicubic", antialias=smooth)
    return torch.cat((first, resized.flatten(2).transpose(1, 2)), dim=1)
