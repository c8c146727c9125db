"""The laboratory's queue: it goes on where it stopped, keeps what a study leaves, and runs alone."""

from __future__ import annotations

import fcntl
import gzip
import json
import re
import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from helpers.scripts import load_script
from robvit.cli.recipe_checks import check_study
from robvit.record import Record

ROOT = Path(__file__).parents[2]
COMMAND = "robvit evaluate robvit-mini sample --protocol clean@1 --limit 4 --out {out}"
KEY = "robvit sign --new-key {out}/key.pem"  # a command that needs no torch, and so no time


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with folders of its own."""
    module = load_script("lab", monkeypatch)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(module, "WORK", tmp_path / "work")
    monkeypatch.setattr(module, "copy_of_the_tree", lambda: (ROOT, "a commit"))
    monkeypatch.setattr(sys, "argv", ["lab.py"])
    (tmp_path / "results").mkdir()
    return module


def write_queue(lab: ModuleType, *commands: str) -> None:
    lines = [{"name": f"study-{i}", "command": c, "minutes": 1} for i, c in enumerate(commands)]
    (lab.RESULTS / "queue.yaml").write_text(json.dumps(lines))


def test_the_queue_of_the_project_can_be_read(monkeypatch: pytest.MonkeyPatch, lab: ModuleType) -> None:
    monkeypatch.setattr(lab, "RESULTS", ROOT / "results")
    studies = lab.queue()
    assert len({study.name for study in studies}) == len(studies) > 0
    for study in studies:
        _, *words = study.words()
        assert words[:2] == ["-m", "robvit"] or (ROOT / words[0]).is_file()


def test_studies_of_the_queue_know_their_settings(monkeypatch: pytest.MonkeyPatch, lab: ModuleType) -> None:
    monkeypatch.setattr(lab, "RESULTS", ROOT / "results")
    for study in lab.queue():
        first, verb, *rest = shlex.split(study.command)
        if (first, verb) == ("robvit", "reproduce"):
            given = [value for flag, value in pairwise(rest) if flag == "--set"]
            check_study(rest[0], given)  # refuses a setting that the study does not have


def test_studies_come_after_earlier_ones_of_the_queue(
    monkeypatch: pytest.MonkeyPatch, lab: ModuleType
) -> None:
    monkeypatch.setattr(lab, "RESULTS", ROOT / "results")
    known = set[str]()
    for study in lab.queue():
        assert set(study.after) <= known, study.name
        known.add(study.name)


def test_both_heads_of_the_token_tables_learn_from_the_same_images(
    monkeypatch: pytest.MonkeyPatch, lab: ModuleType
) -> None:
    monkeypatch.setattr(lab, "RESULTS", ROOT / "results")
    tables = [s for s in lab.queue() if re.search(r"reproduce rob-table[124]\b", s.command)]
    for study in tables:
        given = re.findall(r"(?:public|hardened)_head=(\S+)/", study.command)
        assert len(given) in (0, 2), study.name
        assert len(set(given)) < 2, study.name


def test_files_in_a_list_are_known_to_be_needed(lab: ModuleType) -> None:
    makes = lab.Study("first", KEY, 1)
    takes = lab.Study(
        "second", """robvit x --set 'models=["{lab}/first/a.st","{lab}/first/b.st"]' {out}""", 1
    )
    assert makes.files_for(takes) == ["a.st", "b.st"]


@pytest.mark.slow
def test_a_study_is_run_kept_and_not_run_again(lab: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    write_queue(lab, COMMAND)
    assert lab.main() == 0
    result = lab.RESULTS / "study-0"
    about = json.loads((result / "about.json").read_text())
    assert about["command"] == COMMAND
    assert about["commit"] == "a commit"
    assert about["seconds"] > 0
    assert about["cpu_seconds"] > 0
    record = json.loads(gzip.decompress((result / "record.json.gz").read_bytes()))
    assert record["data"]["count"] == 4
    assert "--out {out}" in record["command"]
    assert str(lab.WORK) not in json.dumps(record)
    assert "1 of 1 done" in capsys.readouterr().out
    before = (result / "about.json").stat().st_mtime_ns
    assert lab.main() == 0
    assert (result / "about.json").stat().st_mtime_ns == before
    write_queue(lab, COMMAND.replace("4", "3"))
    (study,) = lab.queue()
    assert not study.is_done()  # the command is another one now


@pytest.mark.slow
def test_a_study_that_fails_is_told_and_the_next_one_runs(
    lab: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"name": "study-0", "command": "robvit evaluate no-such-model sample --out {out}", "minutes": 1},
        {"name": "study-1", "command": KEY, "minutes": 1, "record": False},
    ]
    (lab.RESULTS / "queue.yaml").write_text(json.dumps(lines))
    assert lab.main() == 1
    told = capsys.readouterr().out
    assert "study-0: exit code" in told
    assert "1 of 2 done" in told


@pytest.mark.slow
def test_a_study_that_ends_with_a_finding_is_kept(lab: ModuleType) -> None:
    command = "robvit evaluate no-such-model sample --out {out}"  # exits with 2
    lines = [{"name": "study-0", "command": command, "minutes": 1, "record": False, "codes": [0, 2]}]
    (lab.RESULTS / "queue.yaml").write_text(json.dumps(lines))
    assert lab.main() == 0
    assert lab.queue()[0].is_done()


def test_commands_of_others_and_a_second_laboratory_are_refused(lab: ModuleType) -> None:
    write_queue(lab, "rm -rf {out}")
    with pytest.raises(SystemExit, match=r"must be robvit's"):
        lab.queue()[0].words()
    lab.WORK.mkdir()
    with (lab.WORK / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SystemExit, match="running already"):
            lab.main()


@pytest.mark.slow
def test_a_study_takes_what_an_earlier_one_left(lab: ModuleType) -> None:
    signed = "robvit sign {out} --key {lab}/study-0/key.pem"
    lines = [
        {"name": "study-0", "command": KEY, "minutes": 1, "record": False},
        {"name": "study-1", "command": signed, "minutes": 1},
    ]
    (lab.RESULTS / "queue.yaml").write_text(json.dumps(lines))
    studies = lab.queue()
    assert str(lab.WORK / "study-0" / "key.pem") in studies[1].words()
    assert (studies[1].needs(studies[0]), studies[0].needs(studies[1])) == (True, False)
    studies[1].out.mkdir(parents=True)
    Record("evaluate", {}, {}, []).save(studies[1].out / "record.json")
    assert lab.main() == 0
    assert (studies[1].out / "record.json.sig").exists()
    assert (lab.RESULTS / "study-1" / "record.json.gz").exists()
    assert [path.name for path in (lab.RESULTS / "study-0").iterdir()] == ["about.json"]
    assert lab.left(studies) == []
    shutil.rmtree(lab.WORK / "study-0")  # as on another machine: results/ are there, the files are not
    assert lab.left(studies) == []
    shutil.rmtree(lab.RESULTS / "study-1")
    assert lab.left(studies) == studies


def test_kept_files_are_there_on_another_machine(lab: ModuleType) -> None:
    study = lab.Study("head", "robvit train head {out}", 1, record=False, keeps=["head.safetensors"])
    judged = lab.Study("judged", "robvit evaluate --head {lab}/head/head.safetensors --out {out}", 1)
    study.out.mkdir(parents=True)
    (study.out / "head.safetensors").write_bytes(b"weights")
    lab.keep(study, "a commit", threads=2)
    assert json.loads((study.result / "about.json").read_text())["threads"] == 2
    shutil.rmtree(lab.WORK)
    assert lab.left([study, judged]) == [study, judged]
    lab.restore([study, judged])
    assert (study.out / "head.safetensors").read_bytes() == b"weights"
    assert lab.left([study, judged]) == [judged]


def test_records_of_parts_are_there_on_another_machine(lab: ModuleType) -> None:
    part = lab.Study("part", "robvit reproduce xcit-table1 --out {out}", 1)
    whole = lab.Study("whole", "robvit reproduce xcit-table1 --pool {lab}/part/record.json --out {out}", 1)
    other = lab.Study("other", "robvit evaluate --head {lab}/part/head.safetensors --out {out}", 1)
    part.out.mkdir(parents=True)
    (part.out / "record.json").write_text('{"versions": {}}')
    lab.keep(part, "a commit", threads=1)
    shutil.rmtree(lab.WORK)
    lab.restore([part, whole, other])  # its head is not kept, so it has to run again
    assert lab.left([part, whole, other]) == [part, whole, other]
    lab.restore([part, whole])
    assert (part.out / "record.json").read_text() == '{"versions": {}}'
    assert lab.left([part, whole]) == [whole]


def test_studies_wait_for_data_that_cannot_be_fetched(
    lab: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = lab.Study("pets", "robvit evaluate robvit-mini {data}/pets --out {out}", 1)
    monkeypatch.setattr(lab, "DATA", "")
    assert lab.left([study]) == []
    assert "no data" in lab.status([study])
    monkeypatch.setattr(lab, "DATA", "/data")
    assert lab.left([study]) == [study]
    assert "/data/pets" in study.words()
    assert lab._without_places(study, "read /data/pets") == "read {data}/pets"


def test_studies_run_beside_each_other_but_not_before_what_they_need(
    lab: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Stub:
        def __init__(self, study: Any, threads: int) -> None:
            self.study, self.left = study, 2
            events.append(f"+{study.name}/{threads}")

        def has_ended(self) -> bool:
            self.left -= 1
            return self.left == 0

        def kept(self) -> bool:
            events.append(f"-{self.study.name}")
            return self.study.name != "c"

    monkeypatch.setattr(lab, "Running", Stub)
    monkeypatch.setattr(lab.time, "sleep", lambda _: None)
    monkeypatch.setattr(lab.os, "cpu_count", lambda: 2)
    lab.WORK.mkdir()
    needs_a = "robvit evaluate --head {lab}/a/head --out {out}"
    a, b, c = (lab.Study(n, command, 1) for n, command in (("a", "x"), ("b", needs_a), ("c", "y")))
    assert lab.run([a, b, c], 2) == ["c"]
    assert events == ["+a/1", "+c/1", "-a", "-c", "+b/1", "-b"]
    events.clear()
    d, e = lab.Study("d", "x", 1, after=["c", "gone"]), lab.Study("e", "y", 1)
    assert lab.run([d, c, e], 2) == ["c"]  # and without what failed it makes that itself
    assert events == ["+c/1", "+e/1", "-c", "-e", "+d/1", "-d"]
    assert [study.name for study in lab.put_first(["d"], [a, c, d])] == ["c", "d", "a"]
    events.clear()
    long = lab.Study("long", "z", 30)
    shares = lab.Study("shares", "z", 1, after=["long"])
    assert lab.run([long, shares], 1, lab.fits_into(10, [long])) == []
    assert events == []  # passed over together
    assert lab.run([long, a, b], 1, lab.fits_into(15, [long])) == []  # two threads halve the estimate
    assert events == ["+a/2", "-a", "+b/2", "-b"]
    long.clock.write_text("120.0 120.0\n")
    lab.run([long], 1, lab.fits_into(15, [long]))
    assert events[-2:] == ["+long/2", "-long"]  # two minutes of it are done


def test_what_decides_comes_first_with_what_it_needs(
    lab: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_queue(lab, KEY, KEY, "robvit sign {out} --key {lab}/study-1/key.pem", KEY, KEY)
    order: list[str] = []

    def run(studies: list[Any], jobs: int) -> list[str]:
        order[:] = [study.name[-1] for study in studies]
        return []

    monkeypatch.setattr(lab, "run", run)
    for names, wanted in (([], "01234"), (["4"], "40123"), (["4", "2"], "41203"), (["2", "1"], "12034")):
        words = (word for name in names for word in ("--first", f"study-{name}"))
        monkeypatch.setattr(sys, "argv", ["lab.py", *words])
        assert lab.main() == 0
        assert "".join(order) == wanted
    monkeypatch.setattr(sys, "argv", ["lab.py", "--first", "study-9"])
    with pytest.raises(SystemExit, match="--first must name studies of the queue, got study-9"):
        lab.main()


def test_the_status_tells_what_runs_from_what_was_only_begun(lab: ModuleType) -> None:
    study = lab.Study("a", KEY, 1)
    lab.WORK.mkdir()
    study.clock.write_text("60.0 60.0\n")
    (lab.WORK / ".running").write_text("a\nb")
    assert "begun" in lab.status([study])  # whoever wrote that was killed
    with lab._alone():
        assert "running" in lab.status([study])


def test_pages_show_a_study_only_by_its_whole_name(
    lab: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("")
    (tmp_path / "docs" / "page.md").write_text("net: rob-table2-paper?\n")
    shown = {n: lab._pages_show(lab.Study(n, KEY, 1)) for n in ("rob-table2", "rob-table2-paper", "table2")}
    assert shown == {"rob-table2": False, "rob-table2-paper": True, "table2": False}


def test_what_is_left_is_told_in_processor_hours_by_what_studies_took(lab: ModuleType) -> None:
    done, rest, begun = (lab.Study(name, KEY, 60) for name in ("done", "rest", "begun"))
    lab.WORK.mkdir()
    assert "2.0 processor hours left, at 1.0 times" in lab.status([rest, begun])  # nothing to go by
    done.result.mkdir(parents=True)
    about = {"command": KEY, "cpu_seconds": 90 * 60, "seconds": 7 * 60}
    (done.result / "about.json").write_text(json.dumps(about))
    begun.clock.write_text(f"{30 * 60} {45 * 60}\n")
    assert lab.usual_factor([done, rest]) == 1.5
    assert "1 of 3 done, about 2.2 processor hours left, at 1.5 times" in lab.status([done, rest, begun])


def test_a_study_that_is_run_once_more_takes_the_code_of_that_day(
    lab: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = lab.Study("head", KEY, 1, record=False)
    study.out.mkdir(parents=True)
    for commit in ("old", "new"):
        (tmp_path / commit).mkdir()
    monkeypatch.setattr(lab, "copy_of_the_tree", lambda: (tmp_path / "old", "old"))
    assert lab._tree_of(study) == (tmp_path / "old", "old")
    study.clock.write_text("60.0 60.0\n")
    monkeypatch.setattr(lab, "copy_of_the_tree", lambda: (tmp_path / "new", "new"))
    assert lab._tree_of(study) == (tmp_path / "old", "old")  # it ends as it began
    lab.keep(study, "old", threads=1)
    assert lab._tree_of(study) == (tmp_path / "new", "new")
    assert study.seconds() == (0, 0)


def test_what_is_gone_is_made_again_with_what_it_needs(lab: ModuleType) -> None:
    chain = [
        lab.Study("a", "robvit train {out}", 1, record=False),
        lab.Study("b", "robvit train --lora {lab}/a/l {out}", 1, record=False),
        lab.Study("c", "robvit evaluate --head {lab}/b/h {out}", 1),
    ]
    for study in chain[:2]:
        lab.keep(study, "a commit", threads=1)
    assert lab.left(chain) == chain
