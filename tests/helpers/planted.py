"""A network built by hand whose gradient can only pass through its softmax."""

from __future__ import annotations

import timm
import torch
from torch import nn


def planted(sharpness: float) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A ViT that names the brightest quarter of an image by where its class token looks; 8 images.

    Values know places and scores know brightness, so a gradient can only pass through the softmax.
    """
    net = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        depth=1,
        embed_dim=8,
        num_heads=1,
        num_classes=4,
        norm_layer=nn.Identity,
        mlp_ratio=1.0,
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net.patch_embed.proj.weight[0].fill_(1 / 768)  # channel 0: how bright
        net.pos_embed[0, 1:, 1:5] = torch.eye(4)  # channels 1 to 4: where
        net.cls_token[0, 0, 5] = 1.0
        attention = net.blocks[0].attn
        attention.qkv.weight[0, 5] = sharpness * 8**0.5
        attention.qkv.weight[8, 0] = 1.0
        attention.qkv.weight[17:21, 1:5] = torch.eye(4)
        attention.proj.weight.copy_(torch.eye(8))
        net.head.weight[:, 1:5] = 10 * torch.eye(4)
    x, y = 0.3 + 0.1 * torch.rand(8, 3, 32, 32), torch.arange(8) % 4
    for place in range(8):
        rows, columns = divmod(int(y[place]), 2)
        x[place, :, 16 * rows : 16 * rows + 16, 16 * columns : 16 * columns + 16] += 0.05
    return net.eval(), x, y
