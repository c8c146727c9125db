"""The real DINOv2-small: what robvit makes of its package is the network that the package holds."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch.nn import functional

from robvit.backbones import convert, download, weights, zoo

pytestmark = pytest.mark.weights

SMALL = zoo.ALIASES["dinov2-small"]


@pytest.fixture(scope="module")
def graph() -> bytes:
    assert SMALL.registry
    return download.package_member(SMALL.registry)


@pytest.fixture(scope="module")
def tensors() -> weights.Tensors:
    return weights.state_dict("dinov2-small")[0]


def with_all_tokens(graph: bytes) -> bytes:
    """The graph, which gives pooled patches, with all tokens after the last norm as a second output."""
    model = onnx.load_model_from_string(graph)
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info("/norm/Add_1_output_0"))
    return bytes(model.SerializeToString())


def answers(graph: bytes, x: torch.Tensor) -> list[torch.Tensor]:
    """What the graph makes of images; nothing of it is held afterwards."""
    session = onnxruntime.InferenceSession(with_all_tokens(graph), providers=["CPUExecutionProvider"])
    return [torch.from_numpy(np.array(answer)) for answer in session.run(None, {"input": x.numpy()})]


def test_features_agree_with_the_graph_they_came_from(graph: bytes, tensors: weights.Tensors) -> None:
    x = torch.randn(1, 3, 224, 224)
    pooled, tokens = answers(graph, x)
    net = zoo.build(SMALL, img_size=224).eval()
    # The exporter wrote the hub's bicubic resizing down as a linear one, at the hub's scale of 16.1 / 37.
    pos = weights.hub_pos_embed(tensors["pos_embed"], (16, 16), mode="bilinear")
    weights.load_strict(net, {**tensors, "pos_embed": pos}, "dinov2-small")
    with torch.inference_mode():
        ours = net.forward_features(x)  # (1 257 384)
    torch.testing.assert_close(ours, tokens, rtol=0, atol=1e-3)
    patches = ours[:, 1:].transpose(1, 2).reshape(1, 384, 16, 16)
    torch.testing.assert_close(
        functional.avg_pool2d(patches, 2).permute(0, 2, 3, 1), pooled, rtol=0, atol=1e-3
    )


def test_it_passes_every_check() -> None:
    checks = weights.verify(SMALL)
    assert [check.what for check in checks][-2:] == ["strict load", "features of a known image"]
    assert all(check.passed for check in checks), checks


def test_the_known_image_tells_a_wrong_conversion(graph: bytes) -> None:
    assert SMALL.registry
    tensors = convert.dinov2_onnx(graph)
    assert weights.tensors_sha256(tensors) == SMALL.registry.sha256
    query, key, value = tensors["blocks.5.attn.qkv.bias"].chunk(3)
    net = zoo.build(SMALL)
    weights.load_strict(net, {**tensors, "blocks.5.attn.qkv.bias": torch.cat([key, query, value])}, "wrong")
    off = [abs(a - b) for a, b in zip(weights.fingerprint(net), SMALL.registry.fingerprint, strict=True)]
    assert max(off) > 10 * weights.TOLERANCE
