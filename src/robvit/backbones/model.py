"""The model every other room works with: a timm network that takes pixels.

It normalises inside, gives tokens, features and logits, and carries what hardens it: extra tokens and
a head. With none of them its logits are timm's, bit for bit.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from timm.data.config import resolve_model_data_config
from torch import nn

from robvit.backbones.families import Family, Tokens, family_of
from robvit.errors import InputError, Unsupported
from robvit.files import tensors_sha256

# What depends on the input's size or is recomputed by timm, and so says nothing about the weights.
_SIZE_DEPENDENT = ("pos_embed", "relative_position_index", "attn_mask", "attention_bias_idxs", "rope.")


class Model(nn.Module):
    """A timm network on pixels: (B 3 H W) in [0,1] to logits (B K).

    A head is a module from final tokens and the picture's size (rows, columns) to logits.
    """

    mean: torch.Tensor
    std: torch.Tensor
    extra: torch.Tensor | None

    def __init__(
        self,
        net: nn.Module,
        *,
        name: str = "",
        mean: tuple[float, ...] = (0.0, 0.0, 0.0),
        std: tuple[float, ...] = (1.0, 1.0, 1.0),
        head: nn.Module | None = None,
        extra: torch.Tensor | None = None,
        input_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.net = net
        self._input_size = input_size
        self.name = name or type(net).__name__
        self.family: Family = family_of(net)
        self.head = head
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)
        # A buffer that is not saved: secret tokens never leave through a state dict by accident.
        self.register_buffer("extra", extra, persistent=False)
        self._check_extra(extra)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (B K); (B K H W) with a segmentation head."""
        if self.head is None and self.extra is None:
            return cast(torch.Tensor, self.net(self.normalise(x)))
        return self.logits(self.tokens(x), (x.shape[-2], x.shape[-1]))

    def features(self, x: torch.Tensor, extra: torch.Tensor | None = None) -> torch.Tensor:
        """Class token and patch tokens (B 1+N D), nothing else; (B N D) where there is no class token."""
        tokens = self.tokens(x, extra)
        return torch.cat((tokens.prefix[:, :1], tokens.patch), dim=1)

    def tokens(self, x: torch.Tensor, extra: torch.Tensor | None = None) -> Tokens:
        """Final tokens; `extra` (1 R D) or (B R D) takes the place of the model's own extra tokens."""
        if extra is None:
            extra = self.extra
        else:
            self._check_extra(extra)
        return self.family.tokens(self.net, self.normalise(x), extra)

    def with_tokens(self, extra: torch.Tensor | None) -> Model:
        """The same weights and head, shared, with these extra tokens (1 R D), or with none."""
        twin = Model(self.net, name=self.name, head=self.head, extra=extra, input_size=self._input_size)
        twin.mean, twin.std = self.mean, self.std
        return twin.train(self.training)

    def logits(self, tokens: Tokens, size: tuple[int, int] | None = None) -> torch.Tensor:
        """Logits from final tokens, by the model's own head or timm's."""
        if self.head is not None:
            return cast(torch.Tensor, self.head(tokens, size or self.input_size))
        if self.family.takes_extra:
            net: Any = self.net
            return cast(torch.Tensor, net.forward_head(torch.cat((tokens.prefix, tokens.patch), dim=1)))
        raise Unsupported(f"{self.name} classifies its own feature map, not tokens; call model(x) instead")

    def normalise(self, x: torch.Tensor) -> torch.Tensor:
        """Pixels to what the network was trained on; refuses pictures of the wrong size."""
        if x.ndim != 4 or x.shape[1] != 3:
            raise InputError(f"images must be (B 3 H W), got {tuple(x.shape)}")
        if self.fixed_size and tuple(x.shape[-2:]) != self.input_size:
            rows, columns = self.input_size
            raise InputError(
                f"{self.name} was loaded for {rows}x{columns} pictures, got {x.shape[-2]}x{x.shape[-1]}; "
                f"resize them, or load it with img_size={x.shape[-1]}"
            )
        return (x - self.mean) / self.std

    @property
    def input_size(self) -> tuple[int, int]:
        """Rows and columns of the pictures it takes."""
        embed = getattr(self.net, "patch_embed", None)
        rows, columns = (
            self._input_size
            or getattr(embed, "img_size", None)
            or resolve_model_data_config(self.net)["input_size"][1:]
        )
        return int(rows), int(columns)

    @property
    def fixed_size(self) -> bool:
        """Whether pictures of another size are refused; convolutions and XCiT take any."""
        return self.family.name in ("vit", "eva", "cait", "swin", "levit") and not getattr(
            self.net, "dynamic_img_size", False
        )

    @property
    def width(self) -> int:
        """D, the length of a final token."""
        net: Any = self.net
        return int(net.num_features)

    @property
    def classes(self) -> int:
        """K, the number of classes; 0 for a bare feature extractor."""
        net: Any = self.net
        return int(getattr(self.head, "classes", 0) if self.head is not None else net.num_classes)

    @property
    def has_class_token(self) -> bool:
        """Whether features begin with a class token."""
        net: Any = self.net
        return self.family.name in ("cait", "xcit") or bool(getattr(net, "cls_token", None) is not None)

    def fingerprint(self) -> str:
        """SHA-256 of the backbone's weights: the same at any input size, another for other weights."""
        state = self.net.state_dict()
        weights = {
            name: tensor
            for name, tensor in state.items()
            if not name.startswith("head") and not any(part in name for part in _SIZE_DEPENDENT)
        }
        position = state.get("pos_embed")
        if "cls_token" in weights and position is not None and not getattr(self.net, "no_embed_class", True):
            # The network only sees the sum; exports fold it, so how it is split says nothing.
            weights["cls_token"] = weights["cls_token"] + position[:, :1]
        return tensors_sha256(weights)

    def identity(self) -> str:
        """SHA-256 of everything that decides the output: weights, positions, statistics, head and tokens."""
        state = {**self.state_dict(), "mean": self.mean, "std": self.std}
        return tensors_sha256(state if self.extra is None else {**state, "extra": self.extra})

    def _check_extra(self, extra: torch.Tensor | None) -> None:
        if extra is None:
            return
        if not self.family.takes_extra:
            raise Unsupported(f"{self.name} cannot take extra tokens: {self.family.why_not}")
        if extra.ndim != 3 or extra.shape[-1] != self.width:
            raise InputError(
                f"extra tokens must be (1 R {self.width}) or (B R {self.width}) for {self.name}, "
                f"got {tuple(extra.shape)}"
            )
