"""What names a network's weights, whatever the size of its input and however they are stored."""

from __future__ import annotations

from torch import nn

from robvit.files import tensors_sha256

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
