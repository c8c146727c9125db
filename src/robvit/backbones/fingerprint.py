"""What names a network's weights, whatever the size of its input and however they are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from robvit.tensor_files import tensors_sha256

if TYPE_CHECKING:
    from robvit.backbones.model import Model

# What depends on the input's size or is recomputed by timm, and so says nothing about the weights.
_SIZE_DEPENDENT = ("pos_embed", "relative_position_index", "attn_mask", "attention_bias_idxs", "rope.")


def fingerprint(net: nn.Module) -> str:
    """SHA-256 of a backbone's weights: the same at any input size, another for other weights."""
    state = net.state_dict()
    weights = {
        name: tensor
        for name, tensor in state.items()
        if not name.startswith("head") and not any(part in name for part in _SIZE_DEPENDENT)
    }
    position = state.get("pos_embed")
    if "cls_token" in weights and position is not None and not getattr(net, "no_embed_class", True):
        # The network only sees the sum; exports fold it, so how it is split says nothing.
        weights["cls_token"] = weights["cls_token"] + position[:, :1]
    return tensors_sha256(weights)


def identity(model: Model, salt: str) -> str:
    """SHA-256 of everything that decides a model's output, salted where that is secret."""
    state = {**model.state_dict(), "mean": model.mean, "std": model.std}
    if model.extra is not None:
        state["extra"] = model.extra
        if model.layers != (0,):
            state["layers"] = torch.tensor(model.layers)
    for i, one in enumerate(model.pool.sets if model.pool else ()):
        state |= {f"pool {i}": one.values, f"pool {i} layers": torch.tensor(one.layers)}
    return tensors_sha256(state, salt)


def facts(model: Model) -> dict[str, Any]:
    """What a record tells of a model: its name, and what decides its output."""
    sets = [] if model.pool is None else [one.values for one in model.pool.sets]
    sets = sets if model.extra is None else [model.extra]
    found: dict[str, Any] = {
        "name": model.name,
        "identity": model.identity(),
        "fingerprint": model.fingerprint(),
        "input": list(model.input_size),
        "tokens": sets[0].shape[1] if sets else 0,
    }
    known = {"tuned from": model.original_fingerprint, "hub revision": model.revision}
    found |= {what: value for what, value in known.items() if value}
    return found if model.adapters is None else found | {"trade-off": model.trade_off}
