"""Files of other projects' packages to state dicts in timm's names; pure functions of the bytes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

Tensors = dict[str, torch.Tensor]

# Hugging Face's names to timm's, in the order in which they are applied.
_VIT_NAMES = (
    (r"^vit\.", ""),
    (r"^embeddings\.cls_token", "cls_token"),
    (r"^embeddings\.position_embeddings", "pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"^encoder\.layer\.", "blocks."),
    (r"attention\.attention\.(query|key|value)", r"attn.\1"),
    (r"attention\.output\.dense", "attn.proj"),
    (r"intermediate\.dense", "mlp.fc1"),
    (r"output\.dense", "mlp.fc2"),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"^layernorm", "norm"),
    (r"^classifier", "head"),
)
_CLIP_NAMES = (
    (r"^vision_model\.", ""),
    (r"^embeddings\.class_embedding", "cls_token"),
    (r"^embeddings\.position_embedding\.weight", "pos_embed"),
    (r"^embeddings\.patch_embedding", "patch_embed.proj"),
    (r"^pre_layrnorm", "norm_pre"),  # spelt so in the graph
    (r"^post_layernorm", "norm"),
    (r"^encoder\.layers\.", "blocks."),
    (r"self_attn\.q_proj", "attn.query"),
    (r"self_attn\.k_proj", "attn.key"),
    (r"self_attn\.v_proj", "attn.value"),
    (r"self_attn\.out_proj", "attn.proj"),
    (r"layer_norm", "norm"),
    (r"^visual_projection", "head"),
)


def dinov2_onnx(data: bytes) -> Tensors:
    """DINOv2 from an export of Meta's own model; position embedding (1 1+37*37 D)."""
    initial, nodes = _graph(data)
    tensors = {name.removeprefix("model."): t for name, t in initial.items() if name.startswith("model.")}
    for node in nodes:
        if node.op_type == "MatMul" and node.input[1] in initial:
            # The exporter folds the transpose of every linear layer into its weight.
            tensors[_layer(node.name, "/MatMul")] = initial[node.input[1]].T
    # The exporter stores equal tensors once: the class token's position is the class token itself.
    patches = initial["onnx::Reshape_1360"]
    tensors["pos_embed"] = torch.cat([tensors["cls_token"], patches], dim=1)
    return _tidy(tensors)


def vit_int8(data: bytes) -> Tensors:
    """A ViT classifier in Hugging Face names, each tensor in 8 bits with its scale and zero point."""
    from safetensors.torch import load

    raw = load(data)
    tensors = {
        name: (raw[name].float() - raw[f"{name}_zero_point"]) * raw[f"{name}_scale"]
        for name in raw
        if not name.endswith(("_scale", "_zero_point"))
    }
    return _tidy(_fuse_qkv(_rename(tensors, _VIT_NAMES)))


def clip_int8_onnx(data: bytes) -> Tensors:
    """CLIP's image tower from a dynamically quantised export; the projection becomes a head without bias."""
    initial, nodes = _graph(data)
    tensors = {name: t for name, t in initial.items() if name.startswith("vision_model.")}
    for node in nodes:
        if node.op_type == "MatMulInteger":
            weight, zero = initial[node.input[1]], initial[node.input[3]]  # (in out), (out,)
            scale = initial[node.input[1].removesuffix("_quantized") + "_scale"]  # (out,)
            tensors[_layer(node.name, "/MatMul_quant")] = ((weight.float() - zero.float()) * scale).T
    tensors = _fuse_qkv(_rename(tensors, _CLIP_NAMES))
    tensors["cls_token"] = tensors["cls_token"].reshape(1, 1, -1)
    tensors["pos_embed"] = tensors["pos_embed"].unsqueeze(0)
    tensors["head.bias"] = torch.zeros(len(tensors["head.weight"]))  # timm's head has one
    return _tidy(tensors)


def _graph(data: bytes) -> tuple[Tensors, list[Any]]:
    """An ONNX graph's stored tensors by name, and its nodes."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_model_from_string(data).graph
    # A copy, because onnx hands out read-only views of its buffers.
    initial = {i.name: torch.from_numpy(np.array(numpy_helper.to_array(i))) for i in graph.initializer}
    return initial, list(graph.node)


def _layer(node: str, suffix: str) -> str:
    """'/blocks.0/attn/qkv/MatMul' is the node of 'blocks.0.attn.qkv.weight'."""
    return node.strip("/").removesuffix(suffix).replace("/", ".") + ".weight"


def _rename(tensors: Tensors, table: tuple[tuple[str, str], ...]) -> Tensors:
    renamed = {}
    for name, tensor in tensors.items():
        for old, new in table:
            name = re.sub(old, new, name)
        renamed[name] = tensor
    return renamed


def _fuse_qkv(tensors: Tensors) -> Tensors:
    """timm keeps query, key and value of a block in one linear layer."""
    fused = {name: t for name, t in tensors.items() if not re.search(r"attn\.(query|key|value)\.", name)}
    for name in tensors:
        if "attn.query." in name:
            parts = [tensors[name.replace("query", part)] for part in ("query", "key", "value")]
            fused[name.replace("query", "qkv")] = torch.cat(parts)
    return fused


def _tidy(tensors: Tensors) -> Tensors:
    return {name: tensors[name].float().contiguous() for name in sorted(tensors)}
