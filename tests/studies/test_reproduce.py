"""How studies are called, what they leave behind, and what they are given."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import robvit
from robvit.data import open_data
from robvit.errors import DataError, InputError, UnknownName
from robvit.record import Record, Table
from robvit.settings import parse_settings
from robvit.studies import STUDIES, StudyContext
from robvit.studies.judging import rounding_notes
from robvit.studies.published import read_published
from robvit.threat import Threat

QUICK: dict[str, Any] = {"images": 2, "steps": 1}


def test_words_in_lists_of_settings_keep_their_capitals() -> None:
    known = dict.fromkeys(("rows", "twins", "eps", "seeds", "training", "fit"))
    given = ['rows=["DeiT-S"]', "twins=False", "eps=2/255", "seeds=[0,1]", "training=Runs/A", "fit=NaN"]
    found = parse_settings(given, known, "a study")
    assert found == {
        "rows": ["DeiT-S"],
        "twins": False,
        "eps": 2 / 255,
        "seeds": [0, 1],
        "training": "Runs/A",
        "fit": "NaN",
    }


def test_the_signature_tells_the_truth() -> None:
    parameters = inspect.signature(robvit.reproduce).parameters
    assert list(parameters)[:8] == ["study", "model", "data", "images", "img_size", "resize", "seed", "out"]
    for name in parameters:
        assert f"{name}: " in (robvit.reproduce.__doc__ or "")


def test_unknown_studies_and_settings_are_refused_by_name() -> None:
    with pytest.raises(UnknownName, match="no study is called 'rob-table9'"):
        robvit.reproduce("rob-table9")
    with pytest.raises(UnknownName, match="no setting of xcit-fig11 is called 'stepz'; did you mean steps"):
        robvit.reproduce("xcit-fig11", stepz=3)
    with pytest.raises(InputError, match="images must be 1 or more, got 0"):
        robvit.reproduce("xcit-fig11", images=0)


@pytest.mark.parametrize(
    ("study", "settings", "wanted"),
    [
        ("rob-table2", {"steps": "many"}, "steps must be a number from 0, got 'many'"),
        ("rob-table2", {"tokens": 3}, "tokens must be a word, got 3"),
        ("xcit-table7", {"sets": "flowers"}, "sets must be a list, such as"),
    ],
)
def test_settings_of_another_kind_are_refused_before_anything_runs(
    study: str, settings: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(InputError, match=wanted):
        robvit.reproduce(study, **settings)


def test_every_setting_of_an_effort_is_a_setting_of_its_study() -> None:
    for entry in STUDIES:
        effort, parameters = entry.info.effort, inspect.signature(entry.value).parameters
        shared = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][
            1:
        ]  # after the context
        assert bool(shared) == (effort is not None), entry.name
        if effort is not None:
            assert not set(vars(effort)) & set(parameters), entry.name
            assert set(vars(effort)) <= set(entry.info.defaults), entry.name


def test_a_folder_holds_the_record_and_without_one_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = robvit.reproduce("xcit-fig11", out="kept", command="robvit reproduce xcit-fig11", **QUICK)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["fig11.png", "record.json"]
    assert Record.load(tmp_path / "kept" / "record.json") == kept
    assert kept.command == "robvit reproduce xcit-fig11"
    again = robvit.reproduce("xcit-fig11", **QUICK)
    assert again.tables == kept.tables
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_model_and_images_in_memory_are_taken_as_they_are() -> None:
    model, images = robvit.load("robvit-mini-robust"), open_data("sample", split="test", limit=2)
    by_name = robvit.reproduce("xcit-fig11", **QUICK)
    in_memory = robvit.reproduce("xcit-fig11", model=model, data=images, steps=1)
    assert in_memory.tables == by_name.tables
    with pytest.raises(
        InputError, match="robvit-mini-robust is loaded already; give its name to choose img_size"
    ):
        robvit.reproduce("xcit-fig11", model=model, img_size=64)
    with pytest.raises(InputError, match="this study trains networks"):
        robvit.reproduce("xcit-table2", model=model)
    with pytest.raises(InputError, match="this study trains networks"):
        robvit.reproduce("xcit-table2", data=images)


def test_a_context_names_images_and_model_or_takes_the_studys_own() -> None:
    own = StudyContext().dataset("sample", "test", 32, 4)
    assert len(own) == 4
    assert StudyContext(data="sample").dataset("nowhere", "test", 32, 4).digest() == own.digest()
    assert StudyContext(model="robvit-mini").load("nothing").name == "robvit-mini"


def test_the_images_to_test_on_are_no_stand_in_for_those_to_learn_from(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part / "cat").mkdir(parents=True)
    for i in range(8):
        Image.new("RGB", (8, 8)).save(tmp_path / "test" / "cat" / f"{i}.png")
    with pytest.raises(DataError):
        StudyContext(data=str(tmp_path)).splits("sample", 8, learn=5, judged=3)


def test_one_folder_is_shared_out_between_learning_and_judging(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(4):
            Image.new("RGB", (8, 8), (i * 60, 0, 0)).save(tmp_path / name / f"{i}.png")
    context = StudyContext(data=str(tmp_path))
    learn, judged = context.splits("sample", 8, learn=5, judged=3)
    assert (len(learn), len(judged)) == (5, 3)
    assert not set(learn.names) & set(judged.names)
    for asked in ({"learn": 9, "judged": 3}, {"learn": 5, "judged": 7}, {"learn": 5, "judged": 20}):
        with pytest.raises(InputError, match=f"has 8 images; {asked['learn']} are to learn from and"):
            context.splits("sample", 8, **asked)
    in_memory = StudyContext(data=open_data(tmp_path))
    learn, judged = in_memory.splits("sample", 8, learn=5, judged=3)
    assert (len(learn), len(judged)) == (5, 3)
    assert not set(learn.names) & set(judged.names)


def test_a_budget_between_two_grey_levels_is_told_as_the_one_that_was_judged() -> None:
    whole, between = Threat("linf", 2 / 255), Threat("linf", 1.8 / 255)
    assert rounding_notes(None, whole, Threat("l2", 0.5), Threat("linf", math.inf)) == []
    (note,) = rounding_notes(whole, between)
    assert note == "Images are whole grey levels, so within linf 1.8/255 it is linf 1/255 that was judged."


def test_cells_of_a_table_are_printed_for_reading() -> None:
    assert [Table.cell(value) for value in (None, 0.125, 3, "a")] == ["–", "0.12", "3", "a"]


@pytest.mark.parametrize(
    ("package", "table", "row", "cells"),
    [
        ("rob", "table1", "dinov2-giant", (85.2, 85.6, 46.6, 47.2)),
        ("rob", "table2", "dinov2-small", (0.09, 0.93, 0.0, 31.9, 2.8, 24.6)),
        ("rob", "table4", "dinov2-giant", (None, None)),
        ("aas", "table3", "PGD-100", (61.10, 59.43, 58.01)),
        ("aas", "table5", "aas-trades", (87.46, 59.01, 58.03, 57.34)),
        ("tora", "table2", "0.7, joint", (81.11, 65.75, 50.99, 23.68, 54.29, 41.55)),
        ("tora", "cost", "tora", (26.0, 111.2)),
        ("xcit", "table3", "randaugment and erase", (78.08, 64.76, 37.62)),
        ("xcit", "table6", "XCiT-S12", (384, 26, 4.82, 72.34, 41.78)),
        ("xcit", "table9", "robust XCiT-S12", (43.86, 49.52, 40.24)),
    ],
)
def test_the_papers_figures_are_what_they_print(
    package: str, table: str, row: str, cells: tuple[float | None, ...]
) -> None:
    published = read_published(package)
    assert published[table].row(row) == cells
    assert published[table].row("no such row") == (None,) * len(cells)
    assert {entry.info.paper for entry in STUDIES if entry.name.startswith(package)} == {published.paper}
    for one in published.tables.values():
        assert all(
            cell is None or isinstance(cell, int | float) for cells in one.rows.values() for cell in cells
        )


def test_a_gain_is_the_difference_of_two_printed_figures() -> None:
    table = read_published("xcit")["table5"]
    assert table.gain("+ tuned weight decay", "DeiT-S", "AutoAttack") == 9.08  # as the thesis prints it
    assert table.gain("+ tuned weight decay", "nobody", "AutoAttack") is None
    assert table.cell("DeiT-S", "clean") == 66.30
