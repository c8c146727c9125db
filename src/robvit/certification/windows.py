"""Windows of tokens such that every square patch of pixels, wherever it lies, is inside one of them.

A patch of p pixels at row r touches the token rows r // t to (r + p - 1) // t, where t is a token's side in
pixels. Windows are products of row and column ranges, so an image is covered if each axis is: `cover` checks
that for every position of the patch, one by one, before it returns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations, pairwise

from robvit.errors import BrokenCertificate, InputError


@dataclass(frozen=True)
class Cover:
    """Windows over a grid (rows, columns) of tokens that cover every square patch of `patch` pixels.

    A window is the set of the tokens inside, numbered row by row; `shape` says how many rows and columns of
    windows there are.
    """

    grid: tuple[int, int]
    patch: int
    shape: tuple[int, int]
    windows: tuple[frozenset[int], ...]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All pairs of two windows by their numbers; most tokens dropped first."""
        every = combinations(range(len(self.windows)), 2)
        return sorted(every, key=lambda pair: -len(self.dropped(*pair)))

    def dropped(self, *numbers: int) -> frozenset[int]:
        """The tokens inside any of these windows."""
        return frozenset().union(*(self.windows[number] for number in numbers))

    def kept(self, *numbers: int) -> list[int]:
        """The tokens outside all of these windows, in order; with no number, all tokens."""
        gone = self.dropped(*numbers)
        return [i for i in range(self.grid[0] * self.grid[1]) if i not in gone]


def cover(
    image: tuple[int, int], token: tuple[int, int], patch: int, windows: int | tuple[int, int] = 3
) -> Cover:
    """Windows that cover every patch x patch square of an image (rows, columns).

    There are so many along each side, or so many rows and columns of them; 1 row of 7 are bands from top to
    bottom. More windows are smaller, so that each hides less of the image, and cost more passes.
    """
    counts = (windows, windows) if isinstance(windows, int) else windows
    if not 1 <= patch < min(image):
        raise InputError(
            f"a patch must be 1 to {min(image) - 1} pixels for {image[0]}x{image[1]} images, got {patch}"
        )
    if image[0] % token[0] or image[1] % token[1]:
        raise InputError(
            f"images must be made of whole tokens of {token[0]}x{token[1]} pixels, got "
            f"{image[0]}x{image[1]}; take an image size that is a multiple of them"
        )
    grid = (image[0] // token[0], image[1] // token[1])
    axes = [
        ranges(length, touched(patch, side), count)
        for length, side, count in zip(grid, token, counts, strict=True)
    ]
    for axis, pixels, side in zip(axes, image, token, strict=True):
        check_cover(axis, pixels, side, patch)
    found = [
        frozenset(row * grid[1] + column for row in rows for column in columns)
        for rows in axes[0]
        for columns in axes[1]
    ]
    made = Cover(grid, patch, (len(axes[0]), len(axes[1])), tuple(found))
    if not made.pairs or not made.kept(*made.pairs[0]):
        raise InputError(
            f"against a patch of {patch} pixels, two of {counts[0]}x{counts[1]} windows hide all of the "
            "image; take more windows or a smaller patch"
        )
    return made


def window_counts(text: str) -> tuple[int, int]:
    """Rows and columns of windows from text: "3" along each side, or "1x7"."""
    rows, _, columns = text.lower().partition("x")
    if not (rows.strip().isdecimal() and (columns or rows).strip().isdecimal()):
        raise InputError(f"windows are a number along each side, such as 3, or 1x7, got {text!r}")
    return int(rows), int(columns or rows)


def patch_sides(text: str, image: tuple[int, int]) -> list[int]:
    """The sides in pixels of patches given as a list: "7,14,2%"."""
    return [patch_side(part, image) for part in text.split(",")]


def patch_side(text: str, image: tuple[int, int]) -> int:
    """The side in pixels of a patch given as pixels ("32") or as a share of the image's area ("2%")."""
    try:
        if text.strip().endswith("%"):
            share = float(text.strip()[:-1]) / 100
            return max(1, round(math.sqrt(share * image[0] * image[1])))
        return int(text)
    except ValueError:
        raise InputError(
            f"a patch is a number of pixels, such as 32, or a share, such as 2%, got {text!r}"
        ) from None


def touched(patch: int, token: int) -> int:
    """How many tokens in a row a patch touches at most: one more than fit, unless it is a single pixel."""
    return (patch + token - 2) // token + 1


def ranges(length: int, span: int, count: int) -> list[range]:
    """`count` ranges of 0..length-1, as short as can be, such that each run of `span` lies in one.

    They are of one width where it takes so many of them, spaced evenly: masks of one length share a pass, and
    longer runs are often covered too. Otherwise widths differ by one. There are fewer than `count` where
    runs have not so many places.
    """
    if count < 1:
        raise InputError(f"one or more windows along each side are needed, got {count}")
    places = max(1, length - span + 1)
    count = min(count, places)
    share = -(-places // count)  # of the places where a run may begin, for one range
    width, last = share + span - 1, max(0, places - share)  # where the last range of that width begins
    if count == 1 + -(-last // share):
        starts = [number * last // max(1, count - 1) for number in range(count)]
        return [range(start, min(length, start + width)) for start in starts]
    bounds = [number * places // count for number in range(count + 1)]
    return [range(first, end - 1 + span) for first, end in pairwise(bounds)]


def check_cover(axis: list[range], pixels: int, token: int, patch: int) -> None:
    """Prove the cover of an axis by trying every position of the patch; no certificate goes without."""
    for first in range(pixels - patch + 1):
        low, high = first // token, (first + patch - 1) // token
        if not any(low in one and high in one for one in axis):
            raise BrokenCertificate(
                f"every patch of {patch} pixels must lie inside a window, the one at pixel {first} is not "
                "covered; nothing can be certified by these windows"
            )
