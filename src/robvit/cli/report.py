"""`robvit report`: records as one page."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.checks import check_data, check_record, read_record


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
            metavar="DATA", help="The clean images (a folder or dataset), if not where the record says."
        ),
    ] = None,
) -> None:
    """Turn records into one self-contained page that opens from disk.

    Attacked images that lie beside a record are shown with their originals, up to a thousand a page.
    """
    check_data(images)
    paths = [check_record(path) for path in records]
    loaded = [read_record(path) for path in paths]
    from robvit.report.adversarial_images import images_beside
    from robvit.report.html import write_report

    shown = [
        images_beside(record, path.parent, images, log=partial(typer.echo, err=True))
        for record, path in zip(loaded, paths, strict=True)
    ]
    place = out or paths[0].with_name("report.html")
    drawn = [
        path.with_name(name)
        for path, some in zip(paths, shown, strict=True)
        for name in ("places.png", *(() if some else ("sheet.png",)))
    ]
    write_report(loaded, place, galleries=shown, images=[image for image in drawn if image.is_file()])
    size = place.stat().st_size / 1e6
    typer.echo(f"written: {place} ({size:.1f} MB, {sum(map(len, shown))} attacked images at hand)")
    typer.echo(f"next: open {place}")
