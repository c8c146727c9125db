"""A record as one page that opens from disk: no network, light and dark, made for print too."""

from __future__ import annotations

import base64
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from robvit.evaluate.record import Record
from robvit.files import written_whole


def write_report(record: Record, path: str | Path, *, pictures: list[Path] | None = None) -> None:
    """Write the page; `pictures` are PNG files that become part of it. All text is escaped."""
    environment = Environment(
        loader=PackageLoader("robvit", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    images = [base64.b64encode(picture.read_bytes()).decode() for picture in pictures or []]
    page = environment.get_template("page.html").render(record=record, rows=record.rows(), images=images)
    with written_whole(path) as aside:
        aside.write_text(page, encoding="utf-8")
