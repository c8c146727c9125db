"""Converters, on small files built as the real ones are."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import safetensors.torch
import timm
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from robvit.backbones import convert

SLIM = {"depth": 2, "embed_dim": 48, "num_heads": 3}
HALF = 0.51  # of a quantisation step: what rounding may cost, and a little for float


def random_net(name: str, **settings: object) -> nn.Module:
    """A network in which every tensor differs from every other."""
    net: nn.Module = timm.create_model(name, **settings)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_()
    return net


def onnx_file(tensors: dict[str, np.ndarray], nodes: list[tuple[str, str, list[str]]]) -> bytes:
    """A graph of the nodes (operator, name, inputs) with stored tensors; converters do not run it."""
    made = [helper.make_node(op, inputs, [f"{name}_out"], name=name) for op, name, inputs in nodes]
    stored = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    image = helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, 28, 28])
    return helper.make_model(helper.make_graph(made, "g", [image], [image], stored)).SerializeToString()


def quantised(tensor: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    return (tensor / scale + zero).round().clamp(-128, 127).to(torch.int8)


def test_dinov2_onnx() -> None:
    net = random_net("vit_small_patch14_dinov2", img_size=42, **SLIM)
    state = {k: v.numpy() for k, v in net.state_dict().items()}
    state["pos_embed"][:, 0] = state["cls_token"][:, 0]  # the exporter stored the two once
    stored, nodes = {"onnx::Reshape_1360": state["pos_embed"][:, 1:]}, list[Any]()
    for name, value in state.items():
        if name.endswith("weight") and value.ndim == 2:
            stored[f"onnx::MatMul_{len(nodes)}"] = np.ascontiguousarray(value.T)
            node = "/" + re.sub(r"\.(?=[a-z])", "/", name.removesuffix(".weight")) + "/MatMul"
            nodes.append(("MatMul", node, ["x", f"onnx::MatMul_{len(nodes)}"]))
        elif name != "pos_embed":
            stored[f"model.{name}"] = value
    nodes.append(("MatMul", "/blocks.0/attn/MatMul", ["q", "k"]))  # no weights, so none of its business
    got = convert.dinov2_onnx(onnx_file(stored, nodes))
    torch.testing.assert_close(got, dict(net.state_dict()), rtol=0, atol=0)


HF_VIT = (
    (r"^cls_token", "vit.embeddings.cls_token"),
    (r"^pos_embed", "vit.embeddings.position_embeddings"),
    (r"^patch_embed.proj", "vit.embeddings.patch_embeddings.projection"),
    (r"^norm", "vit.layernorm"),
    (r"^head", "classifier"),
    (r"^blocks", "vit.encoder.layer"),
    (r"norm1", "layernorm_before"),
    (r"norm2", "layernorm_after"),
    (r"attn.proj", "attention.output.dense"),
    (r"attn.(query|key|value)", r"attention.attention.\1"),
    (r"mlp.fc1", "intermediate.dense"),
    (r"mlp.fc2", "output.dense"),
)
HF_CLIP = (
    (r"^cls_token", "vision_model.embeddings.class_embedding"),
    (r"^pos_embed", "vision_model.embeddings.position_embedding.weight"),
    (r"^patch_embed.proj", "vision_model.embeddings.patch_embedding"),
    (r"^norm_pre", "vision_model.pre_layrnorm"),
    (r"^norm", "vision_model.post_layernorm"),
    (r"^head", "visual_projection"),
    (r"^blocks", "vision_model.encoder.layers"),
    (r"norm([12])", r"layer_norm\1"),
    (r"attn.proj", "self_attn.out_proj"),
    (r"attn.([qkv])(uery|ey|alue)", r"self_attn.\1_proj"),
)


def foreign(net: nn.Module, table: tuple[tuple[str, str], ...]) -> dict[str, torch.Tensor]:
    """A timm state dict in Hugging Face's names, query, key and value apart."""
    apart = {}
    for name, tensor in net.state_dict().items():
        if "attn.qkv" in name:
            for part, piece in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                apart[name.replace("qkv", part)] = piece
        else:
            apart[name] = tensor
    renamed = {}
    for name, tensor in apart.items():
        for old, new in table:
            name = re.sub(old, new, name)
        renamed[name] = tensor
    return renamed


def test_vit_int8() -> None:
    net = random_net("vit_tiny_patch16_224", img_size=32, **SLIM, num_classes=7)
    stored: dict[str, torch.Tensor] = {}
    scale, zero = torch.tensor(0.05), torch.tensor(3, dtype=torch.int32)
    for name, tensor in foreign(net, HF_VIT).items():
        stored[name] = quantised(tensor, scale, zero).contiguous()
        stored |= {f"{name}_scale": scale.clone(), f"{name}_zero_point": zero.clone()}
    got = convert.vit_int8(safetensors.torch.save(stored))
    torch.testing.assert_close(got, dict(net.state_dict()), rtol=0, atol=HALF * float(scale))


def test_clip_int8_onnx() -> None:
    net = random_net("vit_base_patch16_clip_quickgelu_224", img_size=32, **SLIM, num_classes=7)
    nn.init.zeros_(net.head.bias)
    stored: dict[str, np.ndarray] = {}
    nodes = list[Any]()
    for name, tensor in foreign(net, HF_CLIP).items():
        if name.endswith("weight") and tensor.ndim == 2 and "embedding" not in name:
            base = f"onnx::MatMul_{len(nodes)}"
            scale = torch.linspace(0.04, 0.05, len(tensor))  # one for every output
            zero = torch.arange(len(tensor)) % 5
            stored[f"{base}_quantized"] = quantised(tensor.T, scale, zero).numpy()
            stored[f"{base}_scale"] = scale.numpy()
            stored[f"{base}_zero_point"] = zero.to(torch.int8).numpy()
            node = "/" + re.sub(r"\.(?=[a-z])", "/", name.removesuffix(".weight")) + "/MatMul_quant"
            nodes.append(("MatMulInteger", node, ["x", f"{base}_quantized", "z", f"{base}_zero_point"]))
        elif name != "visual_projection.bias":
            stored[name] = (
                tensor.squeeze(0) if "embeddings.p" in name and tensor.ndim == 3 else tensor
            ).numpy()
    stored["vision_model.embeddings.class_embedding"] = net.cls_token.detach().reshape(-1).numpy()
    got = convert.clip_int8_onnx(onnx_file(stored, nodes))
    torch.testing.assert_close(got, dict(net.state_dict()), rtol=0, atol=HALF * 0.05)
