"""`robvit report`: records as one page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robvit.cli.checks import check_data, check_record

if TYPE_CHECKING:
    from robvit.drawing.images import Pixels
    from robvit.record import Record
    from robvit.report.adversarial_images import AdversarialImages


def report(
    records: Annotated[
        list[Path], typer.Argument(metavar="RECORD...", help="One or more records, or folders that hold one.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page; report.html beside the first record if left out.")
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="The clean images (a folder or data set), if not where the record says."
        ),
    ] = None,
) -> None:
    """Turn records into one self-contained page that opens from disk.

    Attacked images that lie beside a record are shown with their originals, up to a thousand a page.
    """
    check_data(images)
    paths = [check_record(path) for path in records]
    from robvit.record import Record
    from robvit.report.html import write_report

    loaded = [Record.load(path) for path in paths]
    shown = [_beside(record, path.parent, images) for record, path in zip(loaded, paths, strict=True)]
    place = out or paths[0].with_name("report.html")
    sheets = [path.with_name("sheet.png") for path, some in zip(paths, shown, strict=True) if not some]
    write_report(loaded, place, galleries=shown, images=[sheet for sheet in sheets if sheet.is_file()])
    size = place.stat().st_size / 1e6
    typer.echo(f"written: {place} ({size:.1f} MB, {sum(map(len, shown))} attacked images at hand)")
    typer.echo(f"next: open {place}")


def _beside(record: Record, folder: Path, images: str | None) -> AdversarialImages:
    """The images beside a record, with their originals if these are the very ones it names."""
    from robvit.report.adversarial_images import AdversarialImages, shard_folders

    folders = shard_folders(record, folder)
    if not folders:
        return AdversarialImages(record, {})
    sides = (e.adversarial.shape[0] for e in AdversarialImages(record, folders) if e.adversarial is not None)
    side = next(sides, None)
    return AdversarialImages(record, folders, None if side is None else _originals(record, side, images))


def _originals(record: Record, side: int, images: str | None) -> Callable[[int], Pixels] | None:
    from robvit.attacks.pixels import levels
    from robvit.data import open_data
    from robvit.errors import RobvitError

    data = record.data
    try:
        if not images and str(data.get("spec")).startswith("hf:"):
            raise RobvitError("a record does not make anyone fetch images from the hub")
        found = open_data(
            images or str(data.get("spec")),
            split=str(data.get("split") or "") or None,
            size=side,
            resize=str(data.get("resize") or "squash"),
            subset=[str(name) for name in data.get("names") or []],
            check=False,
        )
        if found.digest() != data.get("digest"):
            raise RobvitError("their names and labels are not those of the record")
    except RobvitError as error:
        if images:
            raise
        typer.echo(f"the originals are not shown: {error}; give them with --images", err=True)
        return None
    return lambda place: levels(found[place][0]).permute(1, 2, 0).numpy()
