"""A verdict follows from the images on which two outcomes differ, and says how little it can tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from robvit.errors import InputError
from robvit.record import Record
from robvit.statistics import student_quantile
from robvit.verdict import (
    Verdict,
    claim_of,
    claim_of_means,
    claim_of_parts,
    claim_over_seeds,
    power_of,
    seen_together,
    smallest_difference,
)

YES, NO = [True], [False]


def test_a_claim_is_told_only_where_the_pairs_tell_it() -> None:
    assert claim_of("ahead", YES * 40, NO * 40, 1.0).verdict is Verdict.SEEN
    assert claim_of("ahead", NO * 40, YES * 40, 1.0).verdict is Verdict.OPPOSITE
    same = claim_of("even", YES * 21 + NO * 19, YES * 21 + NO * 19)
    assert same.verdict is Verdict.BOUNDED
    assert claim_of("five", YES * 40, NO * 5 + YES * 35).verdict is Verdict.BOUNDED
    assert claim_of("six", YES * 40, NO * 6 + YES * 34).verdict is Verdict.SEEN


def test_a_claim_that_something_falls_behind_is_seen_if_it_does() -> None:
    assert claim_of("it loses", NO * 40, YES * 40, -1.5).verdict is Verdict.SEEN
    assert claim_of("it loses", YES * 40, NO * 40, -1.5).verdict is Verdict.OPPOSITE


def test_what_is_not_seen_is_bounded_by_the_interval() -> None:
    claim = claim_of("scaling helps", YES * 64, YES * 64, 4.93)
    assert claim.wording == "no effect larger than 3.0 points, not the paper's +4.9"
    assert claim.power is not None
    assert 0.85 < claim.power < 0.95
    assert claim.high == pytest.approx(2.97, abs=0.01)
    few = claim_of("scaling helps", YES * 64, YES * 64, 2.0)
    assert few.wording == "no effect larger than 3.0 points, which leaves room for the paper's +2.0"
    even = claim_of("even", YES * 64, YES * 64)
    assert (even.wording, even.power) == ("no effect larger than 3.0 points", None)
    behind = claim_of("behind", YES * 59 + NO * 5, YES * 64)
    assert behind.bound == -behind.low > behind.high
    assert claim_of("it loses", YES * 64, YES * 64, -4.93).rules_out_paper
    assert not claim_of("it loses", YES * 64, YES * 64, -2.0).rules_out_paper


def test_the_least_difference_that_images_can_tell_is_six_one_sided_ones() -> None:
    assert smallest_difference(64) == pytest.approx(100 * 6 / 64)
    assert smallest_difference(6) == 100
    assert smallest_difference(5) is None


def test_the_evidence_is_readable() -> None:
    text = str(claim_of("a over b", YES * 40, NO * 40, 1.0))
    assert text.startswith("a over b: seen: effect between +87.3 and +100.0 points; +100.0 points (95 % ")
    assert "40 images can tell none below 15.0 points, and the paper's effect with a chance of" in text
    assert "images can tell no difference" in str(claim_of("few", YES * 2, NO * 2))


def test_a_record_keeps_claims_as_data(tmp_path: Path) -> None:
    record = Record("study", {}, {"count": 0}, [])
    record.claims = [claim_of("a over b", YES * 40, NO * 40, 1.0), claim_of("few", YES * 2, YES * 2)]
    record.save(tmp_path / "record.json")
    again = Record.load(tmp_path / "record.json")
    assert again.claims == record.claims
    assert again.claims[0].verdict is Verdict.SEEN
    text = (tmp_path / "record.json").read_text().replace('"seen"', '"maybe"')
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(InputError, match="maybe"):
        Record.load(tmp_path / "record.json")


def test_what_images_can_tell_is_said_beforehand() -> None:
    assert power_of(5) == "5 images can tell no difference at all"
    assert power_of(100).startswith("100 images can tell no difference below 6.0 points;")
    assert "12.5 points are told four times in five" in power_of(100)


def test_seeds_that_disagree_widen_the_interval_and_seeds_that_agree_do_not() -> None:
    images = 400
    ahead = [YES * (200 + more) + NO * (200 - more) for more in (20, 20, 20)]
    behind = [YES * 200 + NO * 200] * 3
    agreed = claim_over_seeds("agreed", ahead, behind, 5.0)
    assert (agreed.seeds, agreed.images, agreed.difference) == (3, images, pytest.approx(5.0))
    assert agreed.verdict is Verdict.SEEN
    torn = claim_over_seeds("torn", [YES * (200 + m) + NO * (200 - m) for m in (0, 20, 40)], behind, 5.0)
    assert torn.difference == pytest.approx(5.0)
    assert torn.low < 0 < agreed.low  # Student's factor for three seeds is 4.3
    assert torn.verdict is Verdict.BOUNDED
    assert torn.p > 0.05 > agreed.p
    one = claim_over_seeds("one", ahead[:1], behind[:1], 5.0)
    assert one == claim_of("one", ahead[0], behind[0], 5.0)
    same = claim_over_seeds("same", behind, behind)
    assert same.p == pytest.approx(1)
    assert (
        -same.low == same.high == pytest.approx(196 / 402, abs=1e-3)
    )  # alike on 400 images is not alike on all
    every = claim_over_seeds("every image", [YES * 9] * 3, [NO * 9] * 3)
    assert (every.low, every.high) == (pytest.approx(100 - 196 / 11, abs=0.01), 100)
    assert every.verdict is Verdict.SEEN


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262)]
)
def test_students_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student_quantile(0.05, freedom) == pytest.approx(quantile, abs=1e-3)


def test_means_of_values_are_compared_image_by_image() -> None:
    first, second = [90.0, 80.0, 95.0, 85.0], [88.0, 77.0, 94.0, 81.0]  # 2, 3, 1 and 4 above
    claim = claim_of_means("cosine", first, second, 84.0)
    assert (claim.images, claim.only_first, claim.only_second) == (4, 4, 0)
    assert claim.difference == pytest.approx(2.5)
    half = student_quantile(0.05, 3) * (5 / 3) ** 0.5 / 2  # by hand: deviation of 1, 2, 3, 4 over root four
    assert (claim.low, claim.high) == (pytest.approx(2.5 - half), pytest.approx(2.5 + half))
    assert claim.p == pytest.approx(0.0305, abs=1e-3)  # t = 3.87 with three degrees of freedom
    assert claim.verdict is Verdict.SEEN
    assert "Student's p" in claim.evidence
    assert claim_of_means("cosine", second, first).verdict is Verdict.OPPOSITE
    even = claim_of_means("cosine", first, [91.0, 79.0, 96.0, 84.0])
    assert even.wording == f"no effect larger than {even.bound:.1f} points"
    assert claim_of_means("same", first, first).p == 1
    assert claim_of_means("one above the other", [2.0, 3.0], [1.0, 2.0]).p == 0
    single = claim_of_means("one image", [90.0], [10.0])
    assert (single.low, single.high, single.verdict) == (-200, 200, Verdict.BOUNDED)


def test_means_of_several_seeds_are_taken_together(tmp_path: Path) -> None:
    parts = [claim_of_means("cosine", [90.0 + i, 80.0, 70.0], [50.0, 40.0, 30.0 + i]) for i in range(3)]
    together = claim_of_parts(parts)
    assert (together.seeds, together.images) == (3, 3)
    assert together.difference == pytest.approx(40)
    record = Record("study", {}, {"count": 3}, [], claims=[together])
    record.save(tmp_path / "record.json")
    assert Record.load(tmp_path / "record.json").claims == [together]


def test_a_void_claim_tells_nothing_and_counts_only_where_all_are_void() -> None:
    ahead = [claim_of("a", [True] * 9, [False] * (9 - n) + [True] * n) for n in (0, 1)]
    void = replace(ahead[0], verdict=Verdict.VOID)
    assert void.wording == "void: nothing sets the two sides apart"
    assert claim_of_parts([void, ahead[1]]) == ahead[1]
    assert claim_of_parts([*ahead, void]) == claim_of_parts(ahead)
    assert claim_of_parts([void, void]).verdict is Verdict.VOID


def test_claims_that_are_tested_together_need_more() -> None:
    sure, just = (claim_of("a", [True] * 30, [False] * n + [True] * (30 - n)) for n in (12, 6))
    nothing, opposite = claim_of("a", [True] * 30, [True] * 30), claim_of("a", [False] * 30, [True] * 30)
    assert just.verdict is Verdict.SEEN
    assert seen_together([just]) == [True]
    assert seen_together([sure, just, nothing, opposite]) == [True, False, False, False]
