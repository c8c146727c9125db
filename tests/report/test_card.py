"""The model card: figures of records and nothing else, what is missing is said, other weights are refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import robvit
from helpers.lora import changed_lora, images
from helpers.scripts import load_script
from robvit.autoattack import part_settings
from robvit.backbones import zoo
from robvit.budget import Budget
from robvit.cli import app
from robvit.errors import InputError
from robvit.evaluation.attack import SEGMENTED
from robvit.evaluation.tables import formatted
from robvit.record import Record, Table, Trial
from robvit.report.card import model_card


@pytest.fixture(scope="module")
def tuning() -> Record:
    how = robvit.Tuning(
        steps=3, batch=4, lr=1e-2, rank=2, held_out=2, validations=1, judge_steps=1, eps=2 / 255
    )
    return robvit.robustify("robvit-mini", images(), method="lora", tuning=how, command="a | b").record


def judged(tuning: Record, fingerprint: str = "", **steps: int) -> Record:
    correct = [True] * 15 + [False] * 5
    trials = [Trial("clean", None, {}, [True] * 18 + [False] * 2, [0] * 20, [0.0] * 20)]
    trials += [
        Trial(name, Budget("linf", 1 / 255), {"steps": count}, correct, [0] * 20, [0.0] * 20)
        for name, count in steps.items()
    ]
    model = {"name": "m", "fingerprint": fingerprint or tuning.model["tuned fingerprint"]}
    data = {"spec": "cifar10", "count": 20, "digest": "d", "names": [str(i) for i in range(20)]}
    return Record("evaluate", model, data, trials, protocol={"name": "p@1"})


@pytest.mark.slow
def test_a_card_tells_data_eps_cost_figures_with_intervals_and_limits(tuning: Record) -> None:
    original = judged(tuning, tuning.model["fingerprint"], pgd=10)
    card = model_card([judged(tuning, apgd_ce=50, apgd_t=30), tuning, original])
    assert card.startswith("# robvit-mini-robust\n")
    for words in (
        "| eps | 2/255 (linf) |",
        "| image size | 32x32 |",
        r"| command | `a \| b` |",
        "| data | in memory, 22 images, digest `",
        "| tuned | cifar10 | p@1 | linf 1/255 | 20 | 90.0% (69.9% to 97.2%) | 75.0% (53.1% to 88.8%) |",
        "| original | cifar10 |",
        "AutoAttack has not judged it",
        "Judged on cifar10 at 32 pixels and nothing else.",
        "No labels were used.",
        f"| cost | {tuning.metrics['processor seconds'] / 60:.1f} processor minutes |",
    ):
        assert words in card, words
    full = judged(tuning, apgd_ce=100, apgd_t=100, fab_t=100, square=5000)
    assert "AutoAttack has not judged" in model_card([tuning, full]), "no record of the targets"
    for trial in full.trials:
        trial.settings.update(part_settings(sparse=False).get(trial.attack, {}))
    assert "AutoAttack has not judged" not in model_card([tuning, full], name="x")
    named_so = judged(tuning, pgd=10)
    named_so.protocol["name"] = "unaudited@1"  # a name is no attack
    assert "AutoAttack has not judged" in model_card([tuning, named_so])
    assert "nothing is claimed" in model_card([tuning])


def test_a_card_tells_what_a_tuning_started_from(tuning: Record) -> None:
    assert "started from" not in model_card([tuning])
    start = {"digest": "f" * 64, "steps": 170}
    cost = tuning.metrics | {"processor seconds": 120.0, "seconds": 600.0}

    def card(machine: dict[str, str], known: dict[str, float] | None = None) -> str:
        settings = tuning.model["settings"] | {"start": start | (known or {})}
        later = replace(tuning, model=tuning.model | {"settings": settings}, metrics=cost, machine=machine)
        return model_card([later])

    assert f"| started from | factors of 170 steps, `{'f' * 12}` |" in card({})
    assert "| 2.0 processor minutes, and what its start had cost, which is not recorded |" in card({})
    assert "| 5.0 processor minutes, 3.0 of them for its start |" in card({}, {"processor seconds": 180.0})
    assert "| 10.0 minutes by the clock on cuda |" in card({"device": "cuda"})


def test_no_name_or_note_writes_markdown_of_its_own(tuning: Record) -> None:
    """Whose record it is decides what a card says, not how it looks or what a reader's browser fetches."""
    hostile = "x\n\n## Judged <img src=//evil.example> ![a](//evil.example) `<b>` | 99 %\x1b[31m"
    record = judged(tuning, pgd=1)
    record.notes, record.data["spec"], record.model["name"] = [hostile], hostile, hostile
    record.protocol["name"], record.trials[1] = hostile, replace(record.trials[1], scenario=hostile)
    made = replace(tuning, model=tuning.model | {"name": hostile}, command=hostile)
    cards = [
        model_card([made, record]),
        record.card(name=hostile),
        formatted([record], "markdown"),
    ]
    for card in cards:
        assert "## Judged" not in card.split("\n")
        assert not [line for line in card.splitlines() if line.startswith("## Judged")]
        assert "\x1b" not in card
        outside = re.sub(r"(?<!\\)`[^`]*`", "", re.sub(r"```.*?```", "", card, flags=re.DOTALL))
        assert not re.search(r"(?<!\\)(<img|<b>|!\[)", outside), outside
        assert re.search(r"\\<img src=(//)?evil\.example", card)


def test_records_of_other_weights_or_without_a_tuning_are_refused(tuning: Record, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither this tuning's result nor its original"):
        model_card([tuning, judged(tuning, "0" * 64, pgd=1)])
    with pytest.raises(InputError, match="got 0 tunings among 1 records"):
        model_card([judged(tuning, pgd=1)])
    tuning.save(tmp_path / "record.json")
    done = CliRunner().invoke(app, ["card", str(tmp_path), "--out", str(tmp_path / "card.md"), "--name", "x"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "card.md").read_text().startswith("# x\n")
    again = CliRunner().invoke(app, ["card", str(tmp_path), "--out", str(tmp_path / "card.md")])
    assert "already there" in str(again.exception)


def test_a_card_tells_of_dense_tasks_with_intervals(tuning: Record) -> None:
    rows = [["no attack", 60, 45.0, 80.0, 77.5, 82.5], ["segpgd, linf 1/255", 60, 30.0, 70.0, 66.0, 74.0]]
    columns = ["under", "images", "mIoU, %", "pixel accuracy, %", "low", "high"]
    model = {"name": "m", "fingerprint": tuning.model["tuned fingerprint"]}
    data = {"spec": "camvid", "count": 60, "digest": "d"}
    card = model_card([tuning, Record("attack", model, data, [], tables=[Table(SEGMENTED, columns, rows)])])
    assert "| tuned | camvid | attack | mIoU, segpgd, linf 1/255 | 60 | 45.0% | 30.0% |" in card
    assert "| 60 | 80.0% (77.5% to 82.5%) | 70.0% (66.0% to 74.0%) |" in card


@pytest.mark.slow
def test_the_cards_of_bundled_networks_and_what_tunings_reached_are_what_records_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = load_script("fill_docs", monkeypatch).shipped()
    tuned = [known for known in zoo.ALIASES.values() if known.tuned_from]
    names = {path.name for path in made}
    assert names == {"recorded.json", *(f"{known.alias}.md" for known in tuned)}
    for place, text in made.items():
        assert place.read_text("utf-8") == text, "run `python scripts/fill_docs.py`"
        assert not re.search(r"\{(lab|data|out)\}", text), "a place of the laboratory tells a reader nothing"


def test_the_tuning_of_bundled_factors_is_found_by_all_of_its_settings(
    tuning: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, seeds = load_script("fill_docs", monkeypatch), (0, 1)
    settings = tuning.model["settings"]
    records = [replace(tuning, model=tuning.model | {"settings": settings | {"seed": s}}) for s in seeds]
    factors = changed_lora(robvit.load("robvit-mini"))
    own = settings | {"seed": 1, "data": tuning.data["digest"]}
    factors = replace(factors, fingerprint=tuning.model["fingerprint"], settings=own)
    assert fill._tuning_of(factors, "mine", records) is records[1]
    with pytest.raises(SystemExit, match="one tuning with the settings of mine, got 0"):
        fill._tuning_of(factors, "mine", records[:1])
