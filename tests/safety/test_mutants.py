"""Every defence that `make mutants` takes out is still where it says, and its tests are there."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest

from helpers.scripts import load_script

ROOT = Path(__file__).parents[2]

TEST = """
import pytest
from robvit.errors import InputError
from robvit.files import parse_yaml

def test_nan_is_refused():
    with pytest.raises(InputError, match="nan"):
        parse_yaml("a: [1, .nan]", "a file")
"""


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_script("mutants", monkeypatch)


def test_every_mutant_can_be_made_and_its_tests_are_there(tool: ModuleType) -> None:
    for mutant in tool.mutants():
        text = (ROOT / "src" / "robvit" / mutant.file).read_text()
        assert mutant.old in text, f"{mutant.what}: {mutant.file} no longer has {mutant.old!r}"
        assert mutant.old != mutant.new
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert f"def {name}" in (ROOT / file).read_text(), f"{mutant.what}: no test {test}"


@pytest.mark.slow
def test_a_defence_that_goes_is_noticed_and_a_change_of_nothing_is_not(
    tool: ModuleType, tmp_path: Path
) -> None:
    copy = tmp_path / "src"
    shutil.copytree(ROOT / "src", copy)
    own = tmp_path / "test_nan.py"  # outside of the tree, whose tests all load torch
    own.write_text(TEST)
    tests = [str(own)]
    call = "        _refuse_nan(content)\n"
    gone = tool.Mutant("nan", "files.py", call, "", tests)
    same = tool.Mutant("nothing", "files.py", call, f"        pass\n{call}", tests)
    assert [one.noticed(copy) for one in (gone, same)] == ["failed", "UNNOTICED"]
    assert (copy / "robvit" / "files.py").read_text() == (ROOT / "src/robvit/files.py").read_text()
    assert tool.Mutant("typo", "files.py", "no such line", "", tests).noticed(copy) == "NOT FOUND"
