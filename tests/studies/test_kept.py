"""A kept result is made anew by its own command with fewer images, and both are compared."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import robvit
from robvit.cli import app
from robvit.errors import InputError
from robvit.record import Record, Table, Trial
from robvit.statistics import fisher
from robvit.studies.kept import agreement, read_kept
from robvit.verdict import claim_of_means


def record(right: int, count: int, scenario: str = "net") -> Record:
    correct = [True] * right + [False] * (count - right)
    trial = Trial("clean", None, {}, correct, [0] * count, [0.0] * count, scenario=scenario)
    return Record("study", {"name": "net"}, {"count": count, "spec": "sample"}, [trial])


def keep(folder: Path, kept: Record, command: str) -> None:
    folder.mkdir(parents=True)
    kept.save(folder / "record.json")
    (folder / "record.json.gz").write_bytes(gzip.compress((folder / "record.json").read_bytes()))
    (folder / "about.json").write_text(json.dumps({"command": command}))


def test_two_runs_disagree_only_beyond_chance() -> None:
    same = agreement(record(50, 100), record(10, 20))
    assert str(same) == "They agree within intervals in all 1 comparisons."
    other = agreement(record(90, 100), record(4, 20))
    assert other.disagree == ["net, clean, none"]
    assert other.table.rows[0][-1] == "no"
    assert agreement(record(90, 100), record(4, 20, "another")).compared == 0


def test_figures_without_images_stand_side_by_side() -> None:
    tables = [Table("Table 2", ["", "ours"], [["cosine", value], ["paper", None]]) for value in (0.9, 0.8)]
    kept, anew = (Record("study", {}, {"count": 4}, [], tables=[table]) for table in tables)
    found = agreement(kept, anew)
    assert found.table.rows == [["cosine, ours", "0.90", "0.80", None, "–"]]
    assert str(found).startswith("Nothing was compared: neither record keeps what became of each image")


def test_means_of_each_image_are_compared_where_they_are_kept() -> None:
    def cosines(*gains: float) -> Record:
        claim = claim_of_means("tokens over none", [50.0 + gain for gain in gains], [50.0] * len(gains))
        return Record("study", {}, {"count": len(gains)}, [], claims=[claim])

    kept = cosines(*range(20, 40))
    same = agreement(kept, cosines(24, 29, 34, 31))
    assert (same.compared, same.disagree) == (1, [])
    assert same.table.rows[0][1] == "29.5 (26.7 to 32.3)"
    assert agreement(kept, cosines(1, 2, 3, 4)).disagree == ["tokens over none"]
    assert agreement(kept, cosines(30)).compared == 0  # a single image


def test_the_command_is_the_kept_one_with_fewer_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROBVIT_LAB", "l")
    monkeypatch.delenv("ROBVIT_LAB_DATA", raising=False)
    command = "robvit reproduce rob-fig6 --images 100 --out {out} --set tokens={lab}/a"
    keep(tmp_path / "mine", record(50, 100), command)
    kept = read_kept("mine", tmp_path)
    assert kept.fewer == 25
    words = kept.command(8, Path("o"))
    assert words == ["reproduce", "rob-fig6", "--out", "o", "--set", "tokens=l/a", "--images", "8"]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "tokens.safetensors").touch()  # a fresh clone: kept here, and in no laboratory
    command = "robvit certify mini --out {out} --head {lab}/a/tokens.safetensors --lora {lab}/b/c.safetensors"
    keep(tmp_path / "clone", record(50, 100), command)
    words = read_kept("clone", tmp_path).command(8, Path("o"))
    assert words[5:] == [f"{tmp_path}/a/tokens.safetensors", "--lora", "l/b/c.safetensors", "--limit", "8"]
    keep(tmp_path / "part", record(50, 100), "robvit evaluate mini --limit 500 --part 2/5 --out {out}")
    words = read_kept("part", tmp_path).command(8, Path("o"))
    assert words == ["evaluate", "mini", "--out", "o", "--limit", "8"]
    keep(tmp_path / "pooled", record(50, 100), "robvit reproduce x --pool {lab}/a/record.json --out {out}")
    with pytest.raises(InputError, match="pooled from other records"):
        read_kept("pooled", tmp_path).command(8, Path("o"))
    keep(tmp_path / "head", record(50, 100), "robvit train head --out {out}")
    with pytest.raises(InputError, match="head was made by `robvit train`"):
        read_kept("head", tmp_path).command(8, Path("o"))
    keep(tmp_path / "pets", record(50, 100), "robvit evaluate mini pets:{data}/pets --out {out}")
    with pytest.raises(InputError, match="set ROBVIT_LAB_DATA"):
        read_kept("pets", tmp_path).command(8, Path("o"))
    with pytest.raises(
        InputError, match=r"no result is called nowhere: .* there are clone, head, mine, part, pets"
    ):
        read_kept("nowhere", tmp_path)


@pytest.mark.slow
def test_reproduce_check_makes_a_smaller_record_and_compares(tmp_path: Path) -> None:
    whole = robvit.evaluate("robvit-mini", "sample", protocol="clean@1", limit=40)
    command = "robvit evaluate robvit-mini sample --protocol clean@1 --out {out}"
    keep(tmp_path / "mini", whole, command)
    runner = CliRunner()
    done = runner.invoke(app, ["reproduce", "--check", "mini", "--results", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "They agree within intervals in all 1 comparisons." in done.output
    others = [(label + 1) % 10 for label in whole.data["labels"]]
    wrong = replace(whole, trials=[Trial("clean", None, {}, [False] * 40, others, [0.0] * 40)])
    keep(tmp_path / "wrong", wrong, command)
    done = runner.invoke(app, ["reproduce", "--check", "wrong", "--results", str(tmp_path)])
    assert done.exit_code == 1
    assert "They disagree in 1 of 1" in done.output
    keep(tmp_path / "bare", replace(whole, trials=[]), command)
    done = runner.invoke(app, ["reproduce", "--check", "bare", "--results", str(tmp_path)])
    assert done.exit_code == 2
    assert "Nothing was compared" in done.output


def test_fishers_test_agrees_with_known_tables() -> None:
    assert fisher(3, 4, 1, 4) == pytest.approx(0.4857, abs=1e-4)  # the lady tasting tea, both sides
    assert fisher(5, 5, 5, 5) == 1
    assert fisher(100, 100, 0, 100) < 1e-50
