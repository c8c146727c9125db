"""What is certified against patches stands: by the rule's own proof, and when somebody tries."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import robvit
from helpers.plain_vit import plain_vit
from robvit.backbones.heads import LinearHead
from robvit.certification.certify import certify
from robvit.certification.dropping import TokenDropping
from robvit.certification.head import fit_dropped_head
from robvit.certification.patches import PatchDefense, defend_patches
from robvit.certification.windows import patch_side
from robvit.cli import app
from robvit.errors import InputError, Unsupported


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


def test_no_token_dropped_is_the_model_bit_for_bit(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    dropping, (x, _) = TokenDropping(mini), images
    rows, columns = (side // token for side, token in zip(mini.input_size, dropping.token, strict=True))
    with torch.no_grad():
        assert torch.equal(dropping.logits(dropping.embed(x), range(rows * columns)), mini(x))


def test_pixels_of_dropped_tokens_change_nothing(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    defense, (x, _) = PatchDefense(mini, 5), images
    kept = defense.cover.kept(0)
    patched = x.clone()
    patched[:, :, :5, :5] = torch.rand(3, 5, 5)
    with torch.no_grad():
        same, other = (
            [defense.dropping.logits(defense.dropping.embed(some), kept) for some in (x, patched)],
            mini(patched),
        )
    assert torch.equal(*same)
    assert not torch.equal(other, mini(x))


class Table(PatchDefense):
    """The rule on answers from a table (M M) in place of a network's."""

    def __init__(self, mini: robvit.Model, answers: torch.Tensor) -> None:
        super().__init__(mini, 5)
        self.answers = answers

    def _logits(self, embedded: torch.Tensor, *windows: int) -> torch.Tensor:
        first, second = windows[0], windows[-1]
        label = self.answers[min(first, second), max(first, second)]
        return torch.nn.functional.one_hot(label, 3).float().expand(len(embedded), -1)


def double_masking(answers: torch.Tensor) -> int:
    """The rule as the paper states it, for one image."""
    count = len(answers)

    def pair(a: int, b: int) -> int:
        return int(answers[min(a, b), max(a, b)])

    first = [pair(i, i) for i in range(count)]
    most = max(sorted(set(first)), key=first.count)
    for i in range(count):
        if first[i] != most and all(pair(i, j) == first[i] for j in range(count)):
            return first[i]
    return most


def test_the_rule_is_the_papers_and_ends_at_what_was_certified(mini: robvit.Model) -> None:
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(1, 3, *mini.input_size)
    count = len(PatchDefense(mini, 5).cover.windows)
    for _ in range(200):
        table = torch.randint(0, 3, (count, count), generator=draws)
        got = int(Table(mini, table).classify(x).label)
        first = table.diagonal().tolist()
        if sorted(map(first.count, set(first)))[-2:] != [max(map(first.count, first))] * 2:  # no tie
            assert got == double_masking(table)
        # A patch under window w may change every answer but those with w dropped, which certified the label.
        w = int(torch.randint(0, count, (1,), generator=draws))
        table[w, :], table[:, w] = 1, 1
        assert int(Table(mini, table).classify(x).label) == 1


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


def test_an_image_is_certified_where_every_window_is_safe(
    mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    defense, (x, y) = PatchDefense(mini, 5), images
    places = defense.certified_places(x, y)
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


def test_maps_are_drawn_and_told(mini: robvit.Model, tmp_path: Path) -> None:
    record = certify(mini, "sample", patch=5, limit=4, maps=True, out=tmp_path)
    assert (tmp_path / "places.png").is_file()
    assert len(record.tables[0].rows) == 3
    assert min(min(row[1:]) for row in record.tables[0].rows) >= 100 * record.metrics["certified accuracy"]


def test_scores_have_the_label_on_top(mini: robvit.Model, images: tuple[torch.Tensor, torch.Tensor]) -> None:
    defense = defend_patches(mini, 5)
    with torch.no_grad():
        assert torch.equal(defense(images[0]).argmax(-1), defense.classify(images[0]).label)


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


def test_what_cannot_be_certified_is_refused(mini: robvit.Model) -> None:
    with pytest.raises(InputError, match="give patch= or l2="):
        certify(mini, "sample")
    with pytest.raises(InputError, match="give l2="):
        certify(mini, "sample", patch=5, embedding=True)
    with pytest.raises(Unsupported, match="share pixels"):
        TokenDropping(robvit.load("robvit-mini"))
    with pytest.raises(Unsupported, match="no plain ViT"):
        TokenDropping(robvit.load("xcit_nano_12_p16_224", pretrained=False))


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
            kept = [defense.cover.kept(*pair) for pair in defense.cover.pairs]
            correct = [defense.dropping.logits(embedded, some).argmax(-1) == y for some in kept]
        shares.append(float(torch.stack(correct).float().mean()))
    assert shares[1] > shares[0] + 0.02  # five points with these weights


@pytest.mark.parametrize(("text", "side"), [("14", 14), ("2%", 16), (" 1.5 % ", 14)])
def test_a_patch_in_pixels_or_as_a_share(text: str, side: int) -> None:
    assert patch_side(text, (112, 112)) == side


def test_a_patch_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match="such as 2%, got 'big'"):
        patch_side("big", (112, 112))


def test_the_command_says_what_was_certified(tmp_path: Path) -> None:
    words = ["certify", "vit_tiny_patch16_224", "sample", "--out", str(tmp_path / "c")]
    assert "give --patch or --l2" in CliRunner().invoke(app, words).output
    small = ["--l2", "0.1", "--samples", "20", "--limit", "2", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["certify", "robvit-mini", "sample", *small])
    assert done.exit_code == 0, done.output
    assert "Certified is the label of the smoothed model" in done.output
    assert (tmp_path / "report.html").exists()
