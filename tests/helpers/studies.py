"""What holds of the record of any study."""

from __future__ import annotations

from pathlib import Path

from robvit.record import Record


def check_tables(record: Record, folder: Path) -> None:
    """Every table has rows as wide as its columns, and is the same when it is read back."""
    record.save(folder / "record.json")
    assert Record.load(folder / "record.json").tables == record.tables
    for table in record.tables:
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
