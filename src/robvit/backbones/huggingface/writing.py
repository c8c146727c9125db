"""A model as a folder that transformers' `from_pretrained` opens: config, safetensors, preprocessor."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from timm.layers.activations import GELU, GELUTanh, QuickGELU
from timm.layers.mlp import GluMlp, Mlp
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from robvit.backbones.heads import LinearHead
from robvit.backbones.huggingface.config import CONFIG, PREPROCESSOR, read_object
from robvit.backbones.huggingface.layouts import (
    CLIP,
    DEIT,
    DINOV2,
    REGISTERS,
    VIT,
    Layout,
    Tensors,
    from_timm,
)
from robvit.backbones.huggingface.reading import PROJECTION, WEIGHTS
from robvit.backbones.model import Model
from robvit.backbones.trained_on import fitting
from robvit.decoding import CROP_SHARE
from robvit.errors import Unsupported

ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.GELU: "gelu",
    GELU: "gelu",  # what timm makes of the word
    QuickGELU: "quick_gelu",
    GELUTanh: "gelu_pytorch_tanh",
    nn.ReLU: "relu",
    nn.SiLU: "silu",
}
Linear = tuple[torch.Tensor, torch.Tensor]


def write_transformers(model: Model, folder: Path, facts: dict[str, str]) -> None:
    """Write the model's network, and its classifier if it has one, into a folder that is there."""
    state, config = to_transformers(model)
    save_file(state, folder / WEIGHTS, facts | {"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    prepared = json.dumps(preprocessor(model, layout_of(model)), indent=2)
    (folder / PREPROCESSOR).write_text(prepared + "\n", encoding="utf-8")


def to_transformers(model: Model) -> tuple[Tensors, dict[str, Any]]:
    """The state of transformers' network with the model's weights, and what its `config.json` says."""
    layout = layout_of(model)
    net: Any = model.net
    gated = isinstance(net.blocks[0].mlp, GluMlp)
    state = from_timm(layout, net.state_dict(), gated=gated)
    places = layout.names[1][1]
    if net.no_embed_class:  # there the class token has a position
        state[places] = torch.cat((torch.zeros_like(state[places][:, :1]), state[places]), 1)
    if layout in (DINOV2, REGISTERS):
        state["embeddings.mask_token"] = torch.zeros(1, model.width)
    config = _config(model, layout, gated=gated)
    architecture, classifier = _classifier(model, layout)
    config["architectures"] = [architecture]
    if architecture == "CLIPVisionModelWithProjection":
        config["projection_dim"] = len(classifier[f"{PROJECTION}weight"])
    if architecture == "CLIPForImageClassification":
        state |= {f"post_layernorm.{one}": make(model.width) for one, make in _PLAIN_NORM}
        config = {"model_type": "clip", "vision_config": config, "architectures": [architecture]}
    if architecture != layout.network:
        state = {layout.inside + name: t for name, t in state.items()}
        names = model.class_names or [f"LABEL_{i}" for i in range(model.classes)]
        if PROJECTION not in next(iter(classifier)):
            config["id2label"] = dict(enumerate(names))
            config["label2id"] = {name: i for i, name in enumerate(names)}
    return state | classifier, config | {"dtype": "float32"}


_PLAIN_NORM = (("weight", torch.ones), ("bias", torch.zeros))  # of a normalisation that nothing goes through


def loading_line(folder: str | Path) -> str:
    """The line of Python that opens such a folder without robvit."""
    config = read_object(Path(folder) / CONFIG)
    bare = ", add_pooling_layer=False" * (config["architectures"][0] in ("ViTModel", "DeiTModel"))
    return f"net = transformers.{config['architectures'][0]}.from_pretrained({str(folder)!r}{bare})"


def layout_of(model: Model) -> Layout:
    """The kind of transformers' networks that the model is; any other is refused."""
    net: Any = model.net
    if model.hardened or model.adapters is not None:
        raise Unsupported("transformers' networks have no place for tokens or adapters; load it without them")
    kind: Layout | None = None
    if type(net) is VisionTransformerDistilled:
        kind = DEIT
    elif type(net) is VisionTransformer and model.has_class_token:
        scaled, before = hasattr(net.blocks[0].ls1, "gamma"), not isinstance(net.norm_pre, nn.Identity)
        if scaled and not before:
            kind = REGISTERS if net.reg_token is not None else DINOV2
        elif not scaled and net.reg_token is None:
            kind = CLIP if before else VIT
    if kind is None or not _expressible(model, kind):
        raise Unsupported(
            f"{model.name} is none of transformers' DINOv2, ViT, DeiT or CLIP image towers; expected a "
            "square ViT with a class token and plain blocks; use the timm layout"
        )
    return kind


def preprocessor(model: Model, layout: Layout) -> dict[str, Any]:
    """The `preprocessor_config.json` that gives the network the images that the model takes."""
    side = model.input_size[0]
    config: dict[str, Any] = {
        "image_processor_type": "CLIPImageProcessor" if layout is CLIP else "BitImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": model.mean.flatten().tolist(),
        "image_std": model.std.flatten().tolist(),
        "resample": 2,  # bilinear, as images are opened here
    }
    if fitting(model, None) == "crop":
        crop = {"height": side, "width": side}
        return config | {
            "size": {"shortest_edge": math.floor(side / CROP_SHARE)},  # as images are cropped here
            "do_center_crop": True,
            "crop_size": crop,
        }
    return config | {"size": {"height": side, "width": side}, "do_center_crop": False}


def _expressible(model: Model, kind: Layout) -> bool:
    """Whether every part of the network has a place there."""
    net: Any = model.net
    plain = all(
        type(block.mlp) in ((Mlp, GluMlp) if kind in (DINOV2, REGISTERS) else (Mlp,))
        and isinstance(block.attn.q_norm, nn.Identity)
        and (isinstance(block.mlp, GluMlp) or type(block.mlp.act) in ACTIVATIONS)
        for block in net.blocks
    )
    eps = {part.eps for part in net.modules() if isinstance(part, nn.LayerNorm)}
    embed = net.patch_embed
    square = model.input_size[0] == model.input_size[1] and isinstance(
        getattr(embed, "proj", None), nn.Conv2d
    )
    normed = kind is CLIP or isinstance(net.norm, nn.LayerNorm)
    placed = net.no_embed_class if kind is REGISTERS else kind in (VIT, DINOV2) or not net.no_embed_class
    biased = (embed.proj.bias is None) == (kind is CLIP) if square else False
    return plain and len(eps) == 1 and square and normed and placed and biased


def _config(model: Model, layout: Layout, *, gated: bool) -> dict[str, Any]:
    net: Any = model.net
    first = net.blocks[0]
    config: dict[str, Any] = {
        "model_type": layout.kind,
        "hidden_size": model.width,
        "num_hidden_layers": len(net.blocks),
        "num_attention_heads": int(first.attn.num_heads),
        "image_size": model.input_size[0],
        "patch_size": int(net.patch_embed.patch_size[0]),
        "num_channels": 3,
        "hidden_act": "gelu" if gated else ACTIVATIONS[type(first.mlp.act)],
        "layer_norm_eps": float(first.norm1.eps),
    }
    if layout is not CLIP:
        config["qkv_bias"] = first.attn.qkv.bias is not None
    inner = first.mlp.fc1.out_features
    if layout in (DINOV2, REGISTERS):
        config |= {"mlp_ratio": _ratio(inner, model.width, gated=gated), "use_swiglu_ffn": gated}
    else:
        config["intermediate_size"] = inner
    if layout is REGISTERS:
        config["num_register_tokens"] = int(net.reg_token.shape[1])
    return config


def _ratio(inner: int, width: int, *, gated: bool) -> int:
    """The whole number that transformers takes the width of an MLP from."""
    for ratio in range(1, 65):
        made = 2 * ((ratio * width * 2 // 3 + 7) // 8 * 8) if gated else ratio * width
        if made == inner:
            return ratio
    raise Unsupported(
        f"an MLP of {inner} units has no place in a Dinov2Model {width} wide; use the timm layout"
    )


def _classifier(model: Model, layout: Layout) -> tuple[str, Tensors]:
    """The class of transformers' that the model is, and the tensors of its classifier."""
    net: Any = model.net
    found = _linear(model)
    bare = isinstance(net.norm, nn.Identity)  # what a CLIPForImageClassification sees is not normalised
    if found is None:
        if bare:
            raise Unsupported(f"{model.name} has no final normalisation, which a {layout.network} has")
        return layout.network, {}
    kind, (weight, bias) = found
    weight, bias = weight.detach().cpu().clone(), bias.detach().cpu().clone()
    if layout is CLIP and kind == "linear-class" and model.head is None and not bias.any() and not bare:
        return "CLIPVisionModelWithProjection", {f"{PROJECTION}weight": weight}
    if layout in (DINOV2, REGISTERS) and kind in ("linear-class", "linear-mean"):
        blank = torch.zeros_like(weight)  # it sees both tokens
        both = (weight, blank) if kind == "linear-class" else (blank, weight)
        kind, weight = "linear", torch.cat(both, 1)
    known = {head: name for name, head in layout.classifiers.items()}
    if kind not in known or (layout is CLIP) != bare:
        raise Unsupported(
            f"a {kind} head has no place in transformers' {layout.kind} networks, which have "
            f"{', '.join(known)}; load it without the head, or use onnx or torch"
        )
    if kind == "linear-prefix":
        halves = (2 * half.contiguous() for half in weight.chunk(2, 1))
        parts = zip(("cls", "distillation"), halves, strict=True)
        both_biases = {f"{one}_classifier.bias": bias.clone() for one in ("cls", "distillation")}
        return known[kind], {f"{one}_classifier.weight": half for one, half in parts} | both_biases
    return known[kind], {"classifier.weight": weight, "classifier.bias": bias}


def _linear(model: Model) -> tuple[str, Linear] | None:
    """The linear layer that classifies, with the kind of head that sees what it sees."""
    net: Any = model.net
    if model.head is not None:
        if not isinstance(model.head, LinearHead):
            raise Unsupported(
                "transformers' networks have linear classifiers alone; load it without the head"
            )
        return model.head.kind, (model.head.linear.weight, model.head.linear.bias)
    if not isinstance(net.head, nn.Linear):
        return None
    if not isinstance(net.fc_norm, nn.Identity) or net.global_pool not in ("token", "avg"):
        raise Unsupported(
            f"the classifier of {model.name} normalises or pools in a way transformers' does not"
        )
    if isinstance(net, VisionTransformerDistilled):
        both: Any = (net.head, net.head_dist)
        weight = torch.cat([one.weight for one in both], 1) / 2
        return "linear-prefix", (weight, sum(one.bias for one in both) / 2)
    return "linear-class" if net.global_pool == "token" else "linear-mean", (net.head.weight, net.head.bias)
