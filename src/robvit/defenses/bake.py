"""Baking tokens into a plain checkpoint: they become register tokens, so that serving needs no robvit.

The file then carries the secret, and says so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from robvit.backbones.model import Model
from robvit.defenses.tokens import RobustTokens
from robvit.errors import InputError, Unsupported
from robvit.files import written_whole

WARNING = "this file carries secret robustness tokens in its register tokens; keep it as you keep a key"
FORMATS = ("timm", "dinov2")


def bake(
    model: Model, tokens: RobustTokens, format: str = "timm"
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A state dict in which the tokens are registers, and timm's settings for the network that takes it.

    "timm" is timm's own layout, without positions for class token and registers. "dinov2" is that of
    the hub's DINOv2 with registers, which gives the class token its position back.
    """
    tokens.check(model)
    if tokens.layers != (0,):
        raise Unsupported(
            f"tokens in layers {', '.join(map(str, tokens.layers))} cannot be baked: register tokens enter "
            "before the first block only; serve these with robvit.load(..., tokens=...)"
        )
    net: Any = model.net
    plain = model.family.plain_walk and isinstance(net.norm_pre, nn.Identity) and net.has_class_token
    if not plain:
        raise Unsupported(
            f"{model.name} has no place for registers behind its position embedding; "
            "tokens can be baked into ViT, DeiT-III and DINOv2, not into CLIP or RoPE models"
        )
    if format not in FORMATS:
        raise InputError(f"format must be {' or '.join(FORMATS)}, got {format!r}")
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    prefix, positions = net.num_prefix_tokens, state["pos_embed"]
    first = torch.zeros_like(state["cls_token"])
    registers = [state.pop("reg_token")] if "reg_token" in state else []
    if not net.no_embed_class:  # positions of class token and registers become part of them
        first, positions = positions[:, :1], positions[:, prefix:]
        registers = [r + state["pos_embed"][:, 1:prefix] for r in registers]
    together = torch.cat((*registers, tokens.values.to(first)), dim=1)
    options = {
        "img_size": list(model.input_size),
        "reg_tokens": together.shape[1],
        "no_embed_class": True,
        "num_classes": int(net.num_classes),
    }
    if format == "timm":
        state |= {"cls_token": state["cls_token"] + first, "pos_embed": positions, "reg_token": together}
    else:
        state |= {
            "pos_embed": torch.cat((first, positions), dim=1),
            "register_tokens": together,
            "mask_token": torch.zeros_like(first[:, 0]),
        }
    return {name: tensor.contiguous() for name, tensor in state.items()}, options


def save_baked(
    model: Model,
    tokens: RobustTokens,
    path: str | Path,
    *,
    timm_name: str,
    format: str = "timm",
    about: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Write the baked checkpoint for the owner's eyes only; timm's settings stand in its metadata."""
    state, options = bake(model, tokens, format)
    facts = {"timm_name": timm_name, "timm_options": json.dumps(options), "warning": WARNING}
    facts = (about or {}) | facts | {"layout": format}
    with written_whole(path, mode=0o600) as aside:
        save_file(state, aside, facts)
    return options
