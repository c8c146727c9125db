"""Options that several commands share, with one wording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="An alias or timm name (`robvit models`), or a checkpoint's path."),
]
DataSpec = Annotated[
    str, typer.Argument(metavar="DATA", help="A data set (`robvit data list`) or a folder of images.")
]
ImageSize = Annotated[
    int | None,
    typer.Option("--img-size", help="Side of the images in pixels; the model's own if left out."),
]
Architecture = Annotated[
    str | None,
    typer.Option("--arch", help="The network in a checkpoint that does not name it, such as xcit-s12."),
]
Fit = Annotated[
    str,
    typer.Option("--fit", help="squash the whole image to a square, or crop its middle as for ImageNet."),
]
Head = Annotated[Path | None, typer.Option("--head", help="A head from `robvit train head`.")]
Tokens = Annotated[Path | None, typer.Option("--tokens", help="Tokens that harden the judged model.")]
Adapters = Annotated[
    Path | None, typer.Option("--adapters", help="Adapters from `robvit train tora`, on the judged model.")
]
JudgedSplit = Annotated[
    str | None, typer.Option("--split", help="The split of the data; test or validation if left out.")
]
Precision = Annotated[
    str, typer.Option(help="fp32, or bf16 or fp16 for a faster search whose successes fp32 confirms.")
]
Seed = Annotated[int, typer.Option(help="Decides every random draw.")]
Limit = Annotated[int | None, typer.Option(help="At most so many images, drawn by a fixed seed.")]
BatchSize = Annotated[int, typer.Option("--batch", min=1, help="Images in one pass.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is already there.")]


def free_place(path: Path, force: bool) -> Path:
    """The path, unless something is there that was not given up with --force."""
    from robvit.errors import InputError

    if path.exists() and not force:
        raise InputError(f"{path} is already there; choose another --out, or replace it with --force")
    return path


def parse_settings(given: list[str], known: dict[str, Any], owner: str) -> dict[str, Any]:
    """Settings from text such as steps=20: whole numbers, fractions, lists, true and false, or words."""
    import json

    from robvit.budget import parse_number
    from robvit.errors import InputError
    from robvit.registry import unknown

    settings: dict[str, Any] = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals:
            raise InputError(f"a setting looks like steps=20, got {item!r}")
        if name not in known:
            raise unknown(f"setting of {owner}", name, list(known))
        try:
            settings[name] = json.loads(text.lower())
        except ValueError:
            is_fraction = all(part.replace(".", "", 1).isdigit() for part in text.split("/"))
            settings[name] = parse_number(text) if is_fraction else text
    return settings
