"""A ViT that sees some of its tokens only: the others are not zeroed but left out of the sequence.

What a dropped token's pixels hold therefore cannot change the output by a bit, which is what a certificate
rests on. It holds where each token is made from pixels of its own alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from robvit.backbones.families import SomeTokens, Tokens
from robvit.backbones.model import Model
from robvit.errors import Unsupported


class TokenDropping(nn.Module):
    """A model that can be asked without some of its tokens.

    Legend for shapes: B batch, P prefix tokens, N patches, T of them kept, D width, K classes.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.ways = _ways(model)
        self.model = model.eval()

    @property
    def token(self) -> tuple[int, int]:
        """Rows and columns of the pixels of one token."""
        net: Any = self.model.net
        rows, columns = net.patch_embed.patch_size
        return int(rows), int(columns)

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        """What enters the first block: (B 3 H W) -> (B P+N D)."""
        return self.ways.embed(self.model.net, self.model.normalise(x))

    def tokens(self, embedded: torch.Tensor, kept: torch.Tensor) -> Tokens:
        """Final tokens of the kept patches (B T), by their numbers in each image, from what `embed` gave."""
        rows, columns = self.token
        prefix = embedded.shape[1] - self.model.input_size[0] // rows * (self.model.input_size[1] // columns)
        places = (prefix + kept)[:, :, None].expand(-1, -1, embedded.shape[2])
        rest = torch.cat((embedded[:, :prefix], embedded.gather(1, places)), dim=1)
        return self.ways.walk(self.model.net, rest, self.model.placed(), kept)

    def logits(self, embedded: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """Logits (B K) from the kept patches (B T)."""
        return self.model.logits(self.tokens(embedded, kept))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (B K) of whole images."""
        out: torch.Tensor = self.model(x)
        return out


def _ways(model: Model) -> SomeTokens:
    """Refuse what cannot drop tokens, and what mixes pixels of several tokens before it could."""
    if model.family.some is None:
        raise Unsupported(
            f"{model.name} is no plain ViT, so tokens cannot be left out of it; "
            "certify a ViT, DeiT, DINOv2, DINOv3, EVA-02, CaiT or CLIP"
        )
    if model.adapters is not None or model.pool is not None:
        raise Unsupported(f"{model.name} has adapters or a pool of tokens; certify it without them")
    projection: Any = getattr(getattr(model.net, "patch_embed", None), "proj", None)
    own = isinstance(projection, nn.Conv2d) and projection.kernel_size == projection.stride
    if not own or projection.padding not in ((0, 0), "valid"):
        raise Unsupported(
            f"the tokens of {model.name} share pixels, so that a patch reaches more than those it covers; "
            "nothing can be certified by dropping tokens"
        )
    return model.family.some
