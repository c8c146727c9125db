"""Windows cover every patch, tried pixel by pixel."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from robvit.certification.maps import safe_corners, unsafe_share
from robvit.certification.windows import check_cover, cover, ranges, touched, window_counts
from robvit.errors import BrokenCertificate, InputError


def tokens_under(row: int, column: int, patch: int, token: int | tuple[int, int], columns: int) -> set[int]:
    """The tokens whose pixels a patch overlaps, pixel by pixel."""
    high, wide = token if isinstance(token, tuple) else (token, token)
    return {
        (r // high) * columns + c // wide
        for r in range(row, row + patch)
        for c in range(column, column + patch)
    }


@pytest.mark.parametrize(
    ("side", "token", "patch", "windows"),
    [
        (32, 4, 1, 2),
        (32, 4, 4, 3),
        (32, 4, 7, 3),
        (28, 7, 5, 3),
        (48, 8, 9, 4),
        (42, 14, 14, 2),
        (32, 4, 6, (1, 6)),
        (32, 4, 4, (1, 5)),
        (35, 7, 6, (2, 3)),
        (24, 3, 4, (3, 5)),
    ],
)
def test_every_place_of_a_patch_is_inside_a_window(
    side: int, token: int, patch: int, windows: int | tuple[int, int]
) -> None:
    found = cover((side, side), (token, token), patch, windows)
    rows, columns = windows if isinstance(windows, tuple) else (windows, windows)
    assert len(found.windows) == found.shape[0] * found.shape[1] <= rows * columns
    for row in range(side - patch + 1):
        for column in range(side - patch + 1):
            under = tokens_under(row, column, patch, token, side // token)
            assert any(under <= window for window in found.windows)


@pytest.mark.parametrize(("patch", "windows"), [(1, 2), (7, 3), (14, 3), (15, (4, 5)), (22, (1, 4))])
def test_every_place_is_inside_a_window_where_image_and_tokens_are_not_square(
    patch: int, windows: int | tuple[int, int]
) -> None:
    found = cover((112, 84), (14, 7), patch, windows)
    assert found.grid == (8, 12)
    for row, column in itertools.product(range(112 - patch + 1), range(84 - patch + 1)):
        under = tokens_under(row, column, patch, (14, 7), 12)
        assert any(under <= window for window in found.windows)


def test_a_place_is_safe_inside_a_safe_window_and_a_pixel_as_the_patches_over_it() -> None:
    found = cover((32, 32), (4, 4), 6, 3)
    safe = [number % 2 == 0 for number in range(len(found.windows))]
    corners = safe_corners(safe, found, (32, 32))
    assert corners.shape == (27, 27)
    for row, column in itertools.product(range(27), repeat=2):
        under = tokens_under(row, column, 6, 4, 8)
        inside = any(ok and under <= window for ok, window in zip(safe, found.windows, strict=True))
        assert bool(corners[row, column]) == inside
    share = unsafe_share(safe, found, (32, 32))
    over = ~corners[max(0, 10 - 5) : 11, max(0, 20 - 5) : 21]
    assert share.shape == (32, 32)
    assert float(share[10, 20]) == pytest.approx(float(over.float().mean()))
    assert float(share[0, 0]) == float(~corners[0, 0])
    assert float(unsafe_share([True] * 9, found, (32, 32)).max()) == 0


def test_dinov2_at_112_pixels_has_the_windows_that_one_expects() -> None:
    assert touched(14, 14) == 2
    assert touched(1, 14) == 1
    assert touched(15, 14) == touched(16, 14) - 1 + (touched(15, 14) == touched(16, 14))
    found = cover((112, 112), (14, 14), 14, 4)
    assert len(found.windows) == 16
    assert {len(window) for window in found.windows} == {9}
    assert len(found.pairs) == 120
    assert found.kept() == list(range(64))
    assert len(found.kept(0)) == 55


def test_a_gap_is_noticed_whether_or_not_python_asserts() -> None:
    with pytest.raises(BrokenCertificate, match="pixel 4 is not covered"):
        check_cover([range(2), range(2, 4)], 16, 4, 5)


def test_images_that_are_not_whole_tokens_are_refused_in_words() -> None:
    with pytest.raises(InputError, match="whole tokens of 14x14 pixels, got 100x100; take an image size"):
        cover((100, 100), (14, 14), 14, 3)


def test_ranges_are_as_short_as_can_be() -> None:
    assert ranges(8, 2, 4) == [range(3), range(1, 4), range(3, 6), range(5, 8)]
    assert ranges(8, 2, 3) == ranges(8, 3, 3) == [range(4), range(2, 6), range(4, 8)]
    assert ranges(8, 2, 5) == [range(2), range(1, 3), range(2, 5), range(4, 6), range(5, 8)]
    assert ranges(8, 8, 3) == [range(8)]
    assert ranges(8, 1, 2) == [range(4), range(4, 8)]


def test_any_number_of_ranges_is_had_and_no_other_choice_of_as_many_is_shorter() -> None:
    for length, span, count in itertools.product(range(1, 9), range(1, 9), range(1, 8)):
        found = ranges(length, span, count)
        runs = [range(first, first + span) for first in range(length - span + 1)]
        assert len(found) == max(1, min(count, len(runs)))
        assert all(any(set(run) <= set(one) for one in found) for run in runs)
        widths = [len(one) for one in found]
        assert max(widths) - min(widths) <= 1
        # Windows of a width w hold w - span + 1 runs each.
        shorter = max(widths) - 1
        assert not runs or count * max(0, shorter - span + 1) < len(runs)


@pytest.mark.parametrize("columns", range(4, 9))
def test_bands_of_every_number_cover_dinov2_at_112_pixels(columns: int) -> None:
    for patch in (1, 7, 14, 15, 16):
        found = cover((112, 112), (14, 14), patch, (1, columns))
        assert found.shape == (1, min(columns, 9 - touched(patch, 14)))
        for left in range(112 - patch + 1):
            under = tokens_under(0, left, patch, 14, 8) | tokens_under(112 - patch, left, patch, 14, 8)
            assert any(under <= window for window in found.windows)


@pytest.mark.parametrize(
    ("patch", "windows", "message"),
    [
        (0, 3, "1 to 31"),
        (32, 3, "a patch must be"),
        (4, 0, "one or more windows"),
        (4, 1, "hide all"),
        (8, (1, 2), "two of 1x2 windows hide all"),
        (31, 3, "hide all"),
    ],
)
def test_what_cannot_be_covered_is_refused(patch: int, windows: int | tuple[int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cover((32, 32), (4, 4), patch, windows)


def test_the_table_of_costs_in_the_docs_is_what_the_windows_say() -> None:
    page = (Path(__file__).parents[2] / "docs/certificates.md").read_text()
    rows = re.findall(r"^\| `([\dx]+)`[^|]*\| (\d+) \| ([^|]+) \| (\d+) \| ([\d,]+) \|$", page, re.MULTILINE)
    assert len(rows) == 7
    for windows, masks, hidden, most, tokens in rows:
        found = cover((112, 112), (14, 14), 14, window_counts(windows))
        sizes = sorted({len(window) for window in found.windows})
        assert len(found.pairs) == int(masks)
        assert " or ".join(map(str, sizes)) == hidden.removesuffix(" of 64")
        assert max(len(found.dropped(*pair)) for pair in found.pairs) == int(most)
        assert sum(1 + len(found.kept(*pair)) for pair in found.pairs) == int(tokens.replace(",", ""))
