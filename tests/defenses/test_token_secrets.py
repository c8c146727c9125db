"""Secret tokens against whoever searches for what they grew from, with a key small enough to search."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import robvit
from helpers.networks import small_net
from robvit.backbones.model import Model
from robvit.data import open_data
from robvit.defenses.attack_cache import AttackCache, AttackSetting, TensorImages
from robvit.defenses.batches import TokenBatches, order
from robvit.defenses.pool import load_tokens
from robvit.defenses.recipe import TokenRecipe
from robvit.defenses.robustify import robustify
from robvit.defenses.rotate import rotate
from robvit.defenses.secret import TokenSecret, normal, permutation, stretched, uniform
from robvit.defenses.token_trainer import TokenTrainer
from robvit.defenses.token_training import train_tokens
from robvit.defenses.tokens import RobustTokens, SearchableTokens
from robvit.errors import Diverged, InputError
from robvit.progress import silent
from robvit.record import Record
from robvit.tensor_files import FORMATS, tensors_sha256
from robvit.threat import Threat

KEYS = 2**16
THE_KEY = 0xBEEF
ATTACK = AttackSetting("feature", Threat("linf", 8 / 255), {"steps": 4, "psnr": None})
RECIPE = TokenRecipe(count=4, steps=20, batch=4, attack=ATTACK)
COUNT = 40


@pytest.fixture(scope="module")
def model() -> Model:
    return robvit.load("robvit-mini")


@pytest.fixture(scope="module")
def images() -> TensorImages:
    return TensorImages(open_data("sample", split="train", limit=COUNT).tensors()[0])


@pytest.fixture(scope="module")
def small() -> Model:
    """A network on which a whole training takes a third of a second."""
    return Model(small_net("vit"), name="small").eval()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


def reduced(key: int) -> TokenSecret:
    """The secrets of a careless system that has 16 bits of randomness for start and order together."""
    start, order_ = (stretched(key.to_bytes(2, "big"), purpose, 32) for purpose in ("start", "order"))
    return TokenSecret(start, order_, bytes(range(32)))


def each_image(model: Model, images: TensorImages, cache: Path) -> np.ndarray:
    """What whoever searches needs once: every image's two cosines (N 2) under small tokens of any kind."""
    start = 0.01 * torch.randn(1, RECIPE.count, model.width, generator=torch.Generator().manual_seed(99))
    rows = [AttackCache(model, images, ATTACK, cache).row(i) for i in range(len(images))]
    found = []
    with torch.no_grad():
        for x in (images.x, torch.cat([adv for adv, _ in rows])):
            target = torch.cat([clean for _, clean in rows])
            found.append(F.cosine_similarity(model.features(x, start), target, dim=-1).mean(1))
    return torch.stack(found, 1).double().numpy()


def orders(secret: bool, steps: int) -> np.ndarray:
    """The images of the first steps under every key there is (keys steps batch)."""
    recipe = replace(RECIPE, steps=steps)
    every = (
        order(COUNT, recipe, reduced(key)) if secret else order(COUNT, replace(recipe, seed=key))
        for key in range(KEYS)
    )
    return np.array(list(every), dtype=np.int64)


@pytest.mark.slow
def test_a_small_key_is_found_from_the_record_as_it_used_to_be(
    model: Model, images: TensorImages, cache: Path
) -> None:
    recipe = replace(RECIPE, steps=5)
    made = train_tokens(model, images, replace(recipe, seed=THE_KEY), cache=cache)
    # What a record used to publish: the cosines of every step, and a checksum as the key's name.
    curve, name = np.array(made.history), tensors_sha256({"tokens": made.tokens.values})[:12]
    guessed = each_image(model, images, cache)[orders(False, 5)].mean(2)
    likely = np.abs(guessed - curve).sum((1, 2)).argsort()[:3]
    for key in likely.tolist():
        again = train_tokens(model, images, replace(recipe, seed=key), cache=cache).tokens.values
        if tensors_sha256({"tokens": again})[:12] == name:
            break
    else:
        pytest.fail("the search must find it")
    assert key == THE_KEY
    assert torch.equal(again, made.tokens.values)


def published(model: Model, images: TensorImages, cache: Path, secret: TokenSecret) -> tuple[str, str]:
    """What the record of a training with this secret tells: its figures and curves, and its keys."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenSecret, "kept_in", classmethod(lambda cls, folder: secret))
        settings = {"count": 4, "steps": 20, "batch": 4, "attack_steps": 4, "psnr": 0}
        record = robustify(model, images.x, cache=cache, **settings).record
    told = {"metrics": record.metrics, "curves": [curve.lines for curve in record.curves]}
    return json.dumps(told), record.model["keys"][0]


@pytest.mark.slow
def test_the_same_small_key_is_not_found_from_the_record_as_it_is_now(
    small: Model, images: TensorImages, cache: Path
) -> None:
    told, name = published(small, images, cache, reduced(THE_KEY))
    made = train_tokens(small, images, RECIPE, secret=reduced(THE_KEY), cache=cache)
    # The search by the order of the images, on all that is left of the curve: its mean over the window.
    guessed = each_image(small, images, cache)[orders(True, 20)].mean((1, 2))
    lines = json.loads(told)["curves"][0]
    distance = np.abs(guessed - [lines[name][0][1] for name in ("clean", "attacked")]).sum(1)
    assert len(lines["clean"]) == 1
    assert (distance <= distance[THE_KEY] + 1e-9).sum() > KEYS / 10
    # And with any effort: whoever repeats the whole training for every key learns less than three of 16 bits.
    figures = Counter([told, *(published(small, images, cache, reduced(key))[0] for key in range(15))])
    assert sum(count / 16 * math.log2(16 / count) for count in figures.values()) < 3
    # The key's name confirms nothing, not even the tokens themselves.
    assert name != tensors_sha256({"tokens": made.tokens.values})[:12]
    assert made.tokens.key_id == name  # the owner, who has the salt, finds it again


def figures_in(value: Any) -> list[float]:
    """Every number with a fraction, inside others too."""
    inside = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        return [one for part in inside for one in figures_in(part)]
    return [value] if isinstance(value, float) else []


def test_no_figure_that_is_told_of_secret_tokens_has_more_than_two_decimals(
    small: Model, images: TensorImages, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROBVIT_CACHE", str(cache))
    notes: list[str] = []

    def progress(amount: float = 1, note: str = "") -> None:
        notes.append(note)

    quick = {"count": 2, "steps": 20, "batch": 2, "attack_steps": 1}
    made = robustify(small, images.x[:8], progress=progress, **quick)
    data = open_data("sample", split="train", limit=10)
    turned = rotate(made.tokens, small, data, steps=1, judge=2, bound=-1.0, progress=progress)
    for record in (made.record, turned.record):
        told = asdict(record)
        found = figures_in([told["metrics"], told["curves"], told["tables"]])
        assert len(found) > 3
        assert all(one == round(one, 2) for one in found)
    assert any("attacked" in note for note in notes)
    assert not [line for line in (*notes, *turned.record.notes) if re.search(r"\.\d{3}", line)]


def test_no_checksum_in_a_record_confirms_a_guess_of_the_tokens(model: Model) -> None:
    values = torch.randn(1, 2, model.width)
    secret = RobustTokens(values, model.fingerprint(), origin="secret", salt="ab" * 16)
    hardened = model.replace(tokens=secret)
    guess = model.replace(tokens=secret.values)
    assert hardened.facts()["identity"] != guess.facts()["identity"]
    assert hardened.replace(head=None).replace(name="twin").identity() != guess.replace(head=None).identity()
    assert hardened.replace().identity() == hardened.identity()
    assert hardened.replace(tokens=None).identity() == model.identity()
    assert "ab" * 16 not in repr(secret) + str(secret) + repr(hardened)


def test_start_and_order_grow_from_secrets_of_their_own() -> None:
    one, other = TokenSecret.draw(), TokenSecret.draw()
    assert all(len(part) * 8 >= 128 for part in (one.start, one.order, one.name))
    assert len({one.start, one.order, one.name, other.start, other.order, other.name}) == 6
    mixed = TokenSecret(other.start, one.order, one.name)
    assert order(50, RECIPE, one) == order(50, RECIPE, mixed) != order(50, RECIPE, other)
    sets = [one.member(number) for number in range(3)]
    assert len({part for s in (one, *sets) for part in (s.start, s.order, s.name)}) == 12


def test_secrets_are_all_of_the_system_s_randomness(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def drawn(size: int) -> bytes:
        asked.append(size)
        return bytes([len(asked)]) * size

    monkeypatch.setattr("robvit.defenses.secret.secrets.token_bytes", drawn)
    secret = TokenSecret.draw()
    assert asked == [32, 32, 32]
    assert (secret.start, secret.order, secret.name) == (b"\1" * 32, b"\2" * 32, b"\3" * 32)


def test_every_bit_of_a_secret_decides_the_start_of_the_tokens(
    small: Model, images: TensorImages, cache: Path
) -> None:
    batches = TokenBatches(small, images, RECIPE, cache, reduced(0))
    firsts = [replace(reduced(0), start=bytes(place) + b"\1" + bytes(31 - place)) for place in (0, 16, 31)]
    starts = [TokenTrainer(small, batches, RECIPE, None, secret).tokens for secret in firsts]
    assert len({tuple(start.flatten().tolist()) for start in starts}) == 3
    other = TokenBatches(small, images, RECIPE, cache, reduced(1))
    assert other._inner_seed(3) != batches._inner_seed(3)  # nor do inner attacks start where the recipe says


def test_a_training_that_ends_in_an_error_tells_no_step(
    small: Model, images: TensorImages, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = TokenBatches(small, images, RECIPE, cache, reduced(0))
    trainer = TokenTrainer(small, batches, RECIPE, None, reduced(0))
    for kept, shards in batches.missing():
        kept.fill(shards, silent)
    lost = torch.full_like(trainer.tokens, math.nan)
    monkeypatch.setattr(torch.autograd, "grad", lambda *_: [lost])
    with pytest.raises(Diverged, match="step 0") as told:
        trainer.advance()
    assert not re.search(r"\d\.\d{3}", str(told.value).partition("lr")[0])


def test_all_bits_of_a_secret_count_as_those_of_a_seed_do_not() -> None:
    low, high = (0).to_bytes(32, "little"), (2**32).to_bytes(32, "little")
    assert not torch.equal(normal(low, "x", (64,)), normal(high, "x", (64,)))
    assert permutation(low, "x", 64) != permutation(high, "x", 64)
    assert stretched(b"ab", "c", 8) != stretched(b"b", "ca", 8)
    drawn = [torch.randn(4, generator=torch.Generator().manual_seed(s)) for s in (0, 2**32)]
    assert torch.equal(*drawn)  # the reason why


def test_what_is_stretched_has_the_right_distribution() -> None:
    secret = bytes(32)
    flat = uniform(secret, "u", 100_000)
    assert 0 < flat.min() < 1e-4
    assert 1 - 1e-4 < flat.max() < 1
    assert abs(flat.mean() - 0.5) < 0.005
    bell = normal(secret, "n", (100_000,)).double()
    assert abs(bell.mean()) < 0.02
    assert abs(bell.std() - 1) < 0.01
    assert abs((bell.abs() < 1.96).double().mean() - 0.95) < 0.005
    firsts = [permutation(secret, f"pass {i}", 5)[0] for i in range(5000)]
    assert all(abs(firsts.count(n) - 1000) < 150 for n in range(5))
    assert sorted(permutation(secret, "p", 1000)) == list(range(1000))


@pytest.mark.slow
def test_what_a_seed_makes_says_that_it_is_no_secret(
    model: Model, images: TensorImages, cache: Path, tmp_path: Path
) -> None:
    quick = {"count": 1, "steps": 1, "batch": 2, "attack_steps": 1, "cache": cache}
    typed = "robvit robustify robvit-mini --seed 7 --steps 1"
    made = robustify(model, images.x, seed=7, out=tmp_path / "open", command=typed, **quick)
    assert made.record.command == "robvit robustify robvit-mini --seed ... --steps 1"
    robustify(model, images.x, out=tmp_path / "hidden", **quick)
    for folder, is_secret in (("open", False), ("hidden", True)):
        tokens = load_tokens(tmp_path / folder / "tokens.safetensors")
        record = Record.load(tmp_path / folder / "record.json")
        assert record.model["secret"] is is_secret
        assert ("not a secret" not in str(tokens)) is is_secret
        assert any("not a secret" in note for note in record.notes) is not is_secret
        assert record.curves == []  # too short to be told
        assert list(record.metrics) == ["un-hardened cosine under attack"]


def test_files_made_before_are_warned_of_and_others_are_not(model: Model, tmp_path: Path) -> None:
    values = torch.randn(1, 2, model.width)
    path = tmp_path / "tokens.safetensors"
    for settings, is_old in (({"seed": 12345, "count": 2}, True), ({"imported": "small.pt"}, False)):
        about = {"fingerprint": "", "key_id": "k", "settings": settings, "layers": [0]}
        save_file({"tokens": values}, path, {"format": FORMATS["tokens"].word, "about": json.dumps(about)})
        if is_old:
            with pytest.warns(SearchableTokens, match="tokens rotate"):
                load_tokens(path)
        else:
            assert not robvit.defenses.tokens.RobustTokens.load(path).searchable


def test_a_folder_of_an_old_run_is_refused_and_a_damaged_secret_too(
    model: Model, images: TensorImages, cache: Path, tmp_path: Path
) -> None:
    quick = {"count": 1, "steps": 1, "batch": 2, "attack_steps": 1, "cache": cache}
    (tmp_path / "seed").write_text("123\n")
    with pytest.raises(InputError, match="found by search"):
        robustify(model, images.x, out=tmp_path, **quick)
    (tmp_path / "secret").write_text('{"start": "ab"}')
    with pytest.raises(InputError, match="is damaged"):
        robustify(model, images.x, out=tmp_path, **quick)
