"""The report: true to its record, escaped, whole or not at all. How it behaves is in test_browser.py."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from helpers.report_samples import EVIL, gallery_items, poisoned, rich_record, trial
from robvit.cli import app
from robvit.errors import InputError
from robvit.evaluation import claims
from robvit.record import LEVELS, Record, Trial
from robvit.report import GalleryItem, write_report
from robvit.report.adversarial_images import AdversarialImages, shard_folders
from robvit.report.charts import MOST_POINTS, budget_curves, history_curves, step_curves, thinned
from robvit.report.gallery import Shrinker, factor, gallery
from robvit.report.html import metric, numeric_columns
from robvit.report.summary import Labels, attacker_summaries, class_rows, headlines, share


def small_record() -> Record:
    trials = [
        trial("clean", "none", [True, True, True, False]),
        trial("pgd", "linf 8/255", [True, False, True, False], steps=2),
        trial("square", "linf 8/255", [False, True, True, False]),
    ]
    return Record("evaluate", {"name": "small"}, {"spec": "sample", "count": 4}, trials)


def test_the_attacker_levels_stand_on_the_page_once(tmp_path: Path) -> None:
    record = rich_record()
    record.tables += claims.attacker_levels(record)
    assert record.tables[-1].title == LEVELS
    write_report(record, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.lower().count("attacker levels</h") == 1


def page_of(record: Record, tmp_path: Path) -> str:
    write_report(record, tmp_path / "page.html")
    return " ".join(Page(tmp_path / "page.html").text.split())


@pytest.mark.slow
def test_one_attacker_needs_no_table_of_attackers(tmp_path: Path) -> None:
    assert "Attacker levels" not in page_of(small_record(), tmp_path)
    assert "Attack after attack" in page_of(small_record(), tmp_path)
    record = small_record()
    del record.trials[2]
    assert "Attack after attack" not in page_of(record, tmp_path)


@pytest.mark.slow
def test_what_a_number_says_stands_beside_it_with_the_attacker(tmp_path: Path) -> None:
    record = small_record()
    record.protocol = {"name": "quick@1", "about": "Too short for a claim."}
    record.trials = [replace(t, attacker="white-box") for t in record.trials]
    text = page_of(record, tmp_path)
    assert text.index("white-box: pgd, square") < text.index("quick@1: Too short for a claim.")
    assert text.index("quick@1: Too short for a claim.") < text.index("Attack after attack")
    del record.trials[2]
    record.kind, record.protocol = "attack", {}
    assert "One attack gives an upper bound of robust accuracy" in page_of(record, tmp_path)
    record.trials[1] = replace(record.trials[1], surrogate="another")
    text = page_of(record, tmp_path)
    assert "pgd on another" in text
    assert "Transfer only" in text


def test_corruptions_are_no_attacks(tmp_path: Path) -> None:
    fog = replace(trial("fog", "none", [True, False, True, False]), severity=3)
    record = Record("evaluate", {"name": "m"}, {"count": 4}, [small_record().trials[0], fog])
    assert attacker_summaries(record) == []
    assert "under attack" not in page_of(record, tmp_path)


def test_commands_in_sentences_are_set_as_such_and_findings_worst_first(tmp_path: Path) -> None:
    record = rich_record()
    record.notes = ["Run `robvit doctor <b>` first.", "One ` alone."]
    record.findings[2] = replace(record.findings[2], title="Gradients are there", remedy="Use `square`.")
    write_report(record, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<li>Run <code>robvit doctor &lt;b&gt;</code> first.</li><li>One ` alone.</li>" in page
    assert "Use <code>square</code>." in page
    first, second, third = (
        page.index(text) for text in ("Gradients are there", "more steps", "never beats many")
    )
    assert first < second < third


class Page(HTMLParser):
    """The tags, addresses, JSON blocks and text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.blocks: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.within = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.within = dict(attrs).get("type") or tag

    def handle_endtag(self, tag: str) -> None:
        self.within = ""

    def handle_data(self, data: str) -> None:
        if self.within == "application/json":
            self.blocks.append(data)
        elif self.within not in ("script", "style"):
            self.text += data


def test_the_headline_is_the_mean_of_worst_cases_and_attacks_take_their_turns() -> None:
    (summary,) = attacker_summaries(small_record())
    assert summary.worst[:3] == (1, 4, 0.25)
    assert [(s.name, s.correct, s.lost) for s in summary.stages] == [("pgd", 2, 1), ("square", 1, 1)]
    assert summary.clean is not None
    assert summary.clean.hits == 3
    (headline,) = headlines(small_record(), [summary])
    assert (headline.worst, headline.attacks) == (summary.worst, 2)


def test_an_attack_that_saw_only_survivors_is_judged_by_those() -> None:
    record = small_record()
    record.trials[2] = Trial(
        **{**vars(record.trials[2]), "correct": [False, False, True, False], "skipped": [1, 3]}
    )
    (summary,) = attacker_summaries(record)
    assert summary.stages[1].accuracy[:2] == (1, 2)
    (item,) = gallery_items(1, 8)
    shown = gallery(record, [summary], [GalleryItem(place, 1, item.adversarial) for place in (0, 1, 3)])
    assert [item["successes"] for item in shown.items] == [["square"], ["pgd"], ["pgd"]]
    assert [item["outcome"] for item in shown.items] == ["misclassified", "misclassified", "wrong"]
    assert [len(item["predictions"]) for item in shown.items] == [3, 2, 2]


def test_the_headline_takes_every_attacker_and_no_control() -> None:
    def attacked(scenario: str, correct: list[bool], control: bool = False) -> Trial:
        one = trial("pgd", "linf 8/255", correct, scenario)
        return Trial(**{**vars(one), "control": control})

    trials = [
        attacked("secret", [True, False, True, True]),
        attacked("known", [False, True, True, True]),
        attacked("no tokens", [False] * 4, control=True),
    ]
    record = Record("evaluate", {"name": "m"}, {"count": 4}, trials)
    summaries = attacker_summaries(record)
    assert headlines(record, summaries)[0].worst.hits == 2
    assert headlines(record, summaries)[0].worst.share == record.headline().share
    assert [s.is_worst for s in summaries] == [True, False, False]
    assert [s.control for s in summaries] == [False, False, True]


def test_curves_come_from_trials_that_differ_in_one_thing_only() -> None:
    record = rich_record()
    (budget,) = budget_curves(record)
    (line,) = budget.lines.values()
    assert [point[0] for point in line] == [0, 1, 2, 4, 8]
    assert [point[1] for point in line[1:]] == [share(t.correct).share for t in record.trials[1:5]]
    assert all(low <= value <= high for _, value, low, high in line)
    (steps,) = step_curves(record)
    assert [p[0] for p in next(iter(steps.lines.values()))] == [5, 20, 100]
    record.trials[1].settings["seed"] = 1  # now one budget was attacked in another way
    assert [p[0] for p in next(iter(budget_curves(record)[0].lines.values()))] == [0, 2, 4, 8]


def test_long_histories_keep_their_mean_and_range() -> None:
    values = np.random.default_rng(0).random(4321).tolist()
    points = thinned(values)
    assert len(points) <= MOST_POINTS
    assert min(p[2] for p in points) == min(values)
    assert max(p[3] for p in points) == max(values)
    assert thinned([3.0, 4.0]) == [[1, 3.0], [2, 4.0]]
    assert [list(c.lines) for c in history_curves(rich_record())] == [["train loss"], ["clean accuracy"]]


def test_classes_are_counted_and_the_weakest_comes_first() -> None:
    record = rich_record()
    summary = next(s for s in attacker_summaries(record) if s.scenario == "secret known")
    rows = class_rows(record, summary, Labels(record))
    assert sum(row.count for row in rows) == 60
    assert sum(row.worst.hits for row in rows) == summary.worst.hits
    assert [row.worst.share for row in rows] == sorted(row.worst.share for row in rows)
    broken = next(row for row in rows if row.worst.share < 1)
    assert broken.mistake == f"kind {(int(broken.name[-1]) + 1) % 10}"


def test_all_text_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(poisoned(rich_record(EVIL)), path, galleries=[list(gallery_items(3, 16))])
    page = Page(path)
    assert page.tags.count("script") == 1 + len(page.blocks)
    assert page.handlers == []
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert EVIL in page.text
    assert page.text.count("{{7*7}}") == page.text.count("owned'</script>")
    for block in page.blocks:
        json.loads(block, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    items = next(json.loads(block) for block in page.blocks if '"outcome"' in block)
    assert items[0]["name"] == f"test/0000{EVIL}"


def test_a_set_of_records_stands_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "set.html"
    write_report([rich_record("one"), rich_record("two")], path)
    page = Page(path)
    assert page.tags.count("article") == 2
    assert {"#r0", "#r1"} <= set(page.addresses)


@pytest.mark.slow
def test_models_on_the_same_images_get_a_paired_test(tmp_path: Path) -> None:
    weaker = rich_record("two")
    weaker.trials[0] = replace(weaker.trials[0], correct=[False] * 60, predicted=[9] * 60)
    write_report([rich_record("one"), weaker], tmp_path / "set.html")
    text = Page(tmp_path / "set.html").text
    assert "Paired comparison" in text
    assert "exact McNemar test" in text
    weaker.data["names"] = [f"other {i}" for i in range(60)]
    write_report([rich_record("one"), weaker], tmp_path / "others.html")
    assert "Paired comparison" not in Page(tmp_path / "others.html").text


def test_a_certified_share_is_a_lower_bound(tmp_path: Path) -> None:
    trials = [
        trial("clean", "none", [True, True, True, False], "defended"),
        trial("certificate", "patch 4", [True, True, False, False], "defended"),
    ]
    proven = Record("certify", {"name": "m"}, {"spec": "sample", "count": 4}, trials)
    write_report(proven, tmp_path / "proven.html")
    text = Page(tmp_path / "proven.html").text
    assert "certified accuracy, defended" in text
    assert "A lower bound: no attack within this budget" in text
    assert "upper bound" not in text
    assert "attack: certificate" not in text
    write_report([proven, small_record()], tmp_path / "both.html")
    assert "at least" in Page(tmp_path / "both.html").text


def test_half_a_grey_level_reads_as_one(tmp_path: Path) -> None:
    tuned = Record(
        "robustify", {"name": "m", "settings": {"eps": 0.5 / 255, "norm": "linf"}}, {"count": 1}, []
    )
    write_report(tuned, tmp_path / "tuned.html")
    assert "eps=0.5/255" in Page(tmp_path / "tuned.html").text


def test_bare_records_have_a_page_too(tmp_path: Path) -> None:
    write_report(Record("train", {}, {}, []), tmp_path / "bare.html")
    assert "a model" in Page(tmp_path / "bare.html").text
    clean = Record("clean", {"name": "m"}, {"count": 2}, [trial("clean", "none", [True, False])])
    write_report(clean, tmp_path / "clean.html")
    assert "1 of 2" in Page(tmp_path / "clean.html").text


def test_figures_stand_to_the_right_and_words_do_not() -> None:
    rows = [["small", 0.5, "6.2e-14", "12.5 %", None, "3 of 4"], ["base", float("nan"), 7, "−1.0", 2, "4"]]
    assert numeric_columns(rows) == [False, True, True, True, True, False]


def test_one_image_is_not_several_and_options_are_whole_words(tmp_path: Path) -> None:
    record = small_record()
    record.data["count"], record.command = 1, "robvit evaluate net --protocol <b>"
    write_report(record, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "1 image of" in page
    words = '<span class="word">--protocol</span> <span class="word">&lt;b&gt;</span></pre>'
    assert words in page


def test_every_accuracy_among_the_metrics_is_in_per_cent() -> None:
    assert metric("clean accuracy", 1.0) == "100.0 %"
    assert metric("accuracy under attack", 0.125) == "12.5 %"
    assert metric("seconds", 0.5) == 0.5


def pixels(address: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGB"))


def test_small_images_are_exact_and_differences_are_amplified_as_told() -> None:
    (item,) = gallery_items(1, 32)
    assert factor(item) == 127 // 8
    clean, attacked, difference = map(pixels, Shrinker(10**6)(item))
    assert np.array_equal(clean, item.clean)
    assert np.array_equal(attacked, item.adversarial)
    assert item.adversarial is not None
    assert np.array_equal(difference, 128 + 15 * (item.adversarial.astype(int) - item.clean))


def test_images_shrink_until_they_fit_on_the_average() -> None:
    for budget in (8_000, 40_000):
        shrink = Shrinker(budget)
        sizes = [sum(map(len, shrink(item))) for item in gallery_items(6, 224)]
        assert budget / 3 < sum(sizes) / 6 <= budget


def test_what_is_missing_is_empty_and_attention_adds_two_images() -> None:
    (item,) = gallery_items(1, 32, attention=True)
    assert len(Shrinker(10**6)(item)) == 5
    alone = GalleryItem(0, 7, item.adversarial)
    assert [bool(address) for address in Shrinker(10**6)(alone)] == [False, True, False]


UNKNOWN = [(60, 7, "image 60"), (0, 99, "trial 99"), (0, 0, "clean")]


@pytest.mark.parametrize(("place", "number", "message"), UNKNOWN)
def test_images_that_the_record_does_not_know_are_refused(place: int, number: int, message: str) -> None:
    record = rich_record()
    (item,) = gallery_items(1, 8)
    with pytest.raises(InputError, match=message):
        gallery(record, attacker_summaries(record), [GalleryItem(place, number, item.adversarial)])


def robvit_(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def attacked(out: Path) -> Record:
    small = ["--limit", 6, "--set", "steps=2", "--batch", 4]
    robvit_("attack", "robvit-mini-robust", "sample", *small, "--out", out)
    return Record.load(out / "record.json")


@pytest.mark.slow
def test_the_command_shows_attacked_images_with_their_originals(tmp_path: Path) -> None:
    record = attacked(tmp_path)
    assert shard_folders(record, tmp_path) == {1: tmp_path / "shards"}
    shown = list(AdversarialImages(record, {1: tmp_path / "shards"}))
    for item, name in zip(shown, record.data["names"], strict=True):
        saved = np.asarray(Image.open((tmp_path / "images" / name).with_suffix(".png")))
        assert np.array_equal(item.adversarial, saved)
    assert "6 attacked images" in robvit_("report", tmp_path / "record.json")
    items = next(json.loads(b) for b in Page(tmp_path / "report.html").blocks if '"outcome"' in b)
    assert [item["name"] for item in items] == record.data["names"]
    assert {item["factor"] for item in items} - {1} == {15}  # eight levels from the original, or none
    assert all(not item["label"].startswith("class") for item in items)
    other = tmp_path / "both.html"
    robvit_("report", tmp_path, tmp_path / "record.json", "--out", other)
    assert Page(other).tags.count("article") == 2


@pytest.mark.slow
def test_attacks_on_survivors_find_their_images(tmp_path: Path) -> None:
    record = attacked(tmp_path)
    lists = ("correct", "predicted", "distance")
    longer = [
        {**vars(t), **{name: [getattr(t, name)[0], 0, *getattr(t, name)[1:]] for name in lists}}
        for t in record.trials
    ]
    longer[1]["skipped"] = [1]  # an image in between that the attack did not see
    later = Record("evaluate", {}, {"count": 7}, [Trial(**t) for t in longer])
    whole = [e.adversarial for e in AdversarialImages(record, shard_folders(record, tmp_path))]
    parts = [e.adversarial for e in AdversarialImages(later, shard_folders(later, tmp_path))]
    assert parts.pop(1) is None
    assert np.array_equal(whole, parts)


def test_mistakes_get_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one"):
        write_report([], tmp_path / "x.html")
    with pytest.raises(InputError, match="each of 1 records"):
        write_report(rich_record(), tmp_path / "x.html", galleries=[[], []])
    assert not (tmp_path / "x.html").exists()
    assert "no record at" in str(CliRunner().invoke(app, ["report", str(tmp_path / "no.json")]).exception)
