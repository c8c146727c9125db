"""Windows cover every patch, tried pixel by pixel."""

from __future__ import annotations

import pytest

from robvit.certification.windows import check_cover, cover, ranges, touched
from robvit.errors import InputError


def tokens_under(row: int, column: int, patch: int, token: int, columns: int) -> set[int]:
    """The tokens whose pixels a patch overlaps, pixel by pixel."""
    return {
        (r // token) * columns + c // token
        for r in range(row, row + patch)
        for c in range(column, column + patch)
    }


@pytest.mark.parametrize(
    ("side", "token", "patch", "per_axis"),
    [(32, 4, 1, 2), (32, 4, 4, 3), (32, 4, 7, 3), (28, 7, 5, 3), (48, 8, 9, 4), (42, 14, 14, 2)],
)
def test_every_place_of_a_patch_is_inside_a_window(side: int, token: int, patch: int, per_axis: int) -> None:
    found = cover((side, side), (token, token), patch, per_axis)
    assert len(found.windows) <= per_axis**2
    for row in range(side - patch + 1):
        for column in range(side - patch + 1):
            under = tokens_under(row, column, patch, token, side // token)
            assert any(under <= window for window in found.windows)


def test_dinov2_at_112_pixels_has_the_windows_that_one_expects() -> None:
    assert touched(14, 14) == 2
    assert touched(1, 14) == 1
    assert touched(15, 14) == touched(16, 14) - 1 + (touched(15, 14) == touched(16, 14))
    found = cover((112, 112), (14, 14), 14, 4)
    assert len(found.windows) == 16
    assert {len(window) for window in found.windows} == {9}
    assert len(found.pairs) == 136
    assert found.kept() == list(range(64))
    assert len(found.kept(0)) == 55


def test_a_gap_is_noticed() -> None:
    with pytest.raises(AssertionError, match="pixel 4 is not covered"):
        check_cover([range(2), range(2, 4)], 16, 4, 5)


def test_ranges_are_as_short_as_can_be() -> None:
    assert ranges(8, 2, 4) == [range(3), range(2, 5), range(4, 7), range(5, 8)]
    assert ranges(8, 1, 2) == [range(4), range(4, 8)]


@pytest.mark.parametrize(
    ("patch", "per_axis", "message"),
    [
        (0, 3, "1 to 31"),
        (32, 3, "a patch must be"),
        (4, 1, "two or more windows"),
        (31, 3, "hides all"),
    ],
)
def test_what_cannot_be_covered_is_refused(patch: int, per_axis: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        cover((32, 32), (4, 4), patch, per_axis)
