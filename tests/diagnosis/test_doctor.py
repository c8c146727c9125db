"""The doctor: broken defences are caught by the right check, honest models are left in peace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import robvit
from robvit.attacks import Count, Outcome
from robvit.backbones.heads import LinearHead
from robvit.cli import app
from robvit.cli.doctor import _surrogate as surrogate_of
from robvit.data import open_data
from robvit.diagnosis.broken_defenses import BROKEN_DEFENSES
from robvit.diagnosis.checks import CHECKS
from robvit.diagnosis.context import AttackStrength, CheckContext
from robvit.diagnosis.doctor import WEAKNESS, doctor
from robvit.diagnosis.grading import REQUIREMENTS, graded, run_check, surely_more
from robvit.errors import DataError, InputError, UnknownName
from robvit.record import Record
from robvit.threat import Threat

SMALL = {"steps": 8, "restarts": 2, "queries": 60, "draws": 20}
EIGHT = Threat("linf", 8 / 255)
ON_THE_MODEL = [c.name for c in CHECKS if c.value.__module__.endswith("checks.model")]
DOCS = Path(__file__).parents[2] / "docs/doctor.md"


@pytest.fixture(scope="module")
def mini() -> robvit.Model:
    return robvit.load("robvit-mini")


@pytest.fixture(scope="module")
def images() -> tuple[torch.Tensor, torch.Tensor]:
    return open_data("sample", limit=16).tensors()


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
    (finding,) = doctor(model, images, checks=[check], **SMALL, **settings).findings
    assert finding.check == check
    return finding.status


@pytest.mark.slow
@pytest.mark.parametrize("name", [p.name for p in BROKEN_DEFENSES])
def test_broken_defences_are_caught_by_name(
    name: str, mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    defense = BROKEN_DEFENSES.entry(name)
    first = defense.info.caught_by[0]
    assert status(defense.value(mini), images, first) == "red"
    if first not in ON_THE_MODEL:  # those are asked of the honest model below
        assert status(mini, images, first) == "green"


@pytest.mark.slow
def test_an_honest_model_has_no_symptom(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    record = doctor(mini, images, checks=ON_THE_MODEL, **SMALL)
    assert {f.check: f.status for f in record.findings} == dict.fromkeys(ON_THE_MODEL, "green")


def test_a_plane_passes_every_check_and_the_record_keeps_it(tmp_path: Path) -> None:
    model, x, y = plane_and_images()
    record = doctor(model, (x, y), threat=Threat("linf", 0.05), **SMALL)
    checks = [f for f in record.findings if f.check != WEAKNESS]
    assert sorted(f.check for f in checks) == sorted(c.name for c in CHECKS)
    skipped = {f.check for f in checks if f.status == "skipped"}
    assert skipped >= {"attention_underflow", "attention_scaling", "transfer"}
    # An early-stopped image may lie so near to the plane that rounding takes it back.
    assert {f.status for f in checks if f.check not in skipped | {"eight_bit"}} == {"green"}
    beaten = 0.05 * model.weight.abs().sum() > (x - 0.5).flatten(1).matmul(model.weight).abs()
    assert record.trials[1].attack == "fgsm"
    free = ((x - 0.05 >= 0) & (x + 0.05 <= 1)).flatten(1).all(1)  # where the box does not bind
    assert [not r for r, f in zip(record.trials[1].correct, free, strict=True) if f] == beaten[free].tolist()
    assert {c.title for c in record.curves} == {"Accuracy over budget", "Accuracy over steps"}
    record.save(tmp_path / "record.json")
    assert Record.load(tmp_path / "record.json") == record


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_other_norms(norm: str) -> None:
    model, x, y = plane_and_images()
    record = doctor(model, (x, y), threat=Threat(norm, {"l2": 0.5, "l1": 5.0}[norm]), **SMALL)
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

    (finding,) = doctor(rooted, (x, y), checks=["gradients"], **SMALL).findings
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


def test_attacks_in_low_precision_count_what_full_precision_confirms() -> None:
    """The model errs in low precision on whatever is not clean: all that is claimed there is false."""
    plane, x, y = plane_and_images(slope=3.0)

    def touchy(images: torch.Tensor) -> torch.Tensor:
        low = torch.is_autocast_enabled("cpu") and not torch.equal(images, x[: len(images)])
        return plane(images).flip(1) if low else plane(images)

    told: list[int] = []
    outcomes = []
    for precision in ("fp32", "bf16"):
        context = CheckContext(touchy, x, y, EIGHT)
        context.precision, context.each_pass = precision, told.append
        outcomes.append(context.pgd(steps=4))
    full, low = outcomes
    assert not bool(full.success.all())
    assert torch.equal(low.success, full.success)
    assert low.forward > full.forward  # those in low precision came on top
    assert (full.warnings, low.warnings) == ((), ("PrecisionDisagreement",))
    assert context.trials[-1].warnings == ["PrecisionDisagreement"]
    assert len(told) > 4


def test_where_low_precision_gives_nan_full_precision_attacks() -> None:
    plane, x, y = plane_and_images(slope=3.0)

    def broken(images: torch.Tensor) -> torch.Tensor:
        low = torch.is_autocast_enabled("cpu") and not torch.equal(images, x[: len(images)])
        return plane(images) * (float("nan") if low else 1)

    full, low = (CheckContext(broken, x, y, EIGHT) for _ in range(2))
    low.precision = "bf16"
    assert torch.equal(low.pgd(steps=4).adv, full.pgd(steps=4).adv)
    assert low.trials[-1].warnings == ["PrecisionUnsound"]


def test_attacks_are_run_once_however_many_checks_ask() -> None:
    model, x, y = plane_and_images()
    counted = Count(model)
    context = CheckContext(counted, x, y, EIGHT, strength=AttackStrength(**SMALL))
    first = context.pgd()
    passes = counted.forward
    assert context.pgd() is first
    assert context.pgd_on("cross_entropy") is first
    assert counted.forward == passes
    assert context.pgd(steps=4) is not first


@pytest.mark.slow
def test_the_white_box_is_the_worst_of_its_losses_for_each_image(
    images: tuple[torch.Tensor, torch.Tensor],
) -> None:
    context = CheckContext(
        robvit.load("robvit-mini-robust"), *images, EIGHT, strength=AttackStrength(**SMALL)
    )
    parts = [context.pgd_on(loss) for loss in ("cross_entropy", "margin", "dlr")]
    white_box = context.white_box
    assert torch.equal(white_box.success, torch.stack([p.success for p in parts]).any(0))
    assert torch.equal(context.logits(white_box.adv).argmax(1) != context.y, white_box.success)
    assert torch.equal(context.logits(white_box.adv).argmax(1), white_box.predicted)
    later = context.attack("square", title="square", after=white_box, steps=5)
    assert context.trials[-1].skipped == white_box.success.nonzero()[:, 0].tolist()
    assert context.trials[-1].settings == {"steps": 5, "after": "white box"}
    assert bool((later.success >= white_box.success).all())


def planted(successes: dict[str, list[int]]) -> CheckContext:
    """A context of ten correct images in which attacks have succeeded on these, by their titles."""
    x = torch.full((10, 3, 4, 4), 0.5)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2))
    y = network(x).argmax(1)
    context = CheckContext(network, x, y, EIGHT, strength=AttackStrength(**SMALL))
    for title, rows in successes.items():
        success = torch.zeros(10, dtype=torch.bool)
        success[rows] = True
        context.outcomes[title] = Outcome(
            adv=x.clone(),
            success=success,
            predicted=torch.where(success, 1 - y, y),
            clean_correct=context.correct,
            clean_predicted=y,
            distance=torch.zeros(10),
        )
    return context


@pytest.mark.parametrize(
    ("check", "successes", "evidence"),
    [
        ("more_steps", {"pgd-2": [], "pgd-8": [0], "pgd-16": [0, 1]}, "not converged"),
        ("more_steps", {"pgd-2": [0, 1], "pgd-8": [0], "pgd-16": [0]}, "rises with the steps"),
        ("more_restarts", {"pgd-8": [0], "pgd-8, 2 starts": [0, 1]}, "90% after one start, 80% after 2"),
        ("losses", {"pgd-8": [0], "pgd-8 margin": [0, 1], "pgd-8 dlr": [0]}, "alone misses 1 successes"),
        (
            "monotone_budget",
            {
                "pgd-8, linf 2/255": [0, 1],
                "pgd-8, linf 4/255": [0],
                "pgd-8": [0, 1],
                "pgd-8, linf 16/255": [0, 1],
            },
            "80% at 0.25 eps, 90% at 0.5 eps",
        ),
    ],
)
def test_a_single_violation_is_amber_as_the_documentation_says(
    check: str, successes: dict[str, list[int]], evidence: str
) -> None:
    verdict = run_check(check, planted(successes))
    assert verdict.status == "amber"
    assert evidence in verdict.evidence
    assert verdict.images is not None
    assert verdict.images.nonzero()[:, 0].tolist() == [1]


def test_probabilities_that_round_to_one_are_amber() -> None:
    model, x, y = plane_and_images()
    margin = model(x).abs().sort(0).values[-2:, 0].mean()  # one image lies beyond it
    finding = doctor(
        lambda z: 9 * model(z) / margin, (x, y), checks=["saturation"], threat=Threat("linf", 0.05)
    ).findings[0]
    assert "rounds to 1 for 1;" in finding.evidence
    assert finding.status == "amber"


@pytest.mark.slow
def test_a_zero_gradient_is_red_under_finite_differences(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    quantised = BROKEN_DEFENSES["quantised"](mini)
    (finding,) = doctor(quantised, images, checks=["finite_differences"], **SMALL).findings
    assert finding.status == "red"
    assert "16 of them because their gradient is zero" in finding.evidence
    without = BROKEN_DEFENSES["no_gradient"](mini)
    assert status(without, images, "finite_differences") == "skipped"


@pytest.mark.slow
def test_a_model_without_any_robustness_is_not_all_green(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    names = ["more_restarts", "black_box", "transfer", "random_noise", "attention_scaling", "losses"]
    record = doctor(mini, images, checks=names, **SMALL)
    assert record.metrics == {"clean accuracy": 1.0, "accuracy under attack": 0.0}
    assert "The model is not robust" in record.notes[0]
    assert "This is not evidence of robustness." in record.notes[1]
    assert {f.check: str(f.status) for f in record.findings} == {
        "losses": "green",
        **dict.fromkeys(names[:5], "skipped"),
    }


@pytest.mark.slow
def test_the_worst_findings_come_first_with_a_title_and_a_remedy(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    names = ["softmax_output", "attention_underflow", "saturation", "losses"]
    hot = BROKEN_DEFENSES["hot_logits"](mini)
    record = doctor(hot, images, checks=names, **SMALL)
    assert [f.status for f in record.findings] == ["red", "red", "green", "green"]
    assert [f.title for f in record.findings[:2]] == [
        CHECKS.entry(name).info.title for name in ("saturation", "losses")
    ]
    assert "margin or DLR" in record.findings[0].remedy
    assert record.findings[-1].remedy == ""
    failed = "Cross-entropy has a gradient to follow; Attacks on different losses agree"
    assert record.notes[1] == f"Do not trust robustness measured with such attacks. Failed: {failed}."


def test_every_check_has_all_that_is_shown_of_it_and_a_line_in_the_documentation() -> None:
    for check in CHECKS:
        assert all(getattr(check.info, name) for name in ("title", "compares", "remedy", "cost"))
        assert set(check.info.needs) <= set(REQUIREMENTS)
        assert f"| `{check.name}` | {check.info.title} | {check.info.compares} |" in DOCS.read_text()


def test_the_verb_takes_names_and_leaves_a_record(tmp_path: Path) -> None:
    record = doctor("robvit-mini", "sample", limit=8, checks=["softmax_output"], out=tmp_path / "new")
    assert Record.load(tmp_path / "new/record.json") == record
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["record.json"]
    assert record.model["name"] == "robvit-mini"
    assert record.model["identity"]
    assert record.data["spec"] == "sample"
    assert record.data["count"] == 8
    assert record.protocol["threat"] == {"norm": "linf", "eps": 8 / 255, "psnr": None}
    with pytest.raises(InputError, match="steps must be"):
        doctor("robvit-mini", "sample", steps=1, out=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_the_curve_of_a_randomised_model_is_that_of_its_mean() -> None:
    model, x, y = plane_and_images()

    def noisy(z: torch.Tensor) -> torch.Tensor:
        return model(z) + 0.1 * torch.randn(len(z), 2)

    context = CheckContext(noisy, x, y, EIGHT, strength=AttackStrength(**SMALL))
    run_check("randomness", context)
    assert context.pgd_outcomes == {(8, EIGHT.eps): context.outcomes["pgd-8"]}


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
    with pytest.raises(InputError, match="classifies none of the 12 images correctly"):
        doctor(model, (x, 1 - y))
    with pytest.raises(InputError, match=r"labels must lie in 0\.\.1"):
        doctor(model, (x, y + 5))
    with pytest.raises(InputError, match="NaN or infinity"):
        doctor(lambda z: model(z) / 0, (x, y))
    with pytest.raises(UnknownName, match="did you mean gradients"):
        doctor(model, (x, y), checks=["gradient"])
    with pytest.raises(InputError, match="steps must be at least 4"):
        doctor(model, (x, y), steps=1)


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="needs images with labels"):
        doctor(Linear(), open_data(str(tmp_path)))


@pytest.mark.slow
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
    assert "red      Cross-entropy has a gradient to follow (saturation)" in bad.output
    assert "remedy: Attack with a loss" in bad.output
    assert "images: test/" in bad.output
    record = Record.load(tmp_path / "out/record.json")
    assert record.findings[0].status == "red"
    assert record.model["name"] == "hot_model:build"
    assert (tmp_path / "out/report.html").exists()
    good = CliRunner().invoke(app, ["doctor", "robvit-mini", *common])
    assert good.exit_code == 0, good.output
    assert "0 red" in good.output
    assert good.output.index("clean accuracy 100.0%") > 0
    assert "next: robvit evaluate robvit-mini" in good.output


def test_a_model_of_no_robustness_is_never_all_green() -> None:
    model, x, y = plane_and_images()
    record = doctor(model, (x, y), threat=Threat("linf", 0.5), **SMALL)
    assert record.metrics["accuracy under attack"] == 0
    weak = next(f for f in record.findings if f.status == "amber")
    assert (weak.check, weak.title) == ("robust_accuracy", "The model is not robust at this budget")
    assert "robustify" in weak.remedy
    assert record.notes[0].startswith("The model is not robust")


def test_the_model_to_transfer_from_takes_the_head_that_fits_it(mini: robvit.Model, tmp_path: Path) -> None:
    LinearHead(2 * mini.width, 3, mini.fingerprint()).save(tmp_path / "head.safetensors")
    bare, other = (
        surrogate_of(name, None, tmp_path / "head.safetensors")
        for name in ("robvit-mini", "robvit-mini-robust")
    )
    assert [one.net(torch.rand(1, 3, 32, 32)).shape[1] for one in (bare, other)] == [3, 10]
