"""What a model may carry besides its network, as protocols: other rooms make the things themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from robvit.backbones.families import Extra, Tokens


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
