"""The papers' own figures, read from `published.yaml` beside each paper's studies."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

Cell = float | None


@dataclass(frozen=True)
class PublishedTable:
    """A table as it is printed: rows by name, cells by column; None where the paper has no figure."""

    columns: tuple[str, ...]
    rows: dict[str, tuple[Cell, ...]]

    def row(self, name: str) -> tuple[Cell, ...]:
        """The cells of a row; all None if the paper has no such row."""
        return self.rows.get(name, (None,) * len(self.columns))

    def cell(self, name: str, column: str) -> Cell:
        """One figure, None if the paper does not have it."""
        return self.row(name)[self.columns.index(column)]

    def step(self, name: str, before: str, after: str) -> Cell:
        """How much one column of a row is above another, to the two digits that papers print."""
        first, second = self.cell(name, after), self.cell(name, before)
        return None if first is None or second is None else round(first - second, 2)

    def gain(self, better: str, worse: str, column: str) -> Cell:
        """How much one row is above another, to the two digits that papers print."""
        first, second = self.cell(better, column), self.cell(worse, column)
        return None if first is None or second is None else round(first - second, 2)


@dataclass(frozen=True)
class Published:
    """A paper, as it is cited, and its tables by name: published["table2"]."""

    paper: str
    tables: dict[str, PublishedTable]

    def __getitem__(self, name: str) -> PublishedTable:
        return self.tables[name]


def read_published(package: str) -> Published:
    """What a paper publishes; `package` is the folder of its studies, such as "rob"."""
    file = resources.files("robvit.studies").joinpath(package, "published.yaml")
    content = yaml.safe_load(file.read_text("utf-8"))
    return Published(content["paper"], {name: _table(one) for name, one in content["tables"].items()})


def _table(content: dict[str, Any]) -> PublishedTable:
    columns = tuple(content["columns"])
    rows = {name: tuple(cells) for name, cells in content["rows"].items()}
    for name, cells in rows.items():
        assert isinstance(name, str), f"the row's name {name!r} must be quoted in the file"
        assert len(cells) == len(columns), f"{name} must have {len(columns)} cells"
    return PublishedTable(columns, rows)
