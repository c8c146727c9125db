"""The families of timm transformers: how each turns pixels into tokens, and where its blocks are.

A family is one entry of FAMILIES. To add one, write a function from normalised pixels to `Tokens` under
`@family` with the timm class it is for, here or in a file of your own. Extra tokens enter at the end of
the sequence, before the first block (after the position embedding, and after CLIP's `norm_pre`, so that
they have no position) or before any later one, where they take the places of those that entered
earlier; they are split off again before anything is called a feature.

Legend for shapes: B batch, N patches, P prefix tokens, R extra tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import timm.models as zoo
import torch
from timm.models._manipulate import checkpoint
from torch import nn

from robvit.backbones.rotary import lengthened, rotations_of
from robvit.errors import Unsupported


class Tokens(NamedTuple):
    """The final tokens of a batch: prefix (B P D), patch (B N D), extra (B R D), grid (rows, columns).

    The prefix holds the class token first, then registers; `patch` is the grid row by row.
    """

    prefix: torch.Tensor
    patch: torch.Tensor
    extra: torch.Tensor
    grid: tuple[int, int]

    def features(self) -> torch.Tensor:
        """Class token and patch tokens (B 1+N D); (B N D) where there is no class token."""
        return torch.cat((self.prefix[:, :1], self.patch), dim=1)


# The number of a block: the tokens (1 R D) or (B R D) that enter before it.
Extra = Mapping[int, torch.Tensor]
Forward = Callable[[nn.Module, torch.Tensor, Extra], Tokens]


class SomeTokens(NamedTuple):
    """How a family is asked with patches left out.

    embed: normalised pixels to what enters the first block, all patches last: (B 3 H W) -> (B P+N D).
    walk: from the prefix and the kept patches (B P+T D), by their numbers (B T), to the final tokens.
    """

    embed: Callable[[Any, torch.Tensor], torch.Tensor]
    walk: Callable[[Any, torch.Tensor, Extra, torch.Tensor], Tokens]


@dataclass(frozen=True)
class Family:
    """What robvit knows of a timm architecture."""

    name: str
    architecture: type[nn.Module]
    tokens: Forward
    blocks: Callable[[nn.Module], list[nn.Module]]
    depth: Callable[[nn.Module], int]  # before how many blocks extra tokens may enter
    takes_extra: bool = True
    why_not: str = ""  # why extra tokens are impossible
    fixed_size: bool = False  # images of another size than it was built for are refused
    # Class token, registers and patches walk through plain blocks, so that adapters can stand between
    # these and extra tokens can become registers.
    plain_walk: bool = False
    some: SomeTokens | None = None  # if patches can be left out


FAMILIES: list[Family] = []


def family_of(net: nn.Module) -> Family:
    """The family a timm model belongs to; a model of no known family gets the plain one."""
    return next((f for f in FAMILIES if isinstance(net, f.architecture)), PLAIN)


def family(architecture: type[nn.Module], *stacks: str, **facts: Any) -> Callable[[Forward], Forward]:
    """Register the tokens function of a family whose blocks lie in the named attributes.

    Extra tokens may enter before any block of the first of them.
    """

    def blocks(net: nn.Module) -> list[nn.Module]:
        return [block for stack in stacks for block in getattr(net, stack)]

    def depth(net: nn.Module) -> int:
        return len(getattr(net, stacks[0]))

    def register(tokens: Forward) -> Forward:
        FAMILIES.append(Family(tokens.__name__, architecture, tokens, blocks, depth, **facts))
        return tokens

    return register


def enter(x: torch.Tensor, extra: Extra, layer: int, length: int) -> torch.Tensor:
    """Put a layer's extra tokens behind the first `length` tokens of a sequence (B T D)."""
    if layer not in extra:
        return x
    return torch.cat((x[:, :length], extra[layer].to(x).expand(x.shape[0], -1, -1)), dim=1)


def split(x: torch.Tensor, prefix: int, grid: tuple[int, int]) -> Tokens:
    """Cut a sequence (B P+N+R D) into its parts."""
    end = prefix + grid[0] * grid[1]
    return Tokens(x[:, :prefix], x[:, prefix:end], x[:, end:], grid)


def grid_of(net: Any, pixels: torch.Tensor) -> tuple[int, int]:
    """Rows and columns of the patches that an image becomes."""
    embed = net.patch_embed
    if hasattr(embed, "dynamic_feat_size"):
        rows, columns = embed.dynamic_feat_size(pixels.shape[-2:])
    else:
        rows, columns = embed.grid_size
    return int(rows), int(columns)


def run_block(net: Any, block: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a block, trading memory for time when timm's gradient checkpointing is on."""
    return checkpoint(block, *args, **kwargs) if net.grad_checkpointing else block(*args, **kwargs)


def vit_embedded(net: Any, pixels: torch.Tensor) -> torch.Tensor:
    """What enters the first block of a ViT: (B 3 H W) -> (B P+N D)."""
    x: torch.Tensor = net.norm_pre(net.patch_drop(net._pos_embed(net.patch_embed(pixels))))
    return x


def _vit_some(net: Any, x: torch.Tensor, extra: Extra, kept: torch.Tensor) -> Tokens:
    return vit_walk(net, x, extra, (1, kept.shape[1]))


@family(
    zoo.vision_transformer.VisionTransformer,
    "blocks",
    fixed_size=True,
    plain_walk=True,
    some=SomeTokens(vit_embedded, _vit_some),
)
def vit(net: Any, pixels: torch.Tensor, extra: Extra) -> Tokens:
    """ViT, DeiT, DeiT-III, DINO, DINOv2, CLIP: one sequence from start to end."""
    return vit_walk(net, vit_embedded(net, pixels), extra, grid_of(net, pixels))


def vit_walk(net: Any, x: torch.Tensor, extra: Extra, grid: tuple[int, int]) -> Tokens:
    """From what enters the first block of a ViT (B P+N D), N of any number, to its final tokens."""
    length = x.shape[1]
    for i, block in enumerate(net.blocks):
        x = run_block(net, block, enter(x, extra, i, length))
    return split(net.norm(x), net.num_prefix_tokens, grid)


def _eva_embedded(net: Any, pixels: torch.Tensor) -> torch.Tensor:
    x: torch.Tensor = net.norm_pre(net._pos_embed(net.patch_embed(pixels))[0])
    return x


def _eva_some(net: Any, x: torch.Tensor, extra: Extra, kept: torch.Tensor) -> Tokens:
    return _eva_walk(net, x, rotations_of(net, kept), extra, (1, kept.shape[1]))


@family(zoo.eva.Eva, "blocks", fixed_size=True, some=SomeTokens(_eva_embedded, _eva_some))
def eva(net: Any, pixels: torch.Tensor, extra: Extra) -> Tokens:
    """EVA-02, DINOv3: as a ViT, with rotary positions for patches only."""
    x, rope = net._pos_embed(net.patch_embed(pixels))
    return _eva_walk(net, net.norm_pre(x), rope, extra, grid_of(net, pixels))


def _eva_walk(
    net: Any, x: torch.Tensor, rope: torch.Tensor | None, extra: Extra, grid: tuple[int, int]
) -> Tokens:
    length = x.shape[1]
    for i, block in enumerate(net.blocks):
        x = enter(x, extra, i, length)
        turn = rope[i] if rope is not None and getattr(net, "rope_mixed", False) else rope
        if turn is not None and x.shape[1] > length:
            turn = lengthened(turn, x.shape[1] - length)
        x = run_block(net, block, x, rope=turn)
    return split(net.norm(x), net.num_prefix_tokens, grid)


def _cait_embedded(net: Any, pixels: torch.Tensor) -> torch.Tensor:
    x: torch.Tensor = net.pos_drop(net.patch_embed(pixels) + net.pos_embed)
    return x


def _cait_some(net: Any, x: torch.Tensor, extra: Extra, kept: torch.Tensor) -> Tokens:
    return _cait_walk(net, x, extra, (1, kept.shape[1]))


@family(
    zoo.cait.Cait,
    "blocks",
    "blocks_token_only",
    fixed_size=True,
    some=SomeTokens(_cait_embedded, _cait_some),
)
def cait(net: Any, pixels: torch.Tensor, extra: Extra) -> Tokens:
    """CaiT: patches first, then a class token that looks at them and at the extra tokens."""
    return _cait_walk(net, _cait_embedded(net, pixels), extra, grid_of(net, pixels))


def _cait_walk(net: Any, x: torch.Tensor, extra: Extra, grid: tuple[int, int]) -> Tokens:
    length = x.shape[1]
    for i, block in enumerate(net.blocks):
        x = run_block(net, block, enter(x, extra, i, length))
    cls = net.cls_token.expand(x.shape[0], -1, -1)
    for block in net.blocks_token_only:
        cls = block(x, cls)
    return split(net.norm(torch.cat((cls, x), dim=1)), 1, grid)


@family(zoo.xcit.Xcit, "blocks", "cls_attn_blocks")
def xcit(net: Any, pixels: torch.Tensor, extra: Extra) -> Tokens:
    """XCiT: attention between channels, so extra tokens act through the channel covariances.

    Its local patch interaction is a convolution over the grid; extra tokens are not on the grid and
    pass it by.
    """
    x, grid = net.patch_embed(pixels)
    count = x.shape[1]
    if net.pos_embed is not None:
        x = x + net.pos_embed(x.shape[0], *grid).flatten(2).permute(0, 2, 1)
    x = net.pos_drop(x)
    for i, block in enumerate(net.blocks):
        x = run_block(net, partial(_patches_interact, block, count), enter(x, extra, i, count), *grid)
    x = torch.cat((net.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
    for block in net.cls_attn_blocks:
        x = run_block(net, block, x)
    return split(net.norm(x), 1, grid)


def _patches_interact(block: Any, count: int, x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Run an XCiT block in which only the first `count` tokens meet in the local interaction.

    The hooks live inside, so that a gradient checkpoint that runs the block again has them too.
    """
    others = x.shape[1] - count

    def cut(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args[0][:, :count], *args[1:]

    def pad(_: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(output, (0, 0, 0, others))

    with block.local_mp.register_forward_pre_hook(cut), block.local_mp.register_forward_hook(pad):
        out: torch.Tensor = block(x, rows, columns)
    return out


def _plain_tokens(net: Any, pixels: torch.Tensor, extra: Extra) -> Tokens:
    """Any other timm model: its last feature map as patches, without prefix unless timm names one."""
    assert not extra
    if not hasattr(net, "forward_features"):
        raise Unsupported(f"{type(net).__name__} has no forward_features, so no tokens: declare its family")
    x = net.forward_features(pixels)
    if x.ndim == 4:
        if getattr(net, "output_fmt", "NCHW") == "NHWC":
            x = x.permute(0, 3, 1, 2)
        grid = (int(x.shape[2]), int(x.shape[3]))
        return split(x.flatten(2).transpose(1, 2), 0, grid)
    if x.ndim != 3:
        raise Unsupported(f"{type(net).__name__} gives features of shape {tuple(x.shape)}, not tokens")
    prefix = int(getattr(net, "num_prefix_tokens", 0))
    side = int((x.shape[1] - prefix) ** 0.5)
    grid = (side, side) if side * side == x.shape[1] - prefix else (1, x.shape[1] - prefix)
    return split(x, prefix, grid)


def _stage_blocks(net: Any) -> list[nn.Module]:
    """The blocks of a pyramid, stage by stage."""
    stages = getattr(net, "layers", None) or getattr(net, "stages", None) or []
    return [block for stage in stages for block in getattr(stage, "blocks", [])]


def _pyramid(name: str, architecture: type[nn.Module], **facts: Any) -> Family:
    why_not = "it has no single token sequence from start to end"
    known: dict[str, Any] = {"takes_extra": False, "why_not": why_not, **facts}
    return Family(name, architecture, _plain_tokens, _stage_blocks, lambda _: 0, **known)


FAMILIES.append(_pyramid("swin", zoo.swin_transformer.SwinTransformer, fixed_size=True))
FAMILIES.append(_pyramid("levit", zoo.levit.Levit, fixed_size=True))
PLAIN = _pyramid("plain", nn.Module)


def patch_side(net: Any) -> int:
    """The side of the patches that must fill an image; 0 for a network that cuts none."""
    side = getattr(getattr(net, "patch_embed", None), "patch_size", 0)
    return int(side if isinstance(side, int) else side[0])
