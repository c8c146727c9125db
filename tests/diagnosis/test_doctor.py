"""The doctor: broken defences are caught by the right check, honest models are left in peace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import robvit
from robvit.attacks import Count
from robvit.cli import app
from robvit.data import open_data
from robvit.diagnosis.broken_defenses import PATIENTS
from robvit.diagnosis.context import CheckContext, Effort
from robvit.diagnosis.doctor import CHECKS, doctor
from robvit.diagnosis.grading import graded, surely_more
from robvit.errors import DataError, InputError, UnknownName
from robvit.record import Record
from robvit.threat import Threat

SMALL = Effort(steps=8, restarts=2, queries=60, draws=20)
EIGHT = Threat("linf", 8 / 255)
ALONE = [c.name for c in CHECKS if c.value.__module__.endswith("model_checks")]


@pytest.fixture(scope="module")
def mini() -> robvit.Model:
    return robvit.load("robvit-mini")


@pytest.fixture(scope="module")
def images() -> tuple[torch.Tensor, torch.Tensor]:
    return open_data("sample", limit=16).arrays()


class Linear:
    """Two classes apart by a known plane: the largest margin in a ball has a closed form."""

    def __init__(self, slope: float = 1.0) -> None:
        self.weight = slope * torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(1)).flatten()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        score = (x - 0.5).flatten(1) @ self.weight
        return torch.stack((score, -score), 1)


def plane_and_images(slope: float = 1.0) -> tuple[Linear, torch.Tensor, torch.Tensor]:
    x = (torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(2)) * 255).round() / 255
    model = Linear(slope)
    return model, x, model(x).argmax(1)


def status(model: object, images: object, check: str, **settings: object) -> str:
    (finding,) = doctor(model, images, checks=[check], effort=SMALL, **settings).findings
    assert finding.check == check
    return finding.status


@pytest.mark.parametrize("name", [p.name for p in PATIENTS])
def test_broken_defences_are_caught_by_name(
    name: str, mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    patient = PATIENTS.entry(name)
    first = patient.info.caught_by[0]
    assert status(patient.value(mini), images, first) == "red"
    assert status(mini, images, first) == "green"


def test_an_honest_model_has_no_symptom(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    record = doctor(mini, images, checks=ALONE, effort=SMALL)
    assert {f.check: f.status for f in record.findings} == dict.fromkeys(ALONE, "green")


def test_a_plane_passes_every_check_and_the_record_keeps_it(tmp_path: Path) -> None:
    model, x, y = plane_and_images()
    record = doctor(model, (x, y), threat=Threat("linf", 0.05), effort=SMALL)
    assert [f.check for f in record.findings] == [c.name for c in CHECKS]
    assert {f.status for f in record.findings} == {"green"}
    for name in ("attention_underflow", "attention_scaling", "transfer"):
        assert "not applicable" in next(f.evidence for f in record.findings if f.check == name)
    broken = 0.05 * model.weight.abs().sum() > (x - 0.5).flatten(1).matmul(model.weight).abs()
    assert record.trials[1].attack == "fgsm"
    free = ((x - 0.05 >= 0) & (x + 0.05 <= 1)).flatten(1).all(1)  # where the box does not bind
    assert [not r for r, f in zip(record.trials[1].correct, free, strict=True) if f] == broken[free].tolist()
    assert {c.title for c in record.curves} == {"Accuracy over budget", "Accuracy over steps"}
    record.save(tmp_path / "record.json")
    assert Record.load(tmp_path / "record.json") == record


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_other_norms(norm: str) -> None:
    model, x, y = plane_and_images()
    record = doctor(model, (x, y), threat=Threat(norm, {"l2": 0.5, "l1": 5.0}[norm]), effort=SMALL)
    assert not [f for f in record.findings if f.status == "red"]


def test_a_gradient_that_promises_too_much_disagrees_with_differences() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            return 3 * grad

    model, x, y = plane_and_images()
    assert status(model, (x, y), "finite_differences") == "green"
    assert status(lambda z: model(Doubled.apply(z)), (x, y), "finite_differences") == "red"


def test_nan_gradients_are_seen_though_the_outputs_are_sound() -> None:
    model, x, y = plane_and_images()

    def rooted(z: torch.Tensor) -> torch.Tensor:
        return model(z) + 0 * (z - z.detach()).sqrt().sum()  # the root's slope at zero is infinite

    (finding,) = doctor(rooted, (x, y), checks=["gradients"], effort=SMALL).findings
    assert finding.status == "red"
    assert "12 have NaN" in finding.evidence
    assert len(finding.images) == 12


def test_probabilities_that_are_not_sharp_are_only_amber() -> None:
    model, x, y = plane_and_images(0.1)
    assert status(lambda z: model(z).softmax(1), (x, y), "softmax_output") == "amber"


def test_a_randomised_model_is_averaged_and_a_steady_mean_is_no_red() -> None:
    model, x, y = plane_and_images()

    def noisy(z: torch.Tensor) -> torch.Tensor:
        return model(z) + 0.1 * torch.randn(len(z), 2)

    context = CheckContext(noisy, x, y, EIGHT)
    assert context.randomised
    answers = torch.stack([context.logits(x) for _ in range(200)])
    assert answers.std(0).mean() == pytest.approx(0.1 / 2, rel=0.1)  # the mean of four passes
    assert status(noisy, (x, y), "randomness", samples=50) in ("amber", "green")


def test_attacks_are_run_once_however_many_checks_ask() -> None:
    model, x, y = plane_and_images()
    counted = Count(model)
    context = CheckContext(counted, x, y, EIGHT, effort=SMALL)
    first = context.pgd()
    passes = counted.forward
    assert context.pgd() is first
    assert context.on_loss("cross_entropy") is first
    assert counted.forward == passes
    assert context.pgd(steps=4) is not first


def test_the_white_box_is_the_worst_of_its_losses_for_each_image(
    images: tuple[torch.Tensor, torch.Tensor],
) -> None:
    context = CheckContext(robvit.load("robvit-mini-robust"), *images, EIGHT, effort=SMALL)
    parts = [context.on_loss(loss) for loss in ("cross_entropy", "margin", "dlr")]
    assert torch.equal(context.white.broken, torch.stack([p.broken for p in parts]).any(0))
    assert torch.equal(context.logits(context.white.adv).argmax(1) != context.y, context.white.broken)
    after = context.attack("square", title="square", after=context.white, steps=5)
    assert after.skipped == tuple(context.white.broken.nonzero()[:, 0].tolist())
    assert bool((after.broken >= context.white.broken).all())


def test_grading_needs_more_than_bad_luck() -> None:
    def some(count: int, total: int) -> torch.Tensor:
        return torch.arange(total) < count

    grades = [graded(some(k, 64), 64, "").status for k in (0, 1, 3, 4)]
    assert grades == ["green", "amber", "amber", "red"]
    assert graded(some(2, 4), 4, "").status == "amber"  # two of four may be chance
    assert [surely_more(k, 0) for k in (0, 5, 6)] == [False, False, True]  # 2 / 2^5 and 2 / 2^6
    assert not surely_more(0, 6)


def test_what_cannot_be_examined_is_refused(images: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, x, y = plane_and_images()
    with pytest.raises(InputError, match="right on none"):
        doctor(model, (x, 1 - y))
    with pytest.raises(InputError, match=r"labels must lie in 0\.\.1"):
        doctor(model, (x, y + 5))
    with pytest.raises(InputError, match="NaN or infinity"):
        doctor(lambda z: model(z) / 0, (x, y))
    with pytest.raises(UnknownName, match="did you mean gradients"):
        doctor(model, (x, y), checks=["gradient"])
    with pytest.raises(InputError, match="steps must be at least 4"):
        Effort(steps=1)


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="one label an image"):
        doctor(Linear(), open_data(str(tmp_path)))


def test_the_command_tells_writes_and_exits_with_one_on_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hot_model.py").write_text(
        "import robvit\nfrom robvit.diagnosis.broken_defenses import hot_logits\n"
        'def build():\n    return hot_logits(robvit.load("robvit-mini"))\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    common = ["sample", "--limit", "16", "--check", "saturation", "--out", str(tmp_path / "out")]
    bad = CliRunner().invoke(app, ["doctor", "hot_model:build", *common, "--img-size", "32"])
    assert bad.exit_code == 1, bad.output
    assert "red    saturation" in bad.output
    assert "images: test/" in bad.output
    record = Record.load(tmp_path / "out/record.json")
    assert record.findings[0].status == "red"
    assert record.model["name"] == "hot_model:build"
    assert (tmp_path / "out/report.html").exists()
    good = CliRunner().invoke(app, ["doctor", "robvit-mini", *common])
    assert good.exit_code == 0, good.output
    assert "0 red" in good.output
    assert "next: robvit evaluate robvit-mini" in good.output
