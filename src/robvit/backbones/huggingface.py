"""DINOv2 between timm's names and Hugging Face's `Dinov2Model`; nothing of that library is needed.

net = Dinov2Model.from_pretrained(None, config=Dinov2Config(**config), state_dict=state)

The names are those of published checkpoints. transformers from version 5 calls the parts of attention
otherwise inside, and `from_pretrained` renames them; either form is read here.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from timm.layers.mlp import Mlp
from torch import nn

from robvit.backbones.model import Model
from robvit.errors import InputError, Unsupported

Tensors = dict[str, torch.Tensor]
THREE = ("query", "key", "value")
NOT_THERE = ("head.", "fc_norm.")  # a Dinov2Model has no classifier

# timm's names to Hugging Face's, each one way and back.
_NAMES = (
    ("cls_token", "embeddings.cls_token"),
    ("pos_embed", "embeddings.position_embeddings"),
    ("reg_token", "embeddings.register_tokens"),
    ("patch_embed.proj.", "embeddings.patch_embeddings.projection."),
    ("norm.", "layernorm."),
)
_BLOCK_NAMES = (
    ("attn.proj.", "attention.output.dense."),
    ("ls1.gamma", "layer_scale1.lambda1"),
    ("ls2.gamma", "layer_scale2.lambda1"),
)
# What a Dinov2Model in memory calls its attention since version 5: the names of published checkpoints.
_INSIDE = {
    "attention.q_proj.": "attention.attention.query.",
    "attention.k_proj.": "attention.attention.key.",
    "attention.v_proj.": "attention.attention.value.",
    "attention.o_proj.": "attention.output.dense.",
}


def to_huggingface(model: Model) -> tuple[Tensors, dict[str, Any]]:
    """The state of a `Dinov2Model` with the model's weights, and the settings of its `Dinov2Config`.

    With register tokens it is a `Dinov2WithRegistersModel`.
    """
    net: Any = model.net
    _check(model)
    state: Tensors = {}
    for name, tensor in net.state_dict().items():
        state |= _renamed(name, tensor.detach().clone().contiguous())
    positions, width = state["embeddings.position_embeddings"], model.width
    if net.no_embed_class:  # Hugging Face gives the class token a position
        state["embeddings.position_embeddings"] = torch.cat(
            (torch.zeros_like(positions[:, :1]), positions), 1
        )
    state["embeddings.mask_token"] = torch.zeros(1, width, dtype=positions.dtype)
    first = net.blocks[0]
    config: dict[str, Any] = {
        "hidden_size": width,
        "num_hidden_layers": len(net.blocks),
        "num_attention_heads": int(first.attn.num_heads),
        "mlp_ratio": first.mlp.fc1.out_features // width,
        "image_size": model.input_size[0],
        "patch_size": int(net.patch_embed.patch_size[0]),
        "hidden_act": "gelu",
        "layer_norm_eps": float(net.norm.eps),
        "qkv_bias": first.attn.qkv.bias is not None,
        "use_swiglu_ffn": False,
    }
    if "embeddings.register_tokens" in state:
        config["num_register_tokens"] = int(state["embeddings.register_tokens"].shape[1])
    return state, config


def from_huggingface(state: Tensors) -> Tensors:
    """A `Dinov2Model`'s state in timm's names; with registers, the class token takes its position in."""
    names = {theirs: ours for ours, theirs in _NAMES}
    renamed: Tensors = {}
    three: dict[str, Tensors] = {}
    for name, tensor in state.items():
        if name == "embeddings.mask_token":
            continue
        if block := re.match(r"encoder\.layer\.(\d+)\.(.+)$", name):
            rest = block[2]
            for inside, published in _INSIDE.items():
                rest = rest.replace(inside, published)
            if part := re.match(r"attention\.attention\.(query|key|value)\.(\w+)$", rest):
                three.setdefault(f"blocks.{block[1]}.attn.qkv.{part[2]}", {})[part[1]] = tensor
                continue
            for ours, theirs in _BLOCK_NAMES:
                rest = rest.replace(theirs, ours)
            renamed[f"blocks.{block[1]}.{rest}"] = tensor
            continue
        known = next((theirs for theirs in names if name.startswith(theirs)), None)
        if known is None:
            raise InputError(
                f"{name!r} is no name of a Dinov2Model; expected embeddings, encoder or layernorm"
            )
        renamed[names[known] + name.removeprefix(known)] = tensor
    renamed |= {name: torch.cat([parts[one] for one in THREE]) for name, parts in three.items()}
    if "reg_token" in renamed:
        renamed["cls_token"] = renamed["cls_token"] + renamed["pos_embed"][:, :1]
        renamed["pos_embed"] = renamed["pos_embed"][:, 1:]
    return renamed


def write_huggingface(
    model: Model, path: Path, facts: dict[str, str]
) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
    """Write the state of a `Dinov2Model`; what it answers once read back: features, and logits if any."""
    state, config = to_huggingface(model)
    save_file(state, path, facts | {"format": "pt", "config": json.dumps(config)})
    twin = copy.deepcopy(model)
    own = {name: t for name, t in twin.net.state_dict().items() if name.startswith(NOT_THERE)}
    twin.net.load_state_dict(from_huggingface(load_file(path)) | own)
    return twin.features_and_logits


def huggingface_lines(path: str | Path) -> list[str]:
    """The lines of Python that load such a file without robvit."""
    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["config"])
    kind = "Dinov2WithRegisters" if "num_register_tokens" in config else "Dinov2"
    settings = ", ".join(f"{name}={value!r}" for name, value in config.items())
    return [
        f"config = transformers.{kind}Config({settings})",
        f"state = safetensors.torch.load_file({str(path)!r})",
        f"net = transformers.{kind}Model.from_pretrained(None, config=config, state_dict=state)",
    ]


def _renamed(name: str, tensor: torch.Tensor) -> Tensors:
    """One of timm's tensors by its new name; query, key and value come apart, a classifier is left out."""
    if name.startswith(NOT_THERE):
        return {}
    if block := re.match(r"blocks\.(\d+)\.(.+)$", name):
        prefix, rest = f"encoder.layer.{block[1]}.", block[2]
        if rest.startswith("attn.qkv."):
            end = rest.removeprefix("attn.qkv.")
            parts = zip(THREE, tensor.chunk(3), strict=True)
            return {f"{prefix}attention.attention.{one}.{end}": part.clone() for one, part in parts}
        for ours, theirs in _BLOCK_NAMES:
            rest = rest.replace(ours, theirs)
        return {prefix + rest: tensor}
    ours, theirs = next(pair for pair in _NAMES if name.startswith(pair[0]))
    return {theirs + name.removeprefix(ours): tensor}


def _check(model: Model) -> None:
    """Refuse what a `Dinov2Model` cannot express."""
    net: Any = model.net
    fits = model.family.name == "vit" and model.has_class_token and isinstance(net.norm_pre, nn.Identity)
    fits = fits and all(
        hasattr(b.ls1, "gamma") and type(b.mlp) is Mlp and isinstance(b.attn.q_norm, nn.Identity)
        for b in net.blocks
    )
    if not fits or model.input_size[0] != model.input_size[1]:
        raise Unsupported(
            f"{model.name} is no DINOv2 that Hugging Face's Dinov2Model can be; expected a square ViT with a "
            "class token, layer scales and a plain MLP; use the timm layout"
        )
    if model.hardened or model.adapters is not None or model.head is not None:
        raise Unsupported("a Dinov2Model has no place for tokens, adapters or a head; load it without them")
