"""What is certified against patches stands: by the rule's own proof, and when somebody tries."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import robvit
from helpers.devices import Stopped, seen_devices
from helpers.networks import small_net
from helpers.plain_vit import plain_vit
from robvit.backbones.heads import LinearHead
from robvit.certification.adaptive import Answered, attacked, open_places
from robvit.certification.certify import certify
from robvit.certification.dropping import TokenDropping
from robvit.certification.head import fit_dropped_head
from robvit.certification.patch_certificate import PatchCertificate
from robvit.certification.patches import PatchDefense, defend_patches, open_defense
from robvit.certification.windows import cover, patch_sides, window_counts
from robvit.cli import app
from robvit.cli.report import report
from robvit.errors import BrokenAttack, InputError, Unsupported
from robvit.exporting import export
from robvit.report.html import write_report


@pytest.fixture(scope="module")
def mini() -> robvit.Model:
    """A plain ViT of random weights behind a head that was learned; each token has pixels of its own."""
    model = robvit.Model(plain_vit(num_classes=0), name="small").eval()
    learn = robvit.open_data("sample", split="train", limit=200)
    return model.replace(head=LinearHead.fit(model, learn.batches(50), 10))


@pytest.fixture(scope="module")
def images(mini: robvit.Model) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with the labels that the model gives them."""
    x, _ = robvit.open_data("sample", split="test", limit=12).tensors()
    with torch.no_grad():
        return x, mini(x).argmax(-1)


@pytest.mark.slow
def test_no_token_dropped_is_the_model_bit_for_bit(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    dropping, (x, _) = TokenDropping(mini), images
    rows, columns = (side // token for side, token in zip(mini.input_size, dropping.token, strict=True))
    with torch.no_grad():
        everything = torch.arange(rows * columns).expand(len(x), -1)
        assert torch.equal(dropping.logits(dropping.embed(x), everything), mini(x))


def test_pixels_of_dropped_tokens_change_nothing(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    defense, (x, _) = PatchDefense(mini, 5), images
    kept = torch.tensor(defense.cover.kept(0)).expand(len(x), -1)
    patched = x.clone()
    patched[:, :, :5, :5] = torch.rand(3, 5, 5)
    with torch.no_grad():
        same, other = (
            [defense.dropping.logits(defense.dropping.embed(some), kept) for some in (x, patched)],
            mini(patched),
        )
    assert torch.equal(*same)
    assert not torch.equal(other, mini(x))


class Table(TokenDropping):
    """A network whose answers are from a table (M M), told by the tokens that it is shown."""

    def __init__(self, mini: robvit.Model, answers: torch.Tensor) -> None:
        super().__init__(mini)
        windows = cover(mini.input_size, self.token, 5)
        self.answers = {tuple(windows.kept(*pair)): int(answers[pair]) for pair in windows.pairs}
        self.answers[tuple(windows.kept())] = WHOLE

    def logits(self, embedded: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        labels = [self.answers[tuple(row)] for row in kept.tolist()]
        return torch.nn.functional.one_hot(torch.tensor(labels), WHOLE + 1).float()


WHOLE = 3  # what the whole image gets from a table, and nothing else


def defense_by(mini: robvit.Model, answers: torch.Tensor) -> PatchDefense:
    """The rule on answers from a table."""
    defense = PatchDefense(mini, 5)
    defense.dropping = Table(mini, answers)
    return defense


def double_masking(answers: torch.Tensor) -> int:
    """The rule for one image, window by window."""
    count = range(len(answers))
    for i in count:
        labels = {int(answers[min(i, j), max(i, j)]) for j in count if j != i}
        if len(labels) == 1:
            return labels.pop()
    return WHOLE


@pytest.mark.slow
def test_the_rule_ends_at_what_was_certified(mini: robvit.Model) -> None:
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(1, 3, *mini.input_size)
    count = len(PatchDefense(mini, 5).cover.windows)
    found = set()
    for number in range(150):
        other = torch.rand((count, count), generator=draws) < (0.02, 0.2, 1.0)[number % 3]
        table = torch.where(other, torch.randint(0, 3, (count, count), generator=draws), 2)
        defended = defense_by(mini, table).classify(x)
        got = int(defended.label)
        assert got == double_masking(table)
        assert bool(defended.disputed) == (got == WHOLE)
        found.add(got)
        # A patch under window w may change every answer but those with w dropped, which certified the label.
        w = int(torch.randint(0, count, (1,), generator=draws))
        table[w, :], table[:, w] = 1, 1
        assert int(defense_by(mini, table).classify(x).label) == 1
    assert found >= {2, WHOLE}


@pytest.mark.slow
def test_no_patch_that_is_tried_takes_a_certified_label(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    defense, (x, y) = PatchDefense(mini, 5), images
    certified = defense.certify(x, y)
    assert 0 < certified.sum() < len(x)  # or the test would tell nothing
    x, y = x[certified][:4], y[certified][:4]
    assert torch.equal(defense.classify(x).label, y)
    for row, column in itertools.product((0, 9, 14, 27), repeat=2):
        patched = x.clone().requires_grad_()
        with torch.enable_grad():  # the white box: the pixels that a gradient of the plain model asks for
            loss = torch.nn.functional.cross_entropy(mini(patched), y)
        (slope,) = torch.autograd.grad(loss, patched)
        place = (slice(None), slice(None), slice(row, row + 5), slice(column, column + 5))
        adv = x.clone()
        adv[place] = (slope[place] > 0).float()
        assert torch.equal(defense.classify(adv).label, y)


def test_places_are_open_where_no_safe_window_is_over(mini: robvit.Model) -> None:
    cover = PatchDefense(mini, 5).cover
    safe = torch.rand(3, len(cover.windows), generator=torch.Generator().manual_seed(0)) < 0.4
    found = open_places(cover, safe, (32, 32), (4, 4))
    assert found.shape == (3, 28, 28)
    assert 0 < found.sum() < found.numel()
    for image, row, column in itertools.product(range(3), range(0, 28, 5), range(0, 28, 3)):
        pixels = itertools.product(range(row, row + 5), range(column, column + 5))
        under = {8 * (r // 4) + c // 4 for r, c in pixels}
        hidden = [number for number, window in enumerate(cover.windows) if under <= window]
        assert hidden  # every place is covered
        assert bool(found[image, row, column]) == (not safe[image, hidden].any())


@pytest.mark.slow
def test_the_attacker_of_the_defence_takes_labels_but_no_certified_one(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    defense, (x, y) = PatchDefense(mini, 5), images
    safe, clean = defense.safe_places(defense.asked(x), y), defense.classify(x).label
    label, distance, forward, backward = attacked(defense, x, y, clean, safe, steps=6, seed=0)
    assert bool((label == y)[safe.all(1)].all())
    assert int((label == y).sum()) < int((clean == y).sum())
    assert torch.equal(label[clean != y], clean[clean != y])
    assert torch.equal(distance > 0, clean == y)
    assert float(distance.max()) <= 5
    views, tried = len(Answered(defense).views), int((clean == y).sum())
    assert (1 + 6) * views * tried <= backward <= (1 + 2 * 6) * views * tried
    assert forward > backward  # the last point of every climb, and the rule, which judges it


def test_a_patch_that_leaves_its_square_is_noticed(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    defense, (x, y) = PatchDefense(mini, 5), (images[0][:1], images[1][:1])

    def cheat(model: object, x: torch.Tensor, *given: Any, **settings: Any) -> None:
        given[2].adv.zero_()  # all of the image

    monkeypatch.setattr("robvit.certification.adaptive.climb", cheat)
    everywhere = torch.zeros(1, len(defense.cover.windows), dtype=torch.bool)
    with pytest.raises(BrokenAttack, match="must stay within patch 5"):
        attacked(defense, x, y, y, everywhere, steps=1, seed=0)


def test_an_image_is_certified_where_every_window_is_safe(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    defense, (x, y) = PatchDefense(mini, 5), images
    places = defense.safe_places(defense.asked(x), y)
    assert torch.equal(places.all(1), defense.certify(x, y))
    assert bool((places.any(1) & ~places.all(1)).any())  # safe in some places only
    row = int((~places.all(1) & places.any(1)).nonzero()[0, 0])
    image = x[row : row + 1]
    for number in places[row].nonzero()[:, 0].tolist():
        token = min(defense.cover.windows[number])
        top, left = 4 * (token // 8), 4 * (token % 8)
        adv = image.clone()
        adv[:, :, top : top + 5, left : left + 5] = 1.0
        assert int(defense.classify(adv).label) == int(y[row])


@pytest.mark.slow
def test_each_mask_is_asked_once_and_an_image_no_longer_than_it_can_be_certified(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    defense, (x, y) = PatchDefense(mini, 5), images
    with torch.no_grad():
        answers = defense.asked(x)
        defended = defense.decide(answers)
        certified = defense.safe(answers, y)
        embedded = defense.dropping.embed(x)
        labels = {
            pair: defense.dropping.logits(
                embedded, torch.tensor(defense.cover.kept(*pair)).expand(len(x), -1)
            )
            for pair in defense.cover.pairs
        }
    every = torch.stack([logits.argmax(-1) == y for logits in labels.values()]).all(0)
    assert torch.equal(certified, every)
    assert torch.equal(defended.label, defense.classify(x).label)
    asked = (answers.label >= 0).triu().sum((1, 2))
    whole = int(defended.disputed.sum())  # the whole image was asked too
    assert int(asked.sum()) + whole == answers.passes
    assert set(asked[certified].tolist()) == {len(defense.cover.pairs)}
    refuted = (answers.label[:, 0, 1:] != y[:, None]).any(1)
    assert bool(refuted.any())
    again = defense.asked(x)
    defense.decide(again)
    before = again.passes
    defense.safe(again, torch.where(refuted, y, -2))  # what the first round refutes costs no further pass
    assert again.passes == before


def test_an_answer_that_rounding_could_turn_is_not_counted_on(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    defense, (x, y) = PatchDefense(mini, 5), images
    plain = defense.certify(x, y)
    logits = TokenDropping.logits

    def near_ties(self: TokenDropping, embedded: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        found = logits(self, embedded, kept)
        second = found.topk(2).indices[:, 1]
        return found.scatter(1, second[:, None], found.amax(1, keepdim=True) * (1 - 1e-7))

    monkeypatch.setattr(TokenDropping, "logits", near_ties)
    assert bool(plain.any())
    assert not bool(defense.certify(x, y).any())


def test_maps_are_drawn_and_told(mini: robvit.Model, tmp_path: Path) -> None:
    record = certify(mini, "sample", patch=5, limit=4, maps=True, out=tmp_path)
    assert (tmp_path / "places.png").is_file()
    report([tmp_path], tmp_path / "again.html")
    assert "data:image/png" in (tmp_path / "again.html").read_text()
    assert len(record.tables[1].rows) == 3
    assert min(min(row[1:]) for row in record.tables[1].rows) >= 100 * record.metrics["certified accuracy"]


@pytest.mark.slow
def test_a_record_tells_what_the_defence_s_own_attacker_leaves(mini: robvit.Model, tmp_path: Path) -> None:
    record = certify(mini, "sample", patch=[4, 5], limit=6, attack_steps=2)
    title = "The defence under patches made for it"
    (table,) = (one for one in record.tables if one.title == title)
    (row,) = table.rows  # of the larger side, whose windows serve both
    told = dict(zip(table.columns, row, strict=True))
    (attack,) = (one for one in record.trials if one.attack == "patch")
    assert attack.settings == {"steps": 2, "locations": 2, "seed": 0}
    assert max(attack.distance) <= 5
    assert [one == 0 for one in attack.distance] == [place in attack.skipped for place in range(6)]
    assert attack.forward > attack.backward > 0
    write_report(record, tmp_path / "report.html")
    assert "A lower bound: no attack within this budget" in (tmp_path / "report.html").read_text()
    assert told["patch, pixels"] == 5
    assert told["under attack, %"] == pytest.approx(100 * sum(attack.correct) / 6)
    assert told["certified ones that fell"] == 0
    certificates = [one for one in record.trials if one.attack == "certificate"]
    assert len(certificates) == 2
    for one in certificates:
        assert all(b for a, b in zip(one.correct, attack.correct, strict=True) if a)


@pytest.mark.slow
def test_a_curve_over_sizes_holds_each_certificate_by_itself(
    mini: robvit.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = {side: certify(mini, "sample", patch=side, limit=12) for side in (5, 10)}
    asked: list[int] = []
    whole = PatchDefense.asked

    def counted(self: PatchDefense, x: torch.Tensor) -> object:
        asked.append(len(x))
        return whole(self, x)

    monkeypatch.setattr(PatchDefense, "asked", counted)
    record = certify(mini, "sample", patch=[10, 4, 5, 5], limit=12, out=tmp_path)
    assert asked == [12, 12]  # patches of 4 and 5 pixels touch two tokens a side, one of 10 four
    for side, one in alone.items():
        assert record.metrics[f"certified accuracy, patch {side}"] == one.metrics["certified accuracy"]
        trials = [t for t in record.trials if t.strength == f"patch {side}"]
        assert [t.correct for t in trials] == [one.trials[-1].correct]
    (line, clean), table = record.curves[0].lines.values(), record.tables[0]
    assert [point[0] for point in line] == [row[0] for row in table.rows] == [4, 5, 10]
    shares = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [100 * point[1] for point in line] == [row["certified, %"] for row in shares]
    for row, point in zip(shares, clean, strict=True):
        told = [row["clean, defended, %"], row["clean from"], row["clean to"]]
        assert told == [100 * one for one in point[1:]]
        assert row["disputed from"] <= row["disputed, %"] <= row["disputed to"]
    assert all(low <= share <= high for _, share, low, high in [*line, *clean])
    assert table.rows[0][1] == pytest.approx(100 * 16 / 1024)
    assert robvit.Record.load(tmp_path / "record.json").curves == record.curves


@pytest.mark.slow
def test_logits_have_the_label_on_top_also_as_an_exported_program(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    defense, (x, _) = defend_patches(mini, 5), images
    with torch.no_grad():
        logits = defense(x)
        assert torch.equal(logits.argmax(-1), defense.classify(x).label)
        torch.testing.assert_close(logits.softmax(-1).sum(-1), torch.ones(len(x)))
        torch.testing.assert_close(defense.exportable()(x), logits)
        shapes = ({0: torch.export.Dim("batch")},)
        program = torch.export.export(
            defense.exportable(), (x[:2],), dynamic_shapes=shapes, strict=False
        ).module()
        for some in (x[:1], x):
            torch.testing.assert_close(program(some), defense(some))


@pytest.mark.slow
def test_the_defence_runs_in_onnx_and_serves_as_it_does_here(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    defense, (x, _) = open_defense(mini, "5", "1x4"), images
    path = tmp_path / "defended.onnx"
    parity = export(mini, path, images=x[:5], defense=defense.exportable())
    assert parity.features is None
    assert "predictions identical" in str(parity)
    session = runtime.InferenceSession(path)
    assert [one.name for one in session.get_outputs()] == ["logits"]
    facts = session.get_modelmeta().custom_metadata_map
    assert facts["defence"] == "double masking against one patch of 5x5 pixels, 1x4 windows"
    (logits,) = session.run(None, {"pixels": x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(logits), defense(x), atol=1e-4, rtol=1e-4)
        plain = mini(x)
    assert not torch.allclose(torch.from_numpy(logits), plain, atol=1e-2)


def test_what_a_defence_cannot_be_written_as_is_refused(mini: robvit.Model, tmp_path: Path) -> None:
    x = torch.rand(1, 3, *mini.input_size)
    with pytest.raises(Unsupported, match="a timm checkpoint holds a network"):
        export(mini, tmp_path / "a", "timm", images=x, defense=defend_patches(mini, 5).exportable())
    with pytest.raises(InputError, match="give it a head"):
        open_defense(mini.replace(head=None), "5", "3")


@pytest.mark.slow
def test_an_attack_on_the_defence_itself_never_beats_its_certificate(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """Patches searched on the defended model and on the plain one, at the places that each finds worst."""
    defense, (x, y) = defend_patches(mini, 5), images
    certified, fallen = defense.certify(x, y), torch.zeros(len(x), dtype=torch.bool)
    for source in (defense, mini):
        outcome = robvit.attacks.run(
            "patch", source, x, y, robvit.Threat("patch", 5), victim=defense, steps=6, locations=3
        )
        fallen |= outcome.success & outcome.clean_correct
    assert not bool((fallen & certified).any())
    assert bool(fallen.any())  # the attack is no straw man


def test_a_record_tells_what_is_certified_and_goes_on_where_it_stopped(
    mini: robvit.Model, tmp_path: Path
) -> None:
    made = certify(mini, "sample", patch=5, limit=6, batch=3, out=tmp_path)
    (tmp_path / "record.json").unlink()
    parts = sorted(tmp_path.rglob("part-*.json"))
    assert len(parts) == 2
    parts[1].unlink()
    again = certify(mini, "sample", patch=5, limit=6, batch=3, out=tmp_path)
    assert [t.correct for t in again.trials] == [t.correct for t in made.trials]
    assert made.robust_accuracy() == made.metrics["certified accuracy"]
    assert made.headline().threat == "patch 5"
    assert robvit.Record.load(tmp_path / "record.json").metrics.keys() == made.metrics.keys()


@pytest.mark.parametrize("family", ["eva02", "dinov3", "cait"])
def test_other_families_drop_tokens_too(family: str) -> None:
    model = robvit.Model(small_net(family, img_size=56 if family == "eva02" else 64))
    x = torch.rand(2, 3, *model.input_size, generator=torch.Generator().manual_seed(0))
    dropping = TokenDropping(model)
    rows, columns = (side // token for side, token in zip(model.input_size, dropping.token, strict=True))
    every = torch.arange(rows * columns).expand(len(x), -1)
    with torch.no_grad():
        embedded, whole = dropping.embed(x), model.tokens(x)
        for all_of_it, same in zip(dropping.tokens(embedded, every)[:2], whole[:2], strict=True):
            torch.testing.assert_close(all_of_it, same)
        kept = torch.stack([every[0, torch.randperm(rows * columns)[:3].sort().values] for _ in x])
        changed, gone = x.clone(), set(range(rows * columns)) - set(kept[0].tolist())
        first = min(gone)
        top, left = first // columns * dropping.token[0], first % columns * dropping.token[1]
        changed[0, :, top : top + dropping.token[0], left : left + dropping.token[1]] = 0.5
        some, others = (dropping.tokens(dropping.embed(images), kept) for images in (x, changed))
    assert torch.equal(some.patch, others.patch)
    assert torch.equal(some.prefix, others.prefix)
    assert not torch.equal(model.tokens(changed).patch, whole.patch)
    alone = dropping.tokens(embedded[:1], kept[:1])  # each image has its own places
    torch.testing.assert_close(alone.patch, some.patch[:1])


@pytest.mark.slow
def test_a_model_without_classes_gets_a_head_first(tmp_path: Path) -> None:
    bare = robvit.Model(plain_vit(num_classes=0))
    assert not bare.classes
    record = certify(bare, "sample", patch=5, limit=6, out=tmp_path)
    (head,) = tmp_path.glob("head-*.safetensors")
    written = head.stat().st_mtime_ns
    again = certify(bare, "sample", patch=5, limit=6, out=tmp_path)
    assert head.stat().st_mtime_ns == written
    assert [one.correct for one in again.trials] == [one.correct for one in record.trials]
    assert record.metrics["certified accuracy"] > 0
    assert any("a linear head was learned first" in note for note in record.notes)
    with pytest.raises(InputError, match="give it a head"):
        certify(bare, robvit.open_data("sample", limit=2), patch=5)


def test_what_cannot_be_certified_is_refused(mini: robvit.Model) -> None:
    with pytest.raises(InputError, match="give patch= or l2="):
        certify(mini, "sample")
    with pytest.raises(InputError, match="give l2="):
        certify(mini, "sample", patch=5, embedding=True)
    with pytest.raises(InputError, match="l2 must be a radius above 0"):
        certify(mini, "sample", l2=-1)
    with pytest.raises(Unsupported, match="share pixels"):
        TokenDropping(robvit.load("robvit-mini"))
    with pytest.raises(Unsupported, match="no plain ViT"):
        TokenDropping(robvit.load("xcit_nano_12_p16_224", pretrained=False))


def test_model_and_images_go_to_the_device_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    where, wanted = seen_devices(monkeypatch), SimpleNamespace(device=torch.device("meta"))
    monkeypatch.setattr("robvit.certification.certify.processes", lambda: wanted)
    model = robvit.Model(plain_vit(), name="small")
    with pytest.raises(Stopped):
        certify(model, "sample", patch=5, limit=1)
    with pytest.raises(Stopped):
        PatchCertificate(model, [5], 3, maps=False).outcomes(robvit.open_data("sample", limit=1))
    assert where == ["meta", "meta"]


def test_a_head_judged_on_its_training_images_is_told(mini: robvit.Model) -> None:
    images = robvit.open_data("sample", split="test", limit=4)
    head = copy.deepcopy(mini.head)
    assert isinstance(head, LinearHead)
    head.learned_from = tuple(images.checksums()[:3])
    record = certify(mini.replace(head=head), images, patch=5)
    assert any("the head was trained on 3 of these 4 images" in note for note in record.notes)
    assert not any("trained on" in note for note in certify(mini, images, patch=5).notes)


@pytest.mark.slow
def test_a_head_taught_with_windows_knows_its_images_without_them(mini: robvit.Model) -> None:
    learn = robvit.open_data("sample", split="train", limit=200)
    bare = mini.replace(head=None)
    taught = bare.replace(head=fit_dropped_head(bare, learn, patch=5, draws=6, batch=20))
    x, y = learn.take(range(40)).tensors()
    shares = []
    for model in (mini, taught):
        defense = PatchDefense(model, 5)
        with torch.no_grad():
            embedded = defense.dropping.embed(x)
            kept = [
                torch.tensor(defense.cover.kept(*pair)).expand(len(x), -1) for pair in defense.cover.pairs
            ]
            correct = [defense.dropping.logits(embedded, some).argmax(-1) == y for some in kept]
        shares.append(float(torch.stack(correct).float().mean()))
    assert shares[1] > shares[0] + 0.02  # five points with these weights


def test_bands_are_windows_too(mini: robvit.Model, tmp_path: Path) -> None:
    assert window_counts("3") == (3, 3)
    assert window_counts("1x7") == (1, 7)
    with pytest.raises(InputError, match="or 1x7, got 'x3'"):
        window_counts("x3")
    record = certify(mini, "sample", patch=5, windows=(1, 5), limit=4, maps=True, out=tmp_path)
    rows = record.tables[1].rows
    assert record.protocol["windows"] == [[1, 5]]
    assert [len(row) for row in rows] == [6]


@pytest.mark.parametrize(
    ("text", "sides"), [("14", [14]), ("2%", [16]), (" 1.5 % ", [14]), ("28, 2%,7", [28, 16, 7])]
)
def test_patches_in_pixels_or_as_a_share(text: str, sides: list[int]) -> None:
    assert patch_sides(text, (112, 112)) == sides


def test_a_patch_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match="such as 2%, got 'big'"):
        patch_sides("big", (112, 112))


@pytest.mark.slow
def test_the_command_says_what_was_certified(tmp_path: Path) -> None:
    words = ["certify", "vit_tiny_patch16_224", "sample", "--out", str(tmp_path / "c")]
    assert "give --patch or --l2" in CliRunner().invoke(app, words).output
    for sides in ("0", "7,0"):
        assert "1 pixel or more" in str(CliRunner().invoke(app, [*words, "--patch", sides]).exception)
    small = ["--l2", "0.1", "--samples", "20", "--limit", "2", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["certify", "robvit-mini", "sample", *small])
    assert done.exit_code == 0, done.output
    assert "Certified is the label of the smoothed model" in done.output
    assert (tmp_path / "report.html").exists()
