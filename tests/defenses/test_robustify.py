"""Learning tokens: it works where it can, it resumes bit for bit, and it attacks nothing twice."""

from __future__ import annotations

import stat
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file

import robvit
from helpers.networks import small_net
from robvit.attacks import ATTACKS
from robvit.backbones.families import Tokens
from robvit.backbones.model import Model
from robvit.data import open_data
from robvit.defenses.attack_cache import PER_SHARD, AttackCache, AttackSetting, TensorImages
from robvit.defenses.batches import TokenBatches, order
from robvit.defenses.recipe import REFERENCE, TokenRecipe
from robvit.defenses.token_trainer import TokenTrainer
from robvit.defenses.token_training import train_tokens
from robvit.defenses.tokens import RobustTokens
from robvit.errors import BrokenAttack, DataError, Diverged, InputError, Unsupported
from robvit.record import Record
from robvit.threat import Threat

ATTACK = AttackSetting("feature", Threat("linf", 8 / 255), {"steps": 4, "psnr": None})
QUICK = TokenRecipe(count=4, steps=6, batch=4, lr=1e-2, attack=ATTACK)


@pytest.fixture
def model() -> Model:
    return Model(small_net("vit"), name="small").eval()


@pytest.fixture
def images() -> TensorImages:
    return TensorImages((torch.rand(20, 3, 32, 32) * 255).round() / 255)


def learned(
    model: Model, images: TensorImages, recipe: TokenRecipe, tmp_path: Path, **paths: Path
) -> torch.Tensor:
    return train_tokens(model, images, recipe, cache=tmp_path / "store", **paths).tokens.values


def test_attacks_in_low_precision_are_kept_apart_and_say_so(
    model: Model, images: TensorImages, tmp_path: Path
) -> None:
    plain, low = (AttackCache(model, images, ATTACK, tmp_path, p) for p in ("fp32", "fp32/plain"))
    assert plain.key == AttackCache(model, images, ATTACK, tmp_path).key
    assert low.key != plain.key
    trainers = [
        TokenTrainer(model, TokenBatches(model, images, QUICK, tmp_path, precision=p), QUICK, None)
        for p in ("fp32", "fp32/plain")
    ]
    assert [trainer._key().get("precision") for trainer in trainers] == [None, "fp32/plain"]
    given: dict[str, Any] = {
        "recipe": replace(QUICK, steps=1),
        "cache": tmp_path / "store",
        "out": tmp_path / "out",
    }
    told: list[str] = []
    record = robvit.robustify(model, images.x, precision="fp32/plain", log=told.append, **given).record
    assert record.protocol["precision"] == "fp32/plain"
    assert record.machine["device"] == "cpu"
    assert "passes, about" in told[0]
    assert "fp32 with plain attention on cpu" in told[0]
    again = robvit.robustify(model, images.x, **given).record  # as it was begun
    assert again.protocol["precision"] == "fp32/plain"


def test_progress_moves_inside_a_shard(model: Model, images: TensorImages, tmp_path: Path) -> None:
    told: list[float] = []
    cache = AttackCache(model, images, ATTACK, tmp_path)
    cache.fill(cache.missing([0]), lambda amount=1, note="": told.append(amount))
    assert len(told) >= ATTACK.steps
    assert sum(told) == pytest.approx(PER_SHARD)


@pytest.mark.slow
def test_tokens_raise_what_they_are_trained_for(model: Model, images: TensorImages, tmp_path: Path) -> None:
    done = train_tokens(model, images, replace(QUICK, steps=60), cache=tmp_path)
    first, last = sum(done.history[0]), sum(done.history[-1])
    assert last > first
    assert done.baseline < 1
    assert done.tokens.values.shape == (1, 4, 48)
    assert done.tokens.fingerprint == model.fingerprint()


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(
    model: Model, images: TensorImages, tmp_path: Path
) -> None:
    once, again = (learned(model, images, QUICK, tmp_path) for _ in range(2))
    other = learned(model, images, replace(QUICK, seed=1), tmp_path)
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


def test_a_killed_training_goes_on_to_the_same_bits(
    model: Model, images: TensorImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TokenTrainer, "SAVE_EVERY", 1)
    whole = learned(model, images, QUICK, tmp_path)
    state = tmp_path / "state.safetensors"
    for lives in ([], [1], []):  # killed after one, two and one more steps

        def die(*_: object, left: list[int] = lives, **__: object) -> None:
            left.pop()  # IndexError when none is left

        with pytest.raises(IndexError):
            train_tokens(model, images, QUICK, state=state, cache=tmp_path / "store", progress=die)
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    assert torch.equal(learned(model, images, QUICK, tmp_path, state=state), whole)


def test_a_state_of_another_training_is_refused(model: Model, images: TensorImages, tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"
    learned(model, images, QUICK, tmp_path, state=state)
    with pytest.raises(InputError, match="belongs to another run"):
        learned(model, images, replace(QUICK, lr=0.5), tmp_path, state=state)


def test_nothing_is_attacked_twice_and_a_damaged_shard_is_made_again(
    model: Model, images: TensorImages, tmp_path: Path
) -> None:
    first = train_tokens(model, images, QUICK, cache=tmp_path)
    second = train_tokens(model, images, replace(QUICK, count=9, seed=3), cache=tmp_path)
    assert (first.attacked, second.attacked) == (20, 0)
    shard = next(tmp_path.rglob("shard-00000*"))
    whole = {name: tensor.clone() for name, tensor in load_file(shard).items()}  # not a view of the file
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert train_tokens(model, images, QUICK, cache=tmp_path).attacked == 16
    assert all(torch.equal(tensor, whole[name]) for name, tensor in load_file(shard).items())


@pytest.mark.slow
def test_other_pixels_under_the_same_names_are_attacked_anew(model: Model, tmp_path: Path) -> None:
    class SameNames(TensorImages):
        def digest(self) -> str:
            return "the same"

    x = (torch.rand(20, 3, 32, 32) * 255).round() / 255
    done = [
        train_tokens(model, SameNames(p), QUICK, cache=tmp_path).attacked for p in (x, x.clone(), x.flip(-1))
    ]
    assert done == [20, 0, 20]


def test_a_step_is_one_pass_and_leaves_the_weights_alone(
    model: Model, images: TensorImages, tmp_path: Path
) -> None:
    learned(model, images, QUICK, tmp_path)
    passes = []
    handle = model.net.blocks[0].register_forward_hook(lambda _, args, out: passes.append(len(out)))
    before = model.identity()
    learned(model, images, QUICK, tmp_path)
    handle.remove()
    assert passes == [8] * 6  # four clean and four attacked images at once, in each of six steps
    assert model.identity() == before
    assert all(p.grad is None for p in model.parameters())


def test_the_step_follows_the_papers_objective(model: Model, images: TensorImages, tmp_path: Path) -> None:
    """One step of Adam moves every value by lr against the sign of the objective's gradient."""
    store = AttackCache(model, images, ATTACK, tmp_path / "store")
    recipe = replace(QUICK, steps=1, lr=1e-3)
    after = learned(model, images, recipe, tmp_path)
    places = order(20, recipe)[0]
    clean = torch.stack([images[place][0] for place in places])
    adv = torch.cat([store.row(place)[0] for place in places])
    start = 0.01 * torch.randn(1, 4, 48, generator=torch.Generator().manual_seed(0))
    r = start.clone().requires_grad_()
    target = model.features(clean).detach()
    total = sum(F.cosine_similarity(model.features(x, r), target, dim=-1).mean() for x in (clean, adv))
    (gradient,) = torch.autograd.grad(total, r)
    moved = after - start
    sure = gradient.abs() > 1e-5
    assert sure.float().mean() > 0.5
    assert torch.equal(moved[sure].sign(), gradient[sure].sign())
    torch.testing.assert_close(moved[sure].abs(), torch.full_like(moved[sure], 1e-3), rtol=0.02, atol=0)


def test_the_published_choices_run(model: Model, images: TensorImages, tmp_path: Path) -> None:
    attack = replace(REFERENCE.attack, settings={"steps": 2})
    tokens = learned(model, images, replace(REFERENCE, steps=2, attack=attack), tmp_path)
    assert tokens.shape == (1, 10, 48)


def test_divergence_stops_and_keeps_the_last_good_state(
    model: Model, images: TensorImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TokenTrainer, "SAVE_EVERY", 1)
    state = tmp_path / "state.safetensors"
    learned(model, images, replace(QUICK, steps=2), tmp_path, state=tmp_path / "other.safetensors")
    original = model.tokens
    calls = 0

    def broken(*arguments: Any) -> Tokens:
        nonlocal calls
        calls += 1
        tokens = original(*arguments)
        return tokens._replace(patch=tokens.patch * (torch.nan if calls > 3 else 1))

    monkeypatch.setattr(model, "tokens", broken)
    with pytest.raises(Diverged, match=r"step 3.*last good state"):
        learned(model, images, QUICK, tmp_path, state=state)
    monkeypatch.setattr(model, "tokens", original)
    assert torch.isfinite(learned(model, images, QUICK, tmp_path, state=state)).all()


def test_the_public_door_and_its_refusals(model: Model, images: TensorImages, tmp_path: Path) -> None:
    hardening = robvit.robustify(model, images.x, recipe=QUICK, cache=tmp_path)
    tokens = hardening.tokens
    assert isinstance(tokens, RobustTokens)
    tokens.check(model)
    assert torch.equal(tokens.values, train_tokens(model, images, QUICK, cache=tmp_path).tokens.values)
    assert torch.equal(hardening.model(images.x), model.replace(tokens=tokens)(images.x))
    assert hardening.record.model["keys"] == [tokens.key_id]
    assert hardening.record.data["count"] == 20
    with pytest.raises(Unsupported, match="cannot take extra tokens"):
        train_tokens(Model(small_net("swin")).eval(), images, QUICK, cache=tmp_path)
    with pytest.raises(InputError, match="got none"):
        train_tokens(model, TensorImages(images.x[:0]), QUICK, cache=tmp_path)
    with pytest.raises(InputError, match="steps must be at least 1"):
        TokenRecipe(steps=0)
    model = model.replace(tokens=tokens.values)
    with pytest.raises(InputError, match="token-free"):
        train_tokens(model, images, QUICK, cache=tmp_path)


def test_a_network_of_timms_is_hardened_as_it_is(tmp_path: Path) -> None:
    net = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=3)
    x = torch.randint(0, 256, (2, 3, 32, 32)) / 255
    quick = {"count": 1, "steps": 1, "batch": 2, "attack_steps": 1, "cache": tmp_path}
    assert robvit.robustify(net, x, **quick).model(x).shape == (2, 3)
    with pytest.raises(InputError, match="nothing tells how Flatten wants its pixels normalised"):
        robvit.robustify(torch.nn.Flatten(), x, **quick)


def test_without_labels_or_parts_every_image_of_a_folder_is_learned_from(
    model: Model, tmp_path: Path
) -> None:
    for i in range(5):
        Image.new("RGB", (40, 40), (50 * i, 20, 200)).save(tmp_path / f"{i}.png")
    quick = {"count": 1, "steps": 1, "batch": 2, "attack_steps": 1, "cache": tmp_path / "cache"}
    for data, count in ((tmp_path, 1), (open_data(tmp_path), 5)):  # half of what is drawn, if by name
        out = tmp_path / f"out {count}"
        hardening = robvit.robustify(model, data, out=out, **quick)
        assert hardening.record.data["count"] == count
        assert Record.load(out / "record.json").metrics == hardening.record.metrics
        assert RobustTokens.load(out / "tokens.safetensors").key_id == hardening.sets[0].key_id
    assert robvit.robustify(model, tmp_path, limit=4, **quick).record.data["count"] == 4
    with pytest.raises(InputError, match="limit goes with the name"):
        robvit.robustify(model, torch.rand(3, 3, 32, 32), limit=2, **quick)
    with pytest.raises(DataError, match="no split called"):
        robvit.robustify(model, tmp_path, split="val", **quick)


def test_a_seed_left_out_is_another_one_each_time_and_is_kept_in_a_folder(
    model: Model, images: TensorImages, tmp_path: Path
) -> None:
    quick = {"count": 1, "steps": 1, "batch": 2, "attack_steps": 1, "cache": tmp_path / "cache"}
    keys = {robvit.robustify(model, images.x, **quick).sets[0].key_id for _ in range(2)}
    assert len(keys) == 2
    out = tmp_path / "out"
    kept = {robvit.robustify(model, images.x, out=out, **quick).sets[0].key_id for _ in range(2)}
    assert len(kept) == 1
    assert stat.S_IMODE((out / "secret").stat().st_mode) == 0o600


def test_an_attack_that_depends_on_its_batch_must_keep_its_budget_too(
    model: Model, images: TensorImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = ATTACKS.entry("aas")
    assert entry.info.batch_coupled

    def leaving(model: Any, x: torch.Tensor, y: Any, threat: Threat, **_: Any) -> torch.Tensor:
        return (x + 2 * threat.eps).clamp(0, 1)

    monkeypatch.setitem(ATTACKS._entries, "aas", replace(entry, value=leaving))
    setting = AttackSetting("aas", Threat("linf", 1 / 255))
    with pytest.raises(BrokenAttack):
        setting.run(model, images.x[:2], torch.zeros(2, dtype=torch.long))


class Counting:
    """Images made when asked for; it knows how many of them are alive at once."""

    def __init__(self, count: int) -> None:
        self.count, self.alive, self.most = count, 0, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        seeded = torch.Generator().manual_seed(index)
        x = (torch.rand(3, 32, 32, generator=seeded) * 255).round() / 255
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(x, self._gone)
        return x, -1

    def _gone(self) -> None:
        self.alive -= 1

    def digest(self) -> str:
        return f"counting {self.count}"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_images(model: Model, tmp_path: Path) -> None:
    most = []
    for count in (32, 128):
        images = Counting(count)
        done = train_tokens(model, images, replace(QUICK, steps=count // QUICK.batch), cache=tmp_path)
        assert done.attacked == count
        most.append(images.most)
    assert most[0] == most[1] <= 2 * PER_SHARD
