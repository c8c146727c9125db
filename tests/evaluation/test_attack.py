"""`robvit attack` and the shards behind it: resume, sharing out, images that hold what they promise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import robvit
from robvit.attacks.pixels import eight_bit
from robvit.attention.hooks import class_attention
from robvit.budget import Budget
from robvit.cli import app, main
from robvit.data import open_data, read_image
from robvit.errors import DataError, InputError
from robvit.evaluation.attack_shards import AttackJob, run_job
from robvit.evaluation.classifiers import check_fit, open_classifier
from robvit.evaluation.shards import read_shards
from robvit.record import Record, Trial
from robvit.report.adversarial_images import AdversarialImages, shard_folders
from robvit.statistics import interval
from robvit.threat import Threat

LINF = Threat("linf", 8 / 255)


def job(count: int = 12, batch: int = 5, **settings: object) -> AttackJob:
    model = robvit.load("robvit-mini-robust")
    images = open_data("sample", limit=count)
    return AttackJob("pgd", LINF, {"steps": 3, **settings}, model, model.identity(), images, batch=batch)


def contents(folder: Path, work: AttackJob) -> tuple[torch.Tensor, list[bool]]:
    parts = list(read_shards(folder, len(work.batches())))
    return torch.cat([p.adv for p in parts]), [r for p in parts for r in p.facts["correct"]]


def test_images_for_other_models_are_no_others_shards() -> None:
    white_box = job(2)  # which leaves what is wrong anyway, and ends with the first success
    assert replace(white_box, victim=robvit.load("robvit-mini")).key() != white_box.key()


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    work = job()
    whole = run_job(work, tmp_path / "whole").trial()

    class Killed(Exception):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    with pytest.raises(Killed):  # after the first shard
        run_job(work, tmp_path / "parts", die)
    assert len(list((tmp_path / "parts").glob("shard-*"))) == 1
    (tmp_path / "parts" / "shard-00001.safetensors").write_bytes(b"half a sh")  # torn by a crash
    made = (tmp_path / "parts" / "shard-00000.safetensors").stat().st_mtime_ns
    resumed = run_job(work, tmp_path / "parts").trial()
    assert (tmp_path / "parts" / "shard-00000.safetensors").stat().st_mtime_ns == made  # done work is kept
    assert (whole.correct, whole.distance) == (resumed.correct, resumed.distance)
    assert torch.equal(contents(tmp_path / "whole", work)[0], contents(tmp_path / "parts", work)[0])


@pytest.mark.slow
def test_batches_of_any_size_give_the_same_images(tmp_path: Path) -> None:
    sizes = {batch: job(batch=batch) for batch in (1, 4, 12)}
    for batch, work in sizes.items():
        run_job(work, tmp_path / str(batch))
    first = contents(tmp_path / "1", sizes[1])
    for batch in (4, 12):
        # Kernels for other batch sizes may round differently, so a few values may cross a level.
        other = contents(tmp_path / str(batch), sizes[batch])
        assert (first[0] != other[0]).float().mean() < 0.02
        assert first[1] == other[1]


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    run_job(job(count=4), tmp_path)
    with pytest.raises(InputError, match="another run"):
        run_job(job(count=4, seed=1), tmp_path)


def test_images_are_whole_levels_inside_the_budget() -> None:
    x = (torch.rand(8, 3, 6, 6) * 255).round() / 255
    for threat in (LINF, Threat("linf", 1.7 / 255), Threat("l2", 0.3), Threat("linf", 8 / 255, psnr=40)):
        adv = threat.project(x, x + 0.05 * torch.randn_like(x))
        out = eight_bit(x, adv, threat)
        assert torch.equal((out * 255).round() / 255, out)
        assert (threat.size(out - x) <= threat.eps * (1 + 1e-5)).all()
        assert ((out - x).flatten(1).norm(dim=1) <= threat.radius(x) * (1 + 1e-5)).all()
        assert ((out - adv).abs() <= 1 / 255 + 1e-6).all()


@pytest.mark.slow
def test_the_command_writes_images_that_still_succeed_when_read_back(tmp_path: Path) -> None:
    arguments = [
        "attack",
        "robvit-mini",
        "sample",
        "--limit",
        "12",
        "--set",
        "steps=5",
        "--out",
        str(tmp_path),
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    record = Record.load(tmp_path / "record.json")
    model = robvit.load("robvit-mini")
    clean, pgd = record.trials
    images = open_data("sample", limit=12)
    assert record.data["names"] == images.names
    with torch.no_grad():
        for i, name in enumerate(record.data["names"]):
            image = read_image((tmp_path / "images" / name).with_suffix(".png")).float() / 255
            assert (image - images[i][0]).abs().max() <= 8 / 255 + 1e-6
            assert int(model(image[None]).argmax()) == pgd.predicted[i]
    assert sum(pgd.correct) < sum(clean.correct)
    assert record.robust_accuracy() == sum(pgd.correct) / 12
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size[0] > 400
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0
    assert Record.load(tmp_path / "record.json").trials == record.trials


@pytest.mark.slow
def test_images_made_on_a_surrogate_are_judged_by_the_model(tmp_path: Path) -> None:
    arguments = ["attack", "robvit-mini-robust", "sample", "--surrogate", "robvit-mini", "--limit", "12"]
    done = CliRunner().invoke(app, [*arguments, "--set", "steps=3", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "12 of 1,000 images are judged; for all of them: --limit 1000" in done.output
    record = Record.load(tmp_path / "record.json")
    assert (record.model["name"], record.model["surrogate"]) == ("robvit-mini-robust", "robvit-mini")
    trial, judged = record.trials[1], robvit.load("robvit-mini-robust")
    advs = [s.adv for s in read_shards(tmp_path / "shards", 1)]
    with torch.no_grad():
        assert judged(torch.cat(advs).float() / 255).argmax(1).tolist() == trial.predicted


def masked(root: Path, count: int = 5) -> Path:
    """Images whose bright half is class 1, its masks, and a strip of void."""
    for part in ("images", "annotations"):
        (root / part).mkdir(parents=True)
    for i in range(count):
        mask = torch.zeros(32, 32, dtype=torch.uint8)
        mask[:, 8 + 4 * i :] = 1
        noise = torch.randint(0, 60, (32, 32, 3), dtype=torch.uint8)
        Image.fromarray((noise + 140 * mask[:, :, None]).numpy()).save(root / "images" / f"{i}.png")
        mask[:3] = 255
        Image.fromarray(mask.numpy()).save(root / "annotations" / f"{i}.png")
    return root


@pytest.mark.slow
def test_a_segmentation_is_attacked_and_judged_by_its_pixels(tmp_path: Path) -> None:
    masked(tmp_path / "data/test")
    masked(tmp_path / "data/train")
    data, head = f"masks:{tmp_path}/data", str(tmp_path / "head.safetensors")
    trained = CliRunner().invoke(
        app, ["train", "head", "robvit-mini", data, "--kind", "segmentation", "--out", head]
    )
    assert trained.exit_code == 0, trained.output
    words = f"attack robvit-mini {data} --head {head} --batch 2 --attack segpgd --set steps=10"
    arguments = [*words.split(" "), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    record = Record.load(tmp_path / "out" / "record.json")
    assert record.metrics["attacked mIoU"] < record.metrics["clean mIoU"] - 0.1
    assert [row[0] for row in record.tables[-1].rows] == ["no attack", "segpgd, linf 8/255"]
    assert record.tables[-1].rows[1][4] <= record.tables[-1].rows[1][3] <= record.tables[-1].rows[1][5]

    model = robvit.load("robvit-mini", head=head)
    images, rights, total = open_data(data, limit=64), [], torch.zeros(2, 2)
    with torch.no_grad():
        for i, name in enumerate(images.names):
            x, mask = images[i]
            adv = read_image((tmp_path / "out" / "images" / name).with_suffix(".png")).float() / 255
            assert (adv - x).abs().max() <= 8 / 255 + 1e-6
            seen, there = model(adv[None])[0].argmax(0), mask != 255
            rights.append(float((seen == mask)[there].float().mean()))
            for a in (0, 1):
                for b in (0, 1):
                    total[a, b] += ((mask == a) & (seen == b)).sum()
    assert [row[2] for row in record.tables[0].rows] == pytest.approx(rights)
    iou = [float(total[k, k] / (total[k].sum() + total[:, k].sum() - total[k, k])) for k in (0, 1)]
    assert record.metrics["attacked mIoU"] == pytest.approx(sum(iou) / 2)
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0
    assert Record.load(tmp_path / "out" / "record.json").tables == record.tables
    page = CliRunner().invoke(app, ["report", str(tmp_path / "out" / "record.json")])
    assert page.exit_code == 0, page.output


def test_labels_and_masks_are_not_mixed_up(tmp_path: Path) -> None:
    model = robvit.load("robvit-mini")
    with pytest.raises(DataError, match=r"pgd needs labels, these images have masks .*segpgd"):
        AttackJob("pgd", LINF, {}, model, "", open_data(f"masks:{masked(tmp_path)}"))
    with pytest.raises(InputError, match="the class wanted for each image"):
        AttackJob("pgd", LINF, {"targeted": True}, model, "", open_data("sample", limit=2))
    with pytest.raises(DataError, match="segpgd needs masks, these images have labels"):
        AttackJob("segpgd", LINF, {}, model, "", open_data("sample", limit=2))


@pytest.mark.slow
def test_an_attack_in_python_leaves_images_sheet_and_record(tmp_path: Path) -> None:
    model, settings = robvit.load("robvit-mini-robust"), {"steps": 3}
    record = robvit.attack(model, "sample", settings=settings, limit=4, batch=3, out=tmp_path)
    assert Record.load(tmp_path / "record.json") == record
    assert record.model["name"] == "robvit-mini-robust"
    assert (tmp_path / "sheet.png").exists()
    assert len(list((tmp_path / "images").rglob("*.png"))) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attack", "pdg"], "did you mean pgd"),
        (["--set", "stepz=2"], "did you mean step"),
        (["--set", "steps"], "looks like steps=20"),
        (["--eps", "banana"], "number such as 8/255"),
        (["--norm", "l7"], "must be linf, l2, l1 or patch"),
        (["--compile", "inductr"], "the usual one is inductor"),
    ],
)
def test_mistakes_get_a_remedy(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["robvit", "attack", "robvit-mini", "sample", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", [*command, *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [("dinov2-small", "has no classifier"), ("vit_tiny_patch16_224", "tells 1000 classes apart")],
)
def test_models_without_these_classes_are_refused(model: str, message: str) -> None:
    net = robvit.load(model, pretrained=False, img_size=224)
    for verb in (robvit.attack, robvit.evaluate):
        with pytest.raises(InputError, match=message):
            verb(net, open_data("sample", limit=2))


def test_records_that_are_broken_or_of_another_schema_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for text, message in (
        ('{"schema": 99}', "schema 3, got 99"),
        ('{"schema": 3, "kin', "not a record"),
        ('{"schema": 3, "colour": 3, "trials": []}', "unknown field 'colour'"),
        ('{"schema": 3, "kind": "attack"}', "missing"),
        ("[]", "got list"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            Record.load(path)


def test_a_model_with_more_classes_than_the_set_is_drawn_from_is_refused() -> None:
    images = open_data("sample", limit=2)
    some = replace(images, listing=replace(images.listing, class_map=[0, 3, 5]))

    def of(classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, classes))

    assert check_fit(open_classifier(of(10)), some) == 10
    with pytest.raises(InputError, match="tells 11 classes apart, the images have 10"):
        check_fit(open_classifier(of(11)), some)


def test_the_worst_case_names_all_budgets() -> None:
    kinds = {"clean": None, "pgd": Budget("linf", 16 / 255), "square": Budget("linf", 1 / 255)}
    trials = [Trial(k, budget, {}, [True, k != "pgd"], [0, 0], [0.0, 0.0]) for k, budget in kinds.items()]
    record = Record("curve", {}, {"count": 2}, trials)
    assert record.rows()[-1].threat == "linf 16/255, linf 1/255"
    assert record.headline().threat == record.rows()[-1].threat


@pytest.mark.slow
def test_what_an_attack_learned_of_a_model_makes_it_no_other_attack() -> None:
    asked = {"base": "fgsm", "scale_steps": 1, "fit_images": 4}
    records = [
        robvit.attack(name, "sample", attack="aas", threat=Threat("linf", 8 / 255), limit=2, settings=asked)
        for name in ("robvit-mini", "robvit-mini-robust")
    ]
    assert records[0].trials[1].settings == records[1].trials[1].settings
    assert records[0].metrics["scale 1"] <= 1


def test_wilsons_interval_holds_its_known_values() -> None:
    low, high = interval(8, 10)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)  # a textbook example
    assert interval(0, 10)[0] == 0
    assert interval(10, 10)[1] == pytest.approx(1)


@pytest.mark.slow
def test_shards_keep_where_the_model_looks_and_the_report_shows_it(tmp_path: Path) -> None:
    work = job(count=3, batch=2)
    run_job(work, tmp_path / "job")
    kept = torch.cat([s.attention for s in read_shards(tmp_path / "job", 2) if s.attention is not None])
    assert kept.shape == (3, 2, 8, 8)
    assert kept.flatten(2).amax(2).eq(255).all()
    assert kept.flatten(2).amin(2).eq(0).all()
    looks = class_attention(work.model, work.images.tensors()[0])
    assert looks is not None
    assert torch.equal(looks.flatten(1).argmax(1), kept[:, 0].flatten(1).argmax(1))
    robvit.attack(work.model, work.images, settings={"steps": 3}, batch=2, out=tmp_path)
    record = Record.load(tmp_path / "record.json")
    shown = list(AdversarialImages(record, shard_folders(record, tmp_path)))
    assert [e.attention is not None and len(e.attention) for e in shown] == [2, 2, 2]


def test_images_whose_names_differ_by_their_ending_are_all_written(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for number, label in enumerate(open_data("sample").classes):
        (folder / label).mkdir(parents=True)
        for ending in ("png", "jpg"):
            Image.new("RGB", (32, 32), (20 * number, 90, 0)).save(folder / label / f"a.{ending}")
    model = robvit.load("robvit-mini")
    images = open_data(folder, size=32).take(range(4))
    robvit.attack(model, images, attack="fgsm", out=tmp_path / "out")
    names = sorted(p.name for p in (tmp_path / "out" / "images").rglob("*.png"))
    assert names == ["a.jpg.png", "a.jpg.png", "a.png.png", "a.png.png"]


def test_images_that_a_program_holds_need_no_names_of_classes(tmp_path: Path) -> None:
    x, y = open_data("sample", limit=3).tensors()
    robvit.attack("robvit-mini", (x, y), settings={"steps": 1}, out=tmp_path)
    assert (tmp_path / "sheet.png").is_file()
    assert Record.load(tmp_path / "record.json").data["labels"] == y.tolist()


@pytest.mark.parametrize("verb", [robvit.attack, robvit.curve])
def test_a_model_that_guesses_is_told_whatever_is_asked(verb: Callable[..., Record]) -> None:
    def always_first(x: torch.Tensor) -> torch.Tensor:
        return torch.eye(10)[0] + 0.5 * x.flatten(1)[:, :10]

    record = verb(always_first, open_data("sample", limit=20))
    assert any("near chance (10.0%)" in note for note in record.notes), record.notes
