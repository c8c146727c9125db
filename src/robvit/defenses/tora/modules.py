"""TORA-ViT: accuracy and robustness adapters with gated fusion on a frozen ViT (Li and Xu).

After the MLP of every block two bottlenecks, one for accuracy and one for robustness, refine what the
block gives, and a fusion with shared query, key and value decides for every pair of tokens which of the
two to listen to; what it gives is the next block's input. The class token is replaced by [ACC] and [ROB],
each with a head of its own; the prediction is the mean of both heads. At the start the model equals its
backbone, bit for bit.

What the slides leave open and how it is done here:

- A block sees the mean of both tokens in the place of the class token; each token keeps its distance
  from that mean. So blocks work on as many tokens as before, which is what the published operations say.
  With the wiring "slides" the tokens go from adapter to adapter instead, [ACC]_l from [ACC]_(l-1), and
  meet the image in the fusions alone; at the start they have not met it.
- A token leaves its layer as its own adapter makes it, plus what the fusion adds at the first place.
- Values are of what an adapter changes, not of its whole output, so that nothing is added at the start and
  adapters act from their first step on. Queries and keys start as the identity on tokens of one length: a
  token looks at those like itself, first of all itself. `fusions.py` has the places of the softmax.
- Fusions may be held for several trade-offs; `trade_off` interpolates between the nearest two.

Legend for shapes: B batch, T class token, registers and patches, D width, K classes, S trade-offs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from robvit.backbones.families import Extra, Tokens, enter, grid_of, run_block, split, vit_embedded
from robvit.backbones.model import Model
from robvit.backbones.trained_on import TrainedOn
from robvit.defenses.tora.fusions import FUSIONS, Fuse, Fused
from robvit.errors import InputError, Unsupported
from robvit.settings import check_trades
from robvit.sharing import Shareable

BOTH = ("accuracy", "robustness")
# Tuning: the objectives that have a token, a head and, except for "heads", adapters of their own.
TUNINGS = {"heads": BOTH, "single": ("single",), "adapterfusion": BOTH, "tora": BOTH}
WIRINGS = ("mean", "slides")  # what a block sees in the place of the class token
REDUCTION = 16  # width over bottleneck


class AdapterShape(NamedTuple):
    """All that decides which tensors adapters have."""

    width: int
    depth: int
    classes: int
    tuning: str = "tora"
    bottleneck: int = 0
    trades: tuple[float, ...] = (0.5,)
    fusion: str = "adapters"
    wiring: str = "mean"


class Adapter(nn.Module):
    """A bottleneck beside the identity, which is all it is at the start: (B T D) -> (B T D)."""

    def __init__(self, width: int, bottleneck: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.down = nn.Linear(width, bottleneck)
        self.up = nn.Linear(bottleneck, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        refined: torch.Tensor = self.up(nn.functional.gelu(self.down(self.norm(x))))
        return x + refined


class Fusion(nn.Module):
    """Query, key and value of one block, shared by both adapters, for each of S trade-offs."""

    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(width).repeat(states, 3, 1, 1))
        self.bias = nn.Parameter(torch.zeros(states, 3, width))

    def forward(
        self,
        z: torch.Tensor,
        seen: Sequence[torch.Tensor],
        features: Sequence[torch.Tensor],
        mix: torch.Tensor,
        fuse: Fuse,
    ) -> Fused:
        """What is added to z (B T D), and the accuracy adapter's gate (B T); the rest to one is the other's.

        `seen` and `features` (B T D) are what the two adapters took and gave.
        """
        weight, bias = (
            held[0] if len(held) == 1 else torch.einsum("s,s...->...", mix, held)
            for held in (self.weight, self.bias)
        )

        def part(number: int, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, weight[number], bias[number])

        def even(x: torch.Tensor) -> torch.Tensor:
            """Tokens whose entries have a mean square of one."""
            return nn.functional.normalize(x, dim=-1).mul(x.shape[-1] ** 0.5)

        query = part(0, even(z)) / z.shape[-1] ** 0.5
        keys = [part(1, even(x)) for x in features]
        values = [part(2, x - before) for x, before in zip(features, seen, strict=True)]
        return fuse(query, keys, values)


class Branch(nn.Module):
    """One objective's own: its token (1 1 D), an adapter a block, and its head."""

    def __init__(self, width: int, depth: int, bottleneck: int, classes: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.adapters = nn.ModuleList(Adapter(width, bottleneck) for _ in range(depth))
        self.head = nn.Linear(width, classes)


class Adapters(nn.Module, Shareable):
    """Everything that is trained on a frozen ViT; `tuning` is one of `TUNINGS`, "tora" being the paper's.

    "heads" has two tokens and heads alone, "single" one adapter, token and head, and "adapterfusion"
    fuses as TORA does but with one gate a token. `shape.fusion` is one of `FUSIONS`.
    """

    shared_as = "adapters"
    trades: torch.Tensor
    place: torch.Tensor

    def __init__(self, shape: AdapterShape, fingerprint: str = "") -> None:
        super().__init__()
        if shape.tuning not in TUNINGS:
            raise InputError(f"tuning must be one of {', '.join(TUNINGS)}, got {shape.tuning!r}")
        check_trades(shape.trades)
        if shape.fusion not in FUSIONS:
            raise InputError(f"fusion must be one of {', '.join(FUSIONS)}, got {shape.fusion!r}")
        if shape.wiring not in WIRINGS:
            raise InputError(f"wiring must be {' or '.join(WIRINGS)}, got {shape.wiring!r}")
        shape = shape._replace(bottleneck=shape.bottleneck or max(1, shape.width // REDUCTION))
        self.shape, self.fingerprint = shape, fingerprint
        self.names: list[str] = []  # of its classes
        self.trained_on = TrainedOn()
        depth = 0 if shape.tuning == "heads" else shape.depth
        self.sides = nn.ModuleDict(
            {
                name: Branch(shape.width, depth, shape.bottleneck, shape.classes)
                for name in TUNINGS[shape.tuning]
            }
        )
        fused = shape.tuning in ("adapterfusion", "tora")
        states = len(shape.trades)
        self.fusions = nn.ModuleList(Fusion(shape.width, states) for _ in range(depth if fused else 0))
        self.fuse = FUSIONS["own" if shape.tuning == "adapterfusion" else shape.fusion]
        self.register_buffer("trades", torch.tensor(shape.trades, dtype=torch.float64))
        self.register_buffer("place", self.trades.mean())

    def shared_facts(self) -> dict[str, Any]:
        facts = {"fingerprint": self.fingerprint, "classes": self.shape.classes, "names": self.names}
        kind = {"tuning": self.shape.tuning, "fusion": self.shape.fusion, "trades": list(self.shape.trades)}
        return facts | kind | self.trained_on.settings()

    def write_shared(self, path: Path) -> None:
        from robvit.defenses.tora.io import save_adapters  # which imports this module

        save_adapters(self, path)

    @classmethod
    def read_shared(cls, path: Path) -> Adapters:
        from robvit.defenses.tora.io import load_adapters

        return load_adapters(path)

    @property
    def classes(self) -> int:
        """K, the number of classes."""
        return self.shape.classes

    @property
    def trade_off(self) -> float:
        """Where the model stands between accuracy (0) and robustness (1)."""
        return float(self.place)

    @trade_off.setter
    def trade_off(self, value: float) -> None:
        low, high = float(self.trades[0]), float(self.trades[-1])
        if not low <= value <= high:
            raise InputError(
                f"these adapters were trained for trade-offs from {low:g} to {high:g}, got {value:g}; "
                "train fusions for others, or choose one between"
            )
        self.place.fill_(value)

    def at(self, trade_off: float) -> Adapters:
        """The same weights, shared, at another trade-off."""
        twin = copy.copy(self)
        twin._buffers, twin.trade_off = {**self._buffers, "place": self.place.clone()}, trade_off
        return twin

    def mix(self) -> torch.Tensor:
        """The weights (S,) of the fusions at the present trade-off: linear between the nearest two."""
        if len(self.trades) == 1:
            return torch.ones_like(self.trades, dtype=torch.float32)
        upper = int(torch.searchsorted(self.trades, self.place).clamp(1, len(self.trades) - 1))
        low, high = self.trades[upper - 1], self.trades[upper]
        share = ((self.place - low) / (high - low)).float()
        weights = torch.zeros_like(self.trades, dtype=torch.float32)
        weights[upper - 1], weights[upper] = 1 - share, share
        return weights

    def settled(self) -> Adapters:
        """A copy that keeps the present trade-off: one fusion a block in place of one for each trade-off."""
        twin, mix = copy.deepcopy(self), self.mix()
        for fusion in twin.fusions:
            for name in ("weight", "bias"):
                mixed = torch.einsum("s,s...->...", mix, getattr(fusion, name).detach())
                setattr(fusion, name, nn.Parameter(mixed[None], requires_grad=False))
        twin.shape = self.shape._replace(trades=(self.trade_off,))
        twin.trades = twin.place.reshape(1)
        return twin

    def tokens(
        self, net: Any, pixels: torch.Tensor, extra: Extra, gates: list[torch.Tensor] | None = None
    ) -> Tokens:
        """Final tokens; the prefix holds the objectives' tokens in order, then registers.

        The accuracy adapter's gate of every block is appended to `gates`, where that is given.
        """
        x = vit_embedded(net, pixels)
        length, count, mix = x.shape[1], len(self.sides), self.mix()
        own = [side.token.expand(x.shape[0], -1, -1) for side in self._sides()]
        literal = self.shape.wiring == "slides"
        for i, block in enumerate(net.blocks):
            middle = x[:, :1] if literal else sum(own[1:], own[0]) / count
            x = run_block(net, block, enter(torch.cat((middle, x[:, 1:]), dim=1), extra, i, length))
            if not literal:
                own = [x[:, :1] + (token - middle) for token in own]
            fused, gate = self._refine(i, own, x[:, :length], mix)
            x = torch.cat((fused, x[:, length:]), dim=1)
            if gates is not None and gate is not None:
                gates.append(gate)
        x = net.norm(torch.cat((*own, x[:, 1:]), dim=1))
        return split(x, count + net.num_prefix_tokens - 1, grid_of(net, pixels))

    def _refine(
        self, block: int, own: list[torch.Tensor], z: torch.Tensor, mix: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """All tokens after the adapters of a block, and the gate; `own` is changed in place."""
        if self.shape.tuning == "heads":
            return z, None
        seen = [torch.cat((token, z[:, 1:]), dim=1) for token in own]
        features = [side.adapters[block](x) for side, x in zip(self._sides(), seen, strict=True)]
        own[:] = [x[:, :1] for x in features]
        if not self.fusions:
            return features[0], None
        added, gate = self.fusions[block](z, seen, features, mix, self.fuse)
        own[:] = [token + added[:, :1] for token in own]
        return z + added, gate

    def heads_apart(self, net: Any, tokens: Tokens) -> dict[str, torch.Tensor]:
        """Each head's logits (B K) by the name of its objective."""
        return {
            name: cast(Branch, side).head(net.fc_norm(tokens.prefix[:, i]))
            for i, (name, side) in enumerate(self.sides.items())
        }

    def logits(self, net: Any, tokens: Tokens) -> torch.Tensor:
        """The prediction (B K): the mean of the heads."""
        apart = list(self.heads_apart(net, tokens).values())
        return torch.stack(apart).mean(0) if len(apart) > 1 else apart[0]

    def _sides(self) -> list[Branch]:
        return [cast(Branch, side) for side in self.sides.values()]

    def start_from(self, net: Any, pixels: torch.Tensor) -> None:
        """Take tokens from the class token and its position, heads from the backbone's where they fit.

        pixels (1 3 H W) is any image: the class token does not depend on it before the first block.
        """
        with torch.no_grad():
            first = vit_embedded(net, pixels)[:, :1]
            for side in self._sides():
                side.token.copy_(first)
                if isinstance(net.head, nn.Linear) and net.num_classes == self.classes:
                    side.head.load_state_dict(net.head.state_dict())


def check_backbone(model: Model) -> None:
    """Refuse networks that have no class token for [ACC] and [ROB] to take the place of."""
    if not model.family.plain_walk or not model.has_class_token:
        raise Unsupported(
            f"{model.name} cannot take adapters: they need a ViT with a class token, such as ViT, DeiT, "
            f"DINOv2 or CLIP, got the family {model.family.name}"
        )
