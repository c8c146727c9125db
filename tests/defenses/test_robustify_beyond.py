"""Beyond the paper: deep and adaptive tokens, several attacks, a head that learns along, pools."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import robvit
from helpers.networks import small_net
from robvit.attacks import pgd
from robvit.backbones.heads import LinearHead
from robvit.backbones.model import Model
from robvit.defenses.attack_cache import AttackCache, AttackSetting
from robvit.defenses.batches import TokenBatches
from robvit.defenses.pool import TokenPool, load_tokens
from robvit.defenses.recipe import AdaptiveAttack, TokenRecipe
from robvit.defenses.token_trainer import TokenTrainer
from robvit.defenses.token_training import train_pool, train_tokens
from robvit.defenses.tokens import RobustTokens
from robvit.errors import InputError
from robvit.threat import Threat

FEATURE = AttackSetting("feature", Threat("linf", 8 / 255), {"steps": 2, "psnr": None})
NEAR = replace(FEATURE, threat=Threat("linf", 2 / 255))
LABELS = AttackSetting("pgd", Threat("linf", 8 / 255), {"steps": 2})
QUICK = TokenRecipe(count=3, steps=5, batch=4, lr=1e-2, attack=FEATURE)
SEEN = replace(QUICK, adaptive=AdaptiveAttack(steps=2))
ALONG = replace(SEEN, attack=LABELS, task=0.5, layers="all")

VARIANTS = {
    "deep": replace(QUICK, layers="all"),
    "several": replace(QUICK, also=(NEAR, LABELS)),
    "adaptive": SEEN,
    "mixed": replace(SEEN, adaptive=AdaptiveAttack(steps=1, share=0.5), also=(NEAR,)),
    "head along": ALONG,
}


class Labelled:
    """Random images (N 3 32 32) with labels of five classes."""

    def __init__(self, count: int = 40, classes: int = 5) -> None:
        self.x = (torch.rand(count, 3, 32, 32) * 255).round() / 255
        self.classes = classes

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.x[index], index % self.classes if self.classes else -1

    def digest(self) -> str:
        return f"labelled {self.classes}"


@pytest.fixture
def model() -> Model:
    model = Model(small_net("vit"), name="small").eval()
    return model.replace(head=LinearHead(96, 5, model.fingerprint()))


@pytest.fixture
def images() -> Labelled:
    return Labelled()


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_resumes_to_the_same_bits(
    name: str, model: Model, images: Labelled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TokenTrainer, "SAVE_EVERY", 2)
    recipe, store = VARIANTS[name], tmp_path / "store"
    whole = train_tokens(model, images, recipe, cache=store)
    state, advance, lives = tmp_path / "state", TokenTrainer.advance, [4]

    def mortal(self: TokenTrainer) -> None:
        lives[0] -= 1
        if lives[0] < 0:
            raise KeyboardInterrupt
        advance(self)

    monkeypatch.setattr(TokenTrainer, "advance", mortal)
    with pytest.raises(KeyboardInterrupt):
        train_tokens(model, images, recipe, cache=store, state=state)
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    lives[0] = 1  # the steps three and four are kept, one is left
    again = train_tokens(model, images, recipe, cache=store, state=state)
    assert torch.equal(again.tokens.values, whole.tokens.values)
    assert again.history == whole.history
    assert again.baseline == whole.baseline
    if whole.head is not None:
        assert torch.equal(again.head.linear.weight, whole.head.linear.weight)
        assert not torch.equal(whole.head.linear.weight, model.head.linear.weight)


def test_deep_tokens_start_like_shallow_ones_and_know_their_layers(
    model: Model, images: Labelled, tmp_path: Path
) -> None:
    deep = train_tokens(model, images, replace(QUICK, layers="all"), cache=tmp_path).tokens
    assert deep.values.shape == (2, 3, 48)
    assert deep.layers == (0, 1)
    assert TokenRecipe.from_settings(deep.settings) == replace(QUICK, layers=(0, 1))
    same = train_tokens(model, images, replace(QUICK, layers=(0,)), cache=tmp_path)
    assert torch.equal(same.tokens.values, train_tokens(model, images, QUICK, cache=tmp_path).tokens.values)


@pytest.mark.slow
def test_settings_give_the_recipe_back(model: Model, images: Labelled, tmp_path: Path) -> None:
    for recipe in (VARIANTS["mixed"], VARIANTS["several"]):
        tokens = train_tokens(model, images, recipe, cache=tmp_path / "store").tokens
        tokens.save(tmp_path / "t.safetensors")
        assert TokenRecipe.from_settings(RobustTokens.load(tmp_path / "t.safetensors").settings) == recipe
    assert TokenRecipe.from_settings({"imported": "small.pt"}) == TokenRecipe()


def test_the_inner_attack_is_on_the_model_as_it_is_hardened_now(model: Model, images: Labelled) -> None:
    """With many steps it moves hardened features further than an attack on the token-free model does."""
    recipe = replace(SEEN, adaptive=AdaptiveAttack(steps=10))
    examples = TokenBatches(model, images, recipe)
    hardened = model.replace(tokens=torch.randn(1, 3, 48))
    seen, blind = examples.batch(0, hardened), examples.batch(0, model)
    goal = model.features(seen.clean)
    assert torch.equal(seen.target, goal)

    def distance(adv: torch.Tensor) -> float:
        return float(-F.cosine_similarity(hardened.features(adv), goal, dim=-1).detach().mean())

    assert distance(seen.adv) > distance(blind.adv)
    threat = Threat("linf", 8 / 255)
    expected = pgd(hardened.features, seen.clean, goal, threat, steps=10, loss="cosine", early_stop=False)
    assert torch.equal(seen.adv, expected)
    assert not torch.equal(examples.batch(1, hardened).adv[0], seen.adv[0])


@pytest.mark.slow
def test_attacks_take_turns_and_every_image_meets_each_of_them(
    model: Model, images: Labelled, tmp_path: Path
) -> None:
    recipe = replace(QUICK, steps=20, also=(NEAR,))  # two passes over forty images
    training = train_tokens(model, images, recipe, cache=tmp_path)
    assert training.attacked == 80
    examples = TokenBatches(model, images, recipe, tmp_path)
    sizes: dict[int, list[int]] = {}
    for step, places in enumerate(examples.order):
        batch = examples.batch(step, model)
        for place, delta in zip(places, (batch.adv - batch.clean).abs(), strict=True):
            sizes.setdefault(place, []).append(round(float(delta.max()) * 255))
    assert all(sorted(seen) == [2, 8] for seen in sizes.values())
    once = train_tokens(model, images, replace(recipe, steps=10), cache=tmp_path / "other")
    assert once.attacked == 40  # in one pass no attack runs on images it is not needed for


def test_stores_of_features_do_not_depend_on_the_head_but_task_attacks_do(
    model: Model, images: Labelled, tmp_path: Path
) -> None:
    other = model.replace(head=LinearHead(96, 5, model.fingerprint()))
    for attack, same in ((FEATURE, True), (LABELS, False)):
        keys = {AttackCache(one, images, attack, tmp_path).key for one in (model, other)}
        assert (len(keys) == 1) == same


@pytest.mark.slow
def test_a_head_that_learns_along_lowers_its_own_loss(model: Model, tmp_path: Path) -> None:
    class Bright(Labelled):
        """The label is in the image's brightness."""

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            label = index % 5
            return ((self.x[index] * 0.2 + 0.15 * label) * 255).round() / 255, label

    images, before = Bright(), model.identity()
    training = train_tokens(model, images, replace(ALONG, steps=40, task=1.0), cache=tmp_path)
    hardened = model.replace(tokens=training.tokens)
    x = torch.stack([images[i][0] for i in range(40)])
    y = torch.arange(40) % 5
    assert training.head is not None
    losses = []
    for head in (model.head, training.head):
        losses.append(F.cross_entropy(hardened.replace(head=head)(x), y).item())
    assert losses[1] < 0.9 * losses[0]
    assert model.identity() == before
    assert not any(p.requires_grad for p in training.head.parameters())


def test_what_cannot_be_learned_is_refused(model: Model, images: Labelled, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="labelled images"):
        train_tokens(model, Labelled(classes=0), VARIANTS["several"], cache=tmp_path)
    bare = Model(small_net("vit")).eval()
    with pytest.raises(InputError, match="a linear head learns along"):
        train_tokens(bare, images, replace(ALONG, attack=FEATURE), cache=tmp_path)
    bare.net.num_classes = 0
    with pytest.raises(InputError, match="attacks a classifier"):
        train_tokens(bare, images, replace(QUICK, attack=LABELS), cache=tmp_path)
    for wrong in ({"steps": 0}, {"share": 0.0}, {"share": 1.5}):
        with pytest.raises(InputError, match="adaptive tokens need"):
            AdaptiveAttack(**wrong)
    with pytest.raises(InputError, match="share of the objective"):
        TokenRecipe(task=2)


@pytest.mark.slow
def test_a_pool_is_learned_from_one_store_and_resumes(
    model: Model, images: Labelled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(QUICK, steps=10)
    pool, trainings = train_pool(model, images, recipe, 3, cache=tmp_path / "store")
    assert [t.attacked for t in trainings] == [40, 0, 0]
    assert len({one.settings["seed"] for one in pool}) == 3
    assert not torch.equal(pool[0].values, pool[1].values)
    shares: list[float] = []

    def die(share: float, note: str = "") -> None:
        shares.append(share)
        if len(shares) == 15:
            raise KeyboardInterrupt

    state = tmp_path / "state"
    with pytest.raises(KeyboardInterrupt):
        train_pool(model, images, recipe, 3, state=state, cache=tmp_path / "store", progress=die)
    again, _ = train_pool(model, images, recipe, 3, state=state, cache=tmp_path / "store")
    assert all(torch.equal(a.values, b.values) for a, b in zip(pool, again, strict=True))
    assert {stat.S_IMODE(file.stat().st_mode) for file in state.iterdir()} == {0o600}


def three_sets(model: Model) -> TokenPool:
    return TokenPool(tuple(RobustTokens(torch.randn(1, 2, model.width), model.fingerprint()) for _ in "abc"))


def test_a_pool_is_a_secret_file_and_shows_nothing(model: Model, tmp_path: Path) -> None:
    pool = three_sets(model)
    path = tmp_path / "pool.safetensors"
    pool.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = load_tokens(path)
    assert isinstance(again, TokenPool)
    assert all(torch.equal(a.values, b.values) for a, b in zip(pool, again, strict=True))
    assert [one.key_id for one in again] == [one.key_id for one in pool]
    value = f"{float(pool[0].values[0, 0, 0]):.4f}"
    for text in (repr(pool), str(pool), repr(model.replace(tokens=pool))):
        assert value not in text
        assert "tensor" not in text
    pool[1].save(path)
    assert isinstance(load_tokens(path), RobustTokens)
    with pytest.raises(InputError, match="does not hold a pool"):
        TokenPool.load(path)
    with pytest.raises(InputError, match="at least one set"):
        TokenPool(())
    with pytest.raises(InputError, match="the same weights"):
        TokenPool((pool[0], RobustTokens(torch.randn(1, 2, 48), "other")))


def test_every_call_draws_a_set_and_a_fixed_one_stays(model: Model) -> None:
    pool, x = three_sets(model), torch.rand(2, 3, 32, 32)
    model = model.replace(head=None)
    random = model.replace(tokens=pool)
    answers = [model.replace(tokens=one)(x) for one in pool]
    drawn = [random(x) for _ in range(60)]
    assert {next(i for i, a in enumerate(answers) if torch.equal(a, d)) for d in drawn} == {0, 1, 2}
    fixed = model.replace(tokens=pool[1])
    assert torch.equal(fixed(x), fixed(x))
    seeded = [pool.draw(torch.Generator().manual_seed(7)).key_id for _ in range(3)]
    assert len(set(seeded)) == 1
    assert random.identity() not in (model.identity(), fixed.identity())
    assert random.replace(tokens=None).identity() == model.identity()
    with pytest.raises(InputError, match="token-free"):
        AttackCache(random, Labelled(), FEATURE)


@pytest.mark.slow
def test_a_pool_loads_by_path_as_a_randomised_model(tmp_path: Path) -> None:
    bare = robvit.load("robvit-mini")
    three_sets(bare).save(tmp_path / "pool.safetensors")
    model = robvit.load("robvit-mini", tokens=tmp_path / "pool.safetensors")
    x = torch.rand(1, 3, 32, 32)
    assert len({model(x)[0, 0].item() for _ in range(40)}) == 3
    assert "pool" not in "".join(model.state_dict())
