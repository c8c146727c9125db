"""`robvit models`: what can be loaded, and what works for it."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from robvit.backbones import zoo
from robvit.cli.tables import console
from robvit.registry import unknown

if TYPE_CHECKING:
    from rich.table import Table


class FamilyRow(NamedTuple):
    """A family as people know it, one timm name of it, and whether it can take tokens."""

    family: str
    example: str
    tokens: bool = True


# A test builds every example and compares it with this table.
FAMILIES = (
    FamilyRow("ViT, AugReg", "vit_base_patch16_224"),
    FamilyRow("DeiT", "deit_small_distilled_patch16_224"),
    FamilyRow("DeiT-III", "deit3_base_patch16_224"),
    FamilyRow("DINOv2", "vit_small_patch14_dinov2"),
    FamilyRow("DINOv2 with registers", "vit_small_patch14_reg4_dinov2"),
    FamilyRow("CLIP, OpenCLIP image towers", "vit_base_patch16_clip_224"),
    FamilyRow("SigLIP image towers", "vit_base_patch16_siglip_224"),
    FamilyRow("DINOv3", "vit_small_patch16_dinov3"),
    FamilyRow("EVA-02", "eva02_tiny_patch14_224"),
    FamilyRow("CaiT", "cait_xxs24_224"),
    FamilyRow("XCiT", "xcit_small_12_p16_224"),
    FamilyRow("Swin", "swin_tiny_patch4_window7_224", tokens=False),
    FamilyRow("LeViT", "levit_128s", tokens=False),
)


def models(
    pattern: Annotated[
        str | None, typer.Argument(help="List timm's models with this in their name, such as dinov3.")
    ] = None,
) -> None:
    """List friendly names and model families, and what works for each."""
    if pattern is None:
        _overview()
    else:
        _search(pattern)


def _overview() -> None:
    shown = console()
    names = _table("Friendly names", "name", "timm's name", "parameters")
    for known in zoo.TABLE:
        names.add_row(known.alias, known.timm_name, f"{known.params:,.1f} M")
    shown.print(names, "")

    table = _table("Families", "family", "for example", "scales", "tokens")
    for row in FAMILIES:
        table.add_row(row.family, row.example, "yes", "yes" if row.tokens else "no")
    shown.print(table, "")
    shown.print(
        "Any timm model of these families loads by its name. Attacks and training work for all;",
        "scales: attention can be rescaled before its softmax; tokens: extra tokens can harden it,",
        "which needs one sequence from start to end. Other timm models load for attacks and features.",
    )
    shown.print(
        "\nnext: `robvit weights list` tells where weights come from, `robvit models xcit` lists timm's names"
    )


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _search(pattern: str) -> None:
    known = zoo.timm_networks()
    found = fnmatch.filter(known, f"*{pattern}*")
    if not found:
        raise unknown("timm model", pattern, known)
    typer.echo("\n".join(found))
