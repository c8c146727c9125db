"""How transformers names the tensors of its vision networks, and timm the same ones; each way and back.

The names are those of published files and of `save_pretrained`. Nothing of transformers is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from timm.data import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    IMAGENET_INCEPTION_MEAN,
    IMAGENET_INCEPTION_STD,
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
)

from robvit.errors import InputError

Tensors = dict[str, torch.Tensor]
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Layout:
    """One kind of network: what its config calls it, and its names beside timm's.

    `inside` is what stands before the names where a classifier is beside them; `three` are query, key and
    value, which timm keeps as one; `unread` are tensors that decide no feature; `classifiers` maps the
    classes of transformers that classify to the head of robvit's that sees the same tokens.
    """

    kind: str
    network: str  # the class of transformers without a classifier
    timm_name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    inside: str
    blocks: str
    names: Pairs
    block_names: Pairs
    three: tuple[str, str, str]
    unread: tuple[str, ...] = ()
    classifiers: dict[str, str] = field(default_factory=dict)
    aliases: Pairs = ()  # how a network in memory calls what files call otherwise


_EMBEDDINGS = (
    ("cls_token", "embeddings.cls_token"),
    ("pos_embed", "embeddings.position_embeddings"),
    ("patch_embed.proj.", "embeddings.patch_embeddings.projection."),
    ("norm.", "layernorm."),
)
_ATTENTION = ("attention.attention.query.", "attention.attention.key.", "attention.attention.value.")
_DENSE = "attention.output.dense."
_DINOV2_BLOCK = (
    ("attn.proj.", _DENSE),
    ("ls1.gamma", "layer_scale1.lambda1"),
    ("ls2.gamma", "layer_scale2.lambda1"),
    ("norm", "norm"),
    ("mlp.fc1.", "mlp.weights_in."),  # of a gated MLP; a plain one keeps its names
    ("mlp.fc2.", "mlp.weights_out."),
    ("mlp.", "mlp."),
)
_VIT_BLOCK = (
    ("attn.proj.", _DENSE),
    ("norm1.", "layernorm_before."),
    ("norm2.", "layernorm_after."),
    ("mlp.fc1.", "intermediate.dense."),
    ("mlp.fc2.", "output.dense."),
)
_IN_MEMORY = (
    ("attention.q_proj.", _ATTENTION[0]),
    ("attention.k_proj.", _ATTENTION[1]),
    ("attention.v_proj.", _ATTENTION[2]),
    ("attention.o_proj.", _DENSE),
)

DINOV2 = Layout(
    "dinov2",
    "Dinov2Model",
    "vit_small_patch14_dinov2",
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    inside="dinov2.",
    blocks="encoder.layer.",
    names=_EMBEDDINGS,
    block_names=_DINOV2_BLOCK,
    three=_ATTENTION,
    unread=("embeddings.mask_token",),
    classifiers={"Dinov2ForImageClassification": "linear"},
    aliases=_IN_MEMORY,
)
REGISTERS = replace(
    DINOV2,
    kind="dinov2_with_registers",
    network="Dinov2WithRegistersModel",
    timm_name="vit_small_patch14_reg4_dinov2",
    inside="dinov2_with_registers.",
    names=(*_EMBEDDINGS, ("reg_token", "embeddings.register_tokens")),
    classifiers={"Dinov2WithRegistersForImageClassification": "linear"},
)
VIT = Layout(
    "vit",
    "ViTModel",
    "vit_base_patch16_224",
    IMAGENET_INCEPTION_MEAN,
    IMAGENET_INCEPTION_STD,
    inside="vit.",
    blocks="encoder.layer.",
    names=_EMBEDDINGS,
    block_names=_VIT_BLOCK,
    three=_ATTENTION,
    unread=("embeddings.mask_token", "pooler."),
    classifiers={"ViTForImageClassification": "linear-class"},
)
DEIT = replace(
    VIT,
    kind="deit",
    network="DeiTModel",
    timm_name="deit_base_distilled_patch16_224",
    mean=IMAGENET_DEFAULT_MEAN,
    std=IMAGENET_DEFAULT_STD,
    inside="deit.",
    names=(*_EMBEDDINGS, ("dist_token", "embeddings.distillation_token")),
    classifiers={
        "DeiTForImageClassification": "linear-class",
        "DeiTForImageClassificationWithTeacher": "linear-prefix",
    },
)
CLIP = Layout(
    "clip_vision_model",
    "CLIPVisionModel",
    "vit_base_patch16_clip_224",
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
    inside="vision_model.",
    blocks="encoder.layers.",
    names=(
        ("cls_token", "embeddings.class_embedding"),
        ("pos_embed", "embeddings.position_embedding.weight"),
        ("patch_embed.proj.", "embeddings.patch_embedding."),
        ("norm_pre.", "pre_layrnorm."),
        ("norm.", "post_layernorm."),
    ),
    block_names=(
        ("attn.proj.", "self_attn.out_proj."),
        ("norm1.", "layer_norm1."),
        ("norm2.", "layer_norm2."),
        ("mlp.", "mlp."),
    ),
    three=("self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."),
    unread=("embeddings.position_ids",),
    classifiers={"CLIPForImageClassification": "linear-mean"},
)
LAYOUTS = {layout.kind: layout for layout in (DINOV2, REGISTERS, VIT, DEIT, CLIP)}


def to_timm(layout: Layout, state: Tensors, path: object) -> Tensors:
    """A state in timm's names; a tensor that is no part of such a network is refused."""
    named: Tensors = {}
    parts: dict[str, list[torch.Tensor | None]] = {}
    back = tuple((theirs, ours) for ours, theirs in layout.names)
    block_back = tuple((theirs, ours) for ours, theirs in layout.block_names)
    for name, tensor in state.items():
        short = name.removeprefix(layout.inside)
        if short.startswith(layout.unread):
            continue
        block = re.match(rf"{re.escape(layout.blocks)}(\d+)\.(.+)$", short)
        ours = _renamed(block[2] if block else short, layout.aliases if block else ())
        which = next((i for i, one in enumerate(layout.three) if block and ours.startswith(one)), None)
        if block and which is not None:
            place = f"blocks.{block[1]}.attn.qkv.{ours.removeprefix(layout.three[which])}"
            parts.setdefault(place, [None] * 3)[which] = tensor
            continue
        known = block_back if block else back
        if not any(ours.startswith(theirs) for theirs, _ in known):
            raise InputError(
                f"{path}: {name!r} is no tensor of a {layout.network}; its config and its weights differ"
            )
        named[(f"blocks.{block[1]}." if block else "") + _renamed(ours, known)] = tensor
    for place, three in parts.items():
        whole = [one for one in three if one is not None]
        if len(whole) < 3:
            raise InputError(f"{path}: query, key and value of {place} must all be there; it is damaged")
        named[place] = torch.cat(whole)
    return _shaped_for_timm(layout, named)


def from_timm(layout: Layout, state: Tensors, *, gated: bool = False) -> Tensors:
    """A state of timm's in the layout's names; those of a classifier are left out."""
    named: Tensors = {}
    for name, tensor in state.items():
        if not name.startswith(("head", "fc_norm.")):
            named.update(_theirs(layout, name, tensor.detach().clone().contiguous(), gated))
    return named


def _theirs(
    layout: Layout, name: str, tensor: torch.Tensor, gated: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """One of timm's tensors under its other name; query, key and value come apart."""
    block = re.match(r"blocks\.(\d+)\.(.+)$", name)
    if block is None:
        if layout is CLIP and name == "cls_token":
            tensor = tensor.flatten()
        elif layout is CLIP and name == "pos_embed":
            tensor = tensor[0].contiguous()
        yield _renamed(name, layout.names), tensor
        return
    place, rest = f"{layout.blocks}{block[1]}.", block[2]
    if rest.startswith("attn.qkv."):
        for one, part in zip(layout.three, tensor.chunk(3), strict=True):
            yield place + one + rest.removeprefix("attn.qkv."), part.clone()
        return
    plain = layout.block_names if gated else tuple(p for p in layout.block_names if "weights_" not in p[1])
    yield place + _renamed(rest, plain), tensor


def _renamed(name: str, pairs: Pairs) -> str:
    """A name with its beginning changed by the first pair that fits."""
    for old, new in pairs:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _shaped_for_timm(layout: Layout, named: Tensors) -> Tensors:
    """The tensors in the shapes that timm gives them."""
    if layout is CLIP and "cls_token" in named:
        named["cls_token"] = named["cls_token"].reshape(1, 1, -1)
    if layout is CLIP and "pos_embed" in named:
        named["pos_embed"] = named["pos_embed"][None]
    if layout is REGISTERS and {"cls_token", "pos_embed"} <= named.keys():
        # timm's network gives the class token no position: it becomes a part of it.
        named["cls_token"] = named["cls_token"] + named["pos_embed"][:, :1]
        named["pos_embed"] = named["pos_embed"][:, 1:]
    return named
