"""What a model may carry besides its network, as protocols: other rooms make the things themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from robvit.backbones.families import Extra, Tokens
from robvit.errors import InputError


class PlacedTokens(Protocol):
    """Tokens (L R D) that know the L layers they enter, such as RobustTokens."""

    @property
    def values(self) -> torch.Tensor: ...

    @property
    def layers(self) -> tuple[int, ...]: ...


class TokenSource(Protocol):
    """Several sets of tokens, of which every forward call draws one, such as TokenPool."""

    @property
    def sets(self) -> Sequence[PlacedTokens]: ...

    def draw(self) -> PlacedTokens: ...


class Adapted(Protocol):
    """Trained parts between the blocks of a frozen network, with heads of their own, such as Adapters."""

    @property
    def trade_off(self) -> float: ...

    def at(self, trade_off: float) -> Adapted: ...

    @property
    def classes(self) -> int: ...

    def tokens(self, net: Any, pixels: torch.Tensor, extra: Extra) -> Tokens: ...

    def heads_apart(self, net: Any, tokens: Tokens) -> dict[str, torch.Tensor]: ...

    def logits(self, net: Any, tokens: Tokens) -> torch.Tensor: ...


AnyTokens = torch.Tensor | PlacedTokens | TokenSource | None


def by_layer(extra: torch.Tensor, layers: Sequence[int], width: int, name: str) -> Extra:
    """Each layer's own tokens, from (L R D), for one layer also (B R D); refuses those that do not fit."""
    if extra.ndim != 3 or extra.shape[-1] != width or len(extra) != len(layers) > 1:
        expected = f"({len(layers)} R {width})" if len(layers) > 1 else f"(1 R {width}) or (B R {width})"
        raise InputError(f"extra tokens must be {expected} for {name}, got {tuple(extra.shape)}")
    return dict(zip(layers, extra.split(1) if len(layers) > 1 else [extra], strict=True))
