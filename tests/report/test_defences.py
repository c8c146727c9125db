"""Defences side by side: one column a defence, one row an attacker, and nothing where nobody measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robvit.budget import Budget
from robvit.record import Record, Trial
from robvit.report.defences import defence_of, defence_table
from robvit.report.html import write_report


def judged(correct: dict[str, int], digest: str = "d", **model: Any) -> Record:
    """A record in which so many of ten images are correct under each attacker."""
    trials = []
    for name, count in correct.items():
        clean = Trial("clean", None, {}, [True] * 9 + [False], [0] * 10, [0.0] * 10, scenario=name)
        right = [True] * count + [False] * (10 - count)
        threat, none = Budget("linf", 1 / 255), [0.0] * 10
        attacked = Trial("pgd", threat, {}, right, [0] * 10, none, scenario=name, attacker=name)
        trials += [clean, attacked]
    data = {"digest": digest, "count": 10, "names": [str(i) for i in range(10)], "labels": [0] * 10}
    return Record("evaluate", {"name": "m", **model}, data, trials)


def test_a_column_a_defence_and_a_row_an_attacker(tmp_path: Path) -> None:
    tokens = judged({"no-tokens": 8, "white-box": 0}, tokens=10)
    tuned = judged({"black-box": 7, "white-box": 6}, **{"tuned from": "f" * 64, "tokens": 0})
    both = judged({"no-tokens": 8, "white-box": 5}, **{"tuned from": "f" * 64, "tokens": 10})
    again = judged({"white-box": 4}, **{"tuned from": "f" * 64, "tokens": 0})
    bare = judged({"white-box": 0})
    records = [bare, tokens, tuned, both, again]
    assert [defence_of(r) for r in records] == ["no defence", "tokens", "tuned", "tokens and tuned", "tuned"]
    table = defence_table(records)
    assert table is not None
    assert table.columns == [
        "attacker",
        "knows",
        "threat",
        "no defence",
        "tokens",
        "tuned",
        "tokens and tuned",
    ]
    rows = {row[0]: row[3:] for row in table.rows}
    assert set(rows) == {"clean", "white-box", "black-box", "no-tokens"}
    assert table.rows[0][0] == "clean"
    shares = {name: [cell and cell.split(" ")[0] for cell in cells] for name, cells in rows.items()}
    assert shares["clean"] == ["90.0%"] * 4
    assert shares["white-box"] == ["0.0%", "0.0%", "40.0%", "50.0%"]  # the worse of two records counts
    assert shares["no-tokens"] == [None, "80.0%", None, "80.0%"]
    write_report(records, tmp_path / "page.html")
    assert "Defences by attacker" in (tmp_path / "page.html").read_text("utf-8")


def test_one_defence_or_other_images_make_no_table() -> None:
    tokens, bare = judged({"white-box": 0}, tokens=10), judged({"white-box": 0}, digest="other")
    assert defence_table([tokens]) is None
    assert defence_table([tokens, tokens]) is None
    assert defence_table([tokens, bare]) is None
