"""`robvit.robustify`: one verb with a true signature, a model ready to use, no option in vain."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image

import robvit
from helpers.lora import images
from helpers.plain_vit import plain_vit
from robvit.backbones.heads import LinearHead
from robvit.backbones.model import Model
from robvit.budget import Budget
from robvit.errors import InputError, Unsupported
from robvit.record import PROCESSOR, Record, Trial
from robvit.training.expectation import expected, summary

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


@pytest.mark.slow
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


@pytest.mark.slow
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
        ({"method": "lora", "precision": "bf16/plain"}, "precision must be auto, fp32, bf16, fp16, got"),
        ({"lora": "some.safetensors"}, "is loaded already; give its name to choose img_size, arch or lora"),
    ],
)
def test_options_of_other_methods_are_refused(mini: Model, wishes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        robvit.robustify(mini, torch.rand(4, 3, 32, 32), **wishes)


@pytest.mark.slow
def test_a_tuning_takes_a_precision_by_the_word_that_tokens_take(mini: Model) -> None:
    made = robvit.robustify(mini, images(), method="lora", precision="fp32", **TUNED).record
    assert made.model["compute"]["wanted precision"] == "fp32"


@pytest.mark.slow
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


@pytest.mark.slow
def test_before_it_starts_it_says_what_is_recorded(mini: Model) -> None:
    tuning = robvit.Tuning(rank=2)
    assert "nothing is recorded for robvit-mini at 32 pixels" in expected(mini, tuning)
    made = robvit.robustify(mini, images(), method="lora", **TUNED).record
    correct = [True] * 3 + [False]
    trial = Trial("apgd_ce", Budget("linf", 1 / 255), {}, correct, [0] * 4, [0.0] * 4)
    facts = {"name": "robvit-mini", "fingerprint": made.model["tuned fingerprint"]}
    verdict = Record("evaluate", facts, {"count": 4}, [trial])
    (known,) = summary([made, verdict])
    told = expected(mini, tuning, [known])
    assert "75% (30% to 95%) of 4 images at linf 1/255" in told
    assert "(1 steps of 4 images, eps 2/255)" in told
    for wish in ({"method": "full"}, {"rank": 16}, {"blocks": 2}, {"class_weight": None}, {"hide": 3}):
        assert "nothing is recorded" in expected(mini, replace(tuning, **wish), [known]), wish
    longer = known | {"steps": 90, "steps before": 60, "batch": 32}
    assert "(90 steps of 32 images after 60 before, eps 2/255)" in expected(mini, tuning, [known, longer])
    other = known | {"eps": 1 / 255, "steps": 150, "batch": 32}
    assert "eps 2/255" in expected(mini, tuning, [other, known])  # eps before time
    assert summary([made]) == []
    blind = replace(trial, attack="square", attacker="black-box")
    assert summary([made, replace(verdict, trials=[blind])]) == []  # what it leaves, others need not leave
    told = expected(mini, tuning, [known | {"tuned on": "photographs"}])
    assert "processor minutes on photographs (" in told


@pytest.mark.slow
def test_a_plan_is_within_a_factor_of_the_truth() -> None:
    heard: list[str] = []
    how = robvit.Tuning(held_out=4, judge_steps=5)
    made = robvit.robustify(
        Model(plain_vit()), images(64), method="lora", minutes=0.1, tuning=how, log=heard.append
    )
    # Of the processor: the clock would count what else the machine does.
    assert 6 / 6 < made.record.metrics[PROCESSOR] < 6 * 3
    assert "planned for 0.1 minutes" in heard[0]
    assert "recorded for" in heard[1]


@pytest.mark.slow
def test_a_network_without_linear_layers_and_a_folder_of_one_image_are_refused(tmp_path: Path) -> None:
    convolutions = Model(timm.create_model("resnet10t"), name="resnet10t")
    with pytest.raises(Unsupported, match="resnet10t has no linear layers"):
        robvit.robustify(convolutions, torch.rand(4, 3, 176, 176), method="lora", **TUNED)
    Image.new("RGB", (32, 32)).save(tmp_path / "one.png")
    with pytest.raises(InputError, match="two images or more, one of them to judge on, got 1"):
        robvit.robustify("robvit-mini", tmp_path, method="lora", **TUNED)
