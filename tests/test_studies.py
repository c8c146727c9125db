"""Studies: how they are asked for, and that what they print follows from what they measured."""

from __future__ import annotations

import pytest

import robvit
from robvit.errors import UnknownName
from robvit.evaluate.record import Table
from robvit.studies import Request


def test_unknown_studies_and_settings_are_refused_by_name() -> None:
    with pytest.raises(UnknownName, match="no study is called 'rob-table9'"):
        robvit.reproduce("rob-table9")


def test_cells_of_a_table_are_printed_for_reading() -> None:
    assert [Table.cell(value) for value in (None, 0.125, 3, "a")] == ["–", "0.12", "3", "a"]


def test_a_request_names_pictures_and_model_or_takes_the_studys_own() -> None:
    own = Request().pictures("sample", "test", 32, 4)
    assert len(own) == 4
    assert Request(data="sample").pictures("nowhere", "test", 32, 4).digest() == own.digest()
    assert Request(model="robvit-mini").load("nothing").name == "robvit-mini"
