"""The settings in the folder of a network: transformers' `config.json` and `preprocessor_config.json`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import BaseModel, Field, ValidationError

from robvit.backbones.huggingface.layouts import CLIP, DEIT, DINOV2, LAYOUTS, REGISTERS, Layout
from robvit.decoding import CROP_SHARE
from robvit.errors import InputError, Unsupported
from robvit.files import parse_json, read_text

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
CONFIG_BYTES = 4 * 2**20  # the names of twenty thousand classes are smaller
SIZES = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge", 1536: "giant"}

Count = Annotated[int, Field(ge=1, le=2**16)]
Side = Annotated[int, Field(ge=1, le=4096)]
Colours = Annotated[tuple[float, ...], Field(min_length=3, max_length=3)]
# transformers' names of activations: timm's.
ACTIVATIONS = {
    "gelu": "gelu",
    "quick_gelu": "quick_gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


class Config(BaseModel):
    """What a `config.json` tells of a network; a file may say anything."""

    model_type: str
    architectures: list[str] = []
    hidden_size: Count
    num_hidden_layers: Annotated[int, Field(ge=1, le=512)]
    num_attention_heads: Count
    image_size: Side
    patch_size: Side
    num_channels: Literal[3] = 3
    hidden_act: str = "gelu"
    layer_norm_eps: Annotated[float, Field(gt=0, le=1)] = 1e-6
    qkv_bias: bool = True
    mlp_ratio: Annotated[float, Field(gt=0, le=64)] = 4.0
    intermediate_size: Count | None = None
    use_swiglu_ffn: bool = False
    num_register_tokens: Annotated[int, Field(ge=0, le=4096)] = 4
    id2label: dict[int, str] = {}

    @property
    def layout(self) -> Layout:
        """How its tensors are called."""
        return LAYOUTS[self.model_type]

    @property
    def names(self) -> list[str]:
        """The names of its classes in order; none where they are LABEL_0, LABEL_1, which name nothing."""
        names = [self.id2label[i] for i in range(len(self.id2label)) if i in self.id2label]
        content = len(names) == len(self.id2label) and names != [f"LABEL_{i}" for i in range(len(names))]
        return names if content else []

    def options(self) -> dict[str, Any]:
        """timm's settings for the same network, without a classifier."""
        if self.hidden_act not in ACTIVATIONS:
            raise Unsupported(
                f"the activation {self.hidden_act!r} is not known; {', '.join(ACTIVATIONS)} are"
            )
        if self.hidden_size % self.num_attention_heads or self.image_size < self.patch_size:
            raise InputError("its width must be a multiple of its heads, and an image larger than a patch")
        options: dict[str, Any] = {
            "img_size": self.image_size,
            "patch_size": self.patch_size,
            "embed_dim": self.hidden_size,
            "depth": self.num_hidden_layers,
            "num_heads": self.num_attention_heads,
            "qkv_bias": self.qkv_bias,
            "num_classes": 0,
        }
        inner = self.intermediate_size or int(self.hidden_size * self.mlp_ratio)
        if self.layout in (DINOV2, REGISTERS):
            inner = int(self.hidden_size * self.mlp_ratio)
            options["init_values"] = 1e-5
        if self.layout is REGISTERS:
            options |= {"reg_tokens": self.num_register_tokens, "no_embed_class": True}
        if self.gated:  # two thirds of the width, twice, rounded up to eights
            inner = 2 * ((inner * 2 // 3 + 7) // 8 * 8)
        else:
            options["act_layer"] = ACTIVATIONS[self.hidden_act]
        if self.layout is CLIP and self.architectures == ["CLIPForImageClassification"]:
            options["final_norm"] = False  # its classifier sees tokens that are not normalised
        # A hair more, because timm takes the whole part of the product.
        return options | {"mlp_ratio": math.nextafter(inner / self.hidden_size, math.inf)}

    @property
    def gated(self) -> bool:
        """Whether its MLP is a SwiGLU, which only DINOv2 has."""
        return self.use_swiglu_ffn and self.layout in (DINOV2, REGISTERS)

    @property
    def timm_name(self) -> str:
        """A network of timm's that is like it but for its settings."""
        if not self.gated:
            return self.layout.timm_name
        return "vit_giant_patch14_dinov2" if self.layout is DINOV2 else "vit_giant_patch14_reg4_dinov2"

    def twin(self) -> str:
        """The network of timm's that is built alike, if there is one."""
        size = SIZES.get(self.hidden_size, "")
        if self.layout is CLIP:
            quick = "quickgelu_" * (self.hidden_act == "quick_gelu")
            name = f"vit_{size}_patch{self.patch_size}_clip_{quick}224"
        elif self.layout in (DINOV2, REGISTERS):
            name = f"vit_{size}_patch{self.patch_size}_{'reg4_' * (self.layout is REGISTERS)}dinov2"
        elif self.layout is DEIT:
            name = f"deit_{size}_distilled_patch{self.patch_size}_224"
        else:
            name = f"vit_{size}_patch{self.patch_size}_224"
        import timm

        if not timm.is_model(name):
            return ""
        with torch.device("meta"):
            net: Any = timm.create_model(name, num_classes=0)
        own = (len(net.blocks), net.blocks[0].attn.num_heads, net.blocks[0].mlp.fc1.out_features)
        inner = int(self.hidden_size * self.options()["mlp_ratio"])
        return name if own == (self.num_hidden_layers, self.num_attention_heads, inner) else ""

    @property
    def prefix(self) -> int:
        """How many positions come before those of the patches."""
        return 2 if self.layout is DEIT else 1


class Preprocessor(BaseModel):
    """What a `preprocessor_config.json` tells of images."""

    image_mean: Colours | None = None
    image_std: Colours | None = None
    do_normalize: bool = True
    do_center_crop: bool = False
    size: int | dict[str, int | None] | None = None
    crop_size: int | dict[str, int | None] | None = None

    @property
    def side(self) -> int | None:
        """The side of the images it makes, if they are square."""
        if self.do_center_crop and self.crop_size is not None:
            return _square(self.crop_size)
        return _square(self.size)

    @property
    def resize(self) -> str:
        """robvit's word for how images become square, where it has one."""
        if not self.do_center_crop:
            return "squash" if isinstance(self.size, dict) and "height" in self.size else ""
        edge = self.size.get("shortest_edge") if isinstance(self.size, dict) else self.size
        side = self.side
        return "crop" if edge and side and abs(side / edge - CROP_SHARE) < 0.01 else ""


Read = TypeVar("Read", Config, Preprocessor)


def read_config(folder: Path, content: dict[str, Any]) -> Config:
    """The network that a folder's `config.json` tells of; of CLIP, its image tower."""
    kind = content.get("model_type")
    if kind == "clip" and isinstance(content.get("vision_config"), dict):
        tower = {key: content[key] for key in ("architectures", "id2label") if key in content}
        content, kind = content["vision_config"] | tower | {"model_type": CLIP.kind}, CLIP.kind
    if kind not in LAYOUTS:
        raise Unsupported(
            f"{folder}: expected transformers' {', '.join(LAYOUTS)} or clip, got model_type {kind!r}; "
            "load other networks yourself and give the module to robvit.load"
        )
    defaults: dict[str, Any] = {"layer_norm_eps": 1e-12} if kind in ("vit", "deit") else {}
    defaults |= {"layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"} if kind == CLIP.kind else {}
    return _validated(Config, defaults | content, folder / CONFIG)


def read_preprocessor(folder: Path) -> Preprocessor:
    """How images are prepared for a folder's network; nothing is told where there is no such file."""
    path = folder / PREPROCESSOR
    if not path.is_file():
        return Preprocessor()
    return _validated(Preprocessor, read_object(path), path)


def read_object(path: Path) -> dict[str, Any]:
    """The settings of a JSON file from elsewhere."""
    content = parse_json(read_text(path, "a file of settings", CONFIG_BYTES), path, "a file of settings")
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected settings by name, got {type(content).__name__}")
    return {key: value for key, value in content.items() if value is not None}


def _validated(kind: type[Read], content: dict[str, Any], path: Path) -> Read:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        flaw = error.errors()[0]
        place = ".".join(map(str, flaw["loc"]))
        raise InputError(f"{path} is damaged: {place}: {flaw['msg']}") from None


def _square(size: int | dict[str, int | None] | None) -> int | None:
    if isinstance(size, dict):
        sides = {size.get("height"), size.get("width")}
        side = sides.pop() if len(sides) == 1 else None
    else:
        side = size
    return side if side is not None and 1 <= side <= 4096 else None
