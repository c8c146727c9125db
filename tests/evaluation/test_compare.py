"""Paired comparison of records, any classifier at the judge's door, and natural corruptions."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import robvit
from robvit.cli import app
from robvit.data import open_data
from robvit.data.imagenet import labels_by_id, variant_labels
from robvit.errors import InputError, RobvitError
from robvit.evaluation.classifiers import check_fit, open_classifier
from robvit.evaluation.compare import compare, compare_all, differences
from robvit.evaluation.corruptions import ALEXNET_ERRORS
from robvit.evaluation.protocol import Protocol
from robvit.record import Budget, Record, Trial
from robvit.statistics import holm, mcnemar, paired_interval


def record(*outcomes: str, names: str = "abcdef") -> Record:
    """A record whose trials are given by letters, R for right."""
    titles = ("clean", "pgd", "square")
    trials = [
        Trial(
            title,
            None if title == "clean" else Budget("linf", 8 / 255),
            {},
            [c == "R" for c in text],
            [0 if c == "R" else 1 for c in text],
            [0.0] * 6,
        )
        for title, text in zip(titles, outcomes, strict=False)
    ]
    data = {"count": 6, "names": list(names), "labels": [0] * 6, "digest": names, "pixels": names}
    return Record("evaluate", {"name": "m"}, data, trials)


def test_mcnemar_is_the_exact_binomial_test() -> None:
    assert mcnemar(10, 2) == pytest.approx(2 * (1 + 12 + 66) / 2**12)
    assert mcnemar(2, 10) == mcnemar(10, 2)
    assert mcnemar(0, 0) == mcnemar(3, 3) == 1
    assert mcnemar(0, 6) == 2 / 64
    assert mcnemar(600, 500) == pytest.approx(0.0028, abs=2e-4)  # past 1,024, where 2.0**n is no float
    assert mcnemar(3697, 5) == 0


def test_the_paired_interval_is_agresti_and_mins() -> None:
    difference, low, high = paired_interval(25, 10, 100)
    assert difference == 0.15
    half = 1.959964 * math.sqrt(36 - 15**2 / 102) / 102
    assert (low, high) == (pytest.approx(15 / 102 - half), pytest.approx(15 / 102 + half))
    assert low < difference < high
    assert paired_interval(0, 0, 10)[0] == 0


def test_records_are_compared_image_by_image() -> None:
    a, b = record("RRRRRR", "RRRR..", "RRR..."), record("RRRRR.", "R..R..", ".RR.R.")
    pairs = {pair.what: pair for pair in compare(a, b)}
    assert list(pairs) == ["clean", "pgd linf 8/255", "square linf 8/255", "worst case"]
    pgd = pairs["pgd linf 8/255"]
    assert (pgd.only_a, pgd.only_b, pgd.p) == (2, 0, 0.5)
    worst = pairs["worst case"]  # a: RRR..., b: none at all, though no attack breaks all
    assert (worst.a, worst.b, worst.only_a, worst.only_b) == (0.5, 0.0, 3, 0)
    assert differences(a, b) == []
    silent = replace(b, data=b.data | {"pixels": ""})
    assert differences(a, silent) == ["not both records carry a digest of their pixels, so these may differ"]
    skipping = replace(a, trials=[*a.trials[:2], replace(a.trials[2], skipped=[4, 5])])
    assert "survivors" in differences(skipping, b)[0]


def test_other_images_and_other_attacks_are_refused_or_named() -> None:
    a = record("RRRRRR", "RRRR..", "RRR...")
    with pytest.raises(InputError, match="same images"):
        compare(a, record("RRRRRR", names="abcdeg"))
    fewer = record("RRRRRR", "RRRR..")
    assert [pair.what for pair in compare(a, fewer)] == ["clean", "pgd linf 8/255"]
    assert any("only in A: square" in line for line in differences(a, fewer))
    assert any("worst cases" in line for line in differences(a, fewer))


def test_the_command_compares_folders_and_refuses_other_images(tmp_path: Path) -> None:
    for place, made in (
        ("a", record("RRRRRR", "RRRR..")),
        ("b", record("RRRRR.", "R..R..")),
        ("c", record("RRRRRR", names="abcdeg")),
    ):
        made.save(tmp_path / place / "record.json")
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b")])
    assert done.exit_code == 0, done.output
    assert "+33.3" in done.output
    refused = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "c")])
    assert isinstance(refused.exception, RobvitError)


def test_a_function_of_anybodys_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strangers.py").write_text(
        "import torch\n"
        "def bright():\n"
        "    return lambda x: torch.stack([x.mean((1, 2, 3)) * k for k in range(10)], 1)\n"
        "def number():\n"
        "    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    judged = robvit.evaluate("strangers:bright", "sample", protocol="clean@1", limit=4)
    assert judged.trials[0].predicted == [9, 9, 9, 9]
    assert judged.model["name"] == "strangers:bright"
    for spec, message in (
        ("strangers:number", "must return a callable"),
        ("strangers:absent", "has no absent"),
        ("nowhere:bright", "PYTHONPATH"),
    ):
        with pytest.raises(InputError, match=message):
            open_classifier(spec)
    with pytest.raises(InputError, match="is not a token file"):
        open_classifier("strangers:bright", tokens=tmp_path / "t.safetensors")


def test_a_torchvision_checkpoint_is_judged_behind_its_normalisation(tmp_path: Path) -> None:
    from torchvision.models import squeezenet1_1

    net = squeezenet1_1(weights=None).eval()
    path = tmp_path / "net.safetensors"
    save_file(net.state_dict(), path)
    found = open_classifier(str(path), arch="torchvision:squeezenet1_1", img_size=64)
    x = torch.rand(2, 3, 64, 64)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert torch.equal(found.net(x), net((x - mean) / std))
    with pytest.raises(RobvitError, match="did you mean squeezenet"):
        open_classifier("torchvision:squeezenet9")
    images = open_data("sample", limit=2, size=64)
    with pytest.raises(InputError, match="tells 1000 classes apart, the images have 10"):
        check_fit(found, images)


def test_what_is_no_classifier_is_refused() -> None:
    images = open_data("sample", limit=2)
    for network in (nn.Flatten(0), nn.Identity()):
        with pytest.raises(InputError, match="must return logits"):
            check_fit(open_classifier(network), images)
    with pytest.raises(InputError, match="has no classifier"):
        open_classifier(robvit.load("vit_tiny_patch16_224", pretrained=False, num_classes=0))


def image_tree(root: Path, ids: list[str], folders: tuple[str, ...] = ("",)) -> None:
    for folder in folders:
        for shade, wordnet_id in enumerate(ids):
            place = root / folder / wordnet_id
            place.mkdir(parents=True)
            Image.new("RGB", (32, 32), (40 * shade,) * 3).save(place / "x.png")


class Thousand(nn.Module):
    """Prefers a class that ImageNet-A does not have, then the one it was told."""

    def __init__(self, second: int) -> None:
        super().__init__()
        absent = next(k for k in range(1000) if k not in variant_labels("a"))
        logits = torch.zeros(1000)
        logits[absent], logits[second] = 2, 1
        self.logits = nn.Parameter(logits)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits + 0 * x.mean((1, 2, 3))[:, None]


def test_imagenet_a_is_judged_among_its_own_classes(tmp_path: Path) -> None:
    ids = [k for k, v in labels_by_id().items() if v in variant_labels("a")][:2]
    image_tree(tmp_path, ids)
    net = Thousand(labels_by_id()[ids[1]])
    among = robvit.evaluate(net, f"imagenet-a:{tmp_path}", protocol="clean@1")
    assert among.trials[0].correct == [False, True]
    plain = robvit.evaluate(net, f"imagenet:{tmp_path}", protocol="clean@1")
    assert plain.trials[0].correct == [False, False]


def test_corruptions_made_here_are_never_called_mce() -> None:
    rules = Protocol.model_validate(
        {"name": "c@1", "about": "x", "corruptions": {"severities": [1, 5], "names": ["fog", "contrast"]}}
    )
    images = open_data("sample", limit=6)
    model = robvit.load("robvit-mini")
    found = robvit.evaluate(model, images, protocol=rules)
    fog = next(t for t in found.trials if t.attack == "fog" and t.severity == 5)
    with torch.no_grad():
        expected = model(images.corrupted("fog:5").tensors()[0]).argmax(1).tolist()
    assert fog.predicted == expected
    assert found.tables[0].columns == ["corruption", "severity 1", "severity 5", "mean"]
    errors = [1 - sum(t.correct) / 6 for t in found.trials if t.attack != "clean"]
    assert found.metrics["mean error under corruptions, unnormalised"] == pytest.approx(sum(errors) / 4)
    assert "mCE" not in found.metrics
    assert found.headline().share == sum(found.trials[0].correct) / 6  # corruptions are no attacks


@pytest.mark.slow
def test_imagenet_c_is_normalised_as_published(tmp_path: Path) -> None:
    ids = list(labels_by_id())[:2]
    image_tree(tmp_path, ids, tuple(f"{name}/{s}" for name in ALEXNET_ERRORS for s in range(1, 6)))
    net = Thousand(0)
    net.logits = nn.Parameter(torch.arange(1000.0).flip(0))  # always says class 0: half of all is right
    found = robvit.evaluate(net, f"imagenet-c:{tmp_path}", protocol="corruptions@1")
    assert len(found.trials) == 75
    assert found.metrics["mCE"] == pytest.approx(sum(0.5 / e for e in ALEXNET_ERRORS.values()) / 15)
    assert found.metrics["mean error under corruptions, unnormalised"] == 0.5
    with pytest.raises(InputError, match="corruptions@1"):
        robvit.evaluate(net, f"imagenet-c:{tmp_path}", protocol="quick@1")


def test_a_record_tells_a_worst_case_from_the_least_mean() -> None:
    made = record("RRRRRR", "RRRR..", "..RRRR")
    assert made.robust_accuracy() == 2 / 6
    control = replace(made.trials[1], correct=[False] * 6, control=True)
    assert replace(made, trials=[*made.trials, control]).robust_accuracy() == 2 / 6


def test_holms_correction_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_several_records_are_compared_in_pairs_and_corrected_together() -> None:
    records = [record("RRRRRR"), record("......"), record("RRR...")]
    found = compare_all(records)
    assert {(one.first, one.second) for one in found} == {(0, 1), (0, 2), (1, 2)}
    alone = {pair.what: pair.p for pair in compare(*records[:2])}
    for one in found:
        assert one.adjusted >= one.pair.p
        if (one.first, one.second) == (0, 1):
            assert one.pair.p == alone[one.pair.what]
