"""How data is asked for, taken apart without torch.

sample                          a registered name
imagenet-a:/data/imagenet-a     a name and a place
masks:/data/streets?void=11     with an option
/data/pets                      any folder of images, or a single image
sample?corruption=fog:3         any named dataset under a corruption, of severity 1 to 5
mine:pets                       a function of yours, module:function, which is imported and called
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

from robvit import plugins
from robvit.errors import DataError, InputError
from robvit.files import given_path
from robvit.registry import unknown

# A split goes by any of these names; where none is asked for, the first of the evaluation splits is taken.
PARTS = ("learn", "held-out")  # of a folder without splits
SPLITS = {"test": ("test", "testing"), "val": ("val", "validation", "valid"), "train": ("train", "training")}
CORRUPTION = "corruption"  # the option that every dataset has
FOLDER = "folder"  # the dataset that a bare path means
SEVERITIES = (1, 2, 3, 4, 5)  # of a corruption


class Spec(NamedTuple):
    """A dataset's name, the place after its colon, and its options."""

    name: str
    place: str
    options: dict[str, str]


def parse_spec(spec: str | Path, known: Mapping[str, Collection[str]]) -> Spec:
    """What a spec asks for; `known` are the datasets and the options of each."""
    text = os.fspath(spec)
    head, _, query = text.partition("?")
    name, _, place = head.partition(":")
    if not isinstance(spec, Path) and name in known:
        options = dict(parse_qsl(query, keep_blank_values=True))
        for option in options:
            if option not in (allowed := [*known[name], CORRUPTION]):
                raise unknown(f"option of {name}", option, allowed)
        return Spec(name, place, options)
    path = given_path(text)
    if not isinstance(spec, Path) and plugins.is_spec(head) and plugins.is_there(head) and not path.exists():
        return Spec(head, "", dict(parse_qsl(query, keep_blank_values=True)))
    if path.exists() or isinstance(spec, Path) or os.sep in text or text.startswith((".", "~")):
        return Spec(FOLDER, text, {})
    raise unknown("dataset", name, list(known), "Or give a folder of images, or module:function.")


def split_corruption(text: str) -> tuple[str, int]:
    """The name and the severity in "fog:3"."""
    name, _, severity = text.partition(":")
    if severity not in map(str, SEVERITIES):
        raise InputError(f"expected a corruption as {name}:3, with a severity of 1 to 5, got {text!r}")
    return name, int(severity)


def check_split(name: str, split: str, splits: Collection[str]) -> None:
    """Refuse a split that a dataset with fixed splits does not have."""
    if split not in splits:
        raise DataError(f"{name} has the splits {' and '.join(splits)}, got {split!r}")


def parse_part(text: str) -> tuple[int, int]:
    """The number of a part and how many there are, in "2/5"."""
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise InputError(f"expected a part such as 2/5, the second of five, got {text!r}")
    return int(number), int(parts)
