"""`robvit.robustify`: one verb with a true signature, a model ready to use, no option in vain."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import robvit
from helpers.lora import images
from robvit.backbones.heads import LinearHead
from robvit.backbones.model import Model
from robvit.errors import InputError
from robvit.record import Record

TUNED: dict[str, Any] = {
    "steps": 1,
    "batch": 4,
    "rank": 2,
    "tuning": robvit.Tuning(held_out=2, validations=1, judge_steps=1),
}


@pytest.fixture(scope="module")
def mini() -> Model:
    return robvit.load("robvit-mini")


def test_the_signature_names_every_option() -> None:
    parameters = inspect.signature(robvit.robustify).parameters.values()
    assert {p.kind for p in parameters} == {
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    }
    text = inspect.getdoc(robvit.robustify) or ""
    named = {
        name.strip()
        for line in text.splitlines()
        if ":" in line
        for name in line.partition(":")[0].split(",")
    }
    assert {p.name for p in parameters} <= named


@pytest.mark.parametrize("method", ["tokens", "lora", "full"])
def test_every_method_gives_a_file_a_record_and_a_model_with_its_head(
    mini: Model, tmp_path: Path, method: Any
) -> None:
    head = LinearHead(2 * mini.width, 3, mini.fingerprint())
    quick = {"steps": 1, "batch": 4, "count": 1, "attack_steps": 1, "cache": tmp_path}
    if method != "tokens":
        quick = TUNED | {"rank": 2 if method == "lora" else None}
    made = robvit.robustify(mini, images(), method=method, head=head, out=tmp_path / "out", **quick)
    assert made.file is not None
    assert made.file.exists()
    assert Record.load(tmp_path / "out" / "record.json").metrics == made.record.metrics
    x = torch.rand(2, 3, 32, 32)
    assert made.model(x).shape == (2, 3)
    again = {
        "tokens": {"tokens": made.tokens},
        "lora": {"lora": made.file},
        "full": {},
    }[method]
    loaded = robvit.load(str(made.file) if method == "full" else "robvit-mini", head=head, **again)
    assert torch.equal(loaded(x), made.model(x))
    assert len(made.sets) == (method == "tokens")
    assert (made.lora is not None) == (method == "lora")


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"method": "lora", "count": 3}, "count is for the method tokens, got method 'lora'"),
        ({"method": "full", "pool": 2}, "pool is for the method tokens"),
        ({"method": "full", "rank": 3}, "rank is for the method lora, got method 'full'"),
        ({"rank": 3}, "rank is for the method lora and full, got method 'tokens'"),
        ({"minutes": 1}, "minutes is for"),
        ({"method": "armour"}, "method must be tokens, lora or full"),
        ({"method": "lora", "eps": 0}, "eps must be above 0"),
        ({"method": "lora", "eps": "8"}, "eps is in pixels"),
        ({"method": "lora", "limit": 2}, "limit goes with the name"),
    ],
)
def test_options_of_other_methods_are_refused(mini: Model, wishes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        robvit.robustify(mini, torch.rand(4, 3, 32, 32), **wishes)


def test_tuning_learns_from_the_training_split_unless_told_otherwise(mini: Model, tmp_path: Path) -> None:
    for split, count in (("train", 6), ("test", 3)):
        (tmp_path / split).mkdir()
        for i in range(count):
            Image.new("RGB", (32, 32), (40 * i, 20, 200)).save(tmp_path / split / f"{i}.png")
    seen = [
        robvit.robustify(mini, tmp_path, method="lora", split=split, **TUNED).record.data
        for split in (None, "train", "test")
    ]
    assert [facts["count"] + facts["held out"] for facts in seen] == [6, 6, 3]
    assert seen[0]["digest"] == seen[1]["digest"]
