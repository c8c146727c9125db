"""The attackers of protocols, from one who only asks for answers to one who knows everything.

An attacker is one entry here: what they know and need, the surrogates they make their images on, what
their work costs, and what may be claimed against them. Whoever does not have the judged model attacks a
surrogate to the attack's full objective; the judged model decides. The method is public, only the tokens
are secret, so an attacker may learn tokens as the defender did, or ask for features and recover them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from robvit.defenses.tokens import RobustTokens
from robvit.evaluation.token_surrogates import (
    FIRST_SEED,
    AttackerContext,
    Surrogate,
    defenders_recipe,
    learned_surrogates,
    measure_leak,
    other_recipe,
    recover_tokens,
)
from robvit.registry import Registry

if TYPE_CHECKING:
    from robvit.evaluation.protocol import AttackerBudget  # protocols are checked against the entries here

GUESSED_LAYERS = (0.0, 1 / 3, 2 / 3)  # how deep in the network, by whoever does not know the layer
GUESSED_COUNTS = (4, 1)  # by whoever does not know the number; the paper's is ten


@dataclass(frozen=True)
class AttackerInfo:
    """What protocols, forecasts and claims need to know of an attacker.

    scenario: what tables call the situation.
    knows: what they know, in words.
    claim: how the sentence "Accuracy under attack 12.5 % ..." goes on, if nobody is stronger.
    gradients: whether they have the gradients of what they attack.
    knows_all: whether nothing is hidden from them.
    needs_tokens: whether they only make sense where tokens are secret.
    learns: whether they need images of their own.
    controls: whether the protocol's controls see the same images.
    surrogates: on how many models images are made, at least.
    models: through how many models one attack passes, all surrogates together.
    learning: passes, forward and as many backward, before the first attack.
    """

    scenario: str
    knows: str
    claim: str
    gradients: bool = True
    knows_all: bool = False
    needs_tokens: bool = False
    learns: bool = False
    controls: bool = False
    surrogates: Callable[[AttackerBudget], int] = lambda budget: 1
    models: Callable[[AttackerBudget], int] = lambda budget: 1
    learning: Callable[[AttackerBudget], int] = lambda budget: 0


Attacker = Callable[[AttackerContext], list[Surrogate]]
WHITE_BOX = "white-box"  # who knows everything; attacks that name nobody are theirs
ATTACKERS: Registry[Attacker, AttackerInfo] = Registry("attacker", AttackerInfo)


def knows_all(attacker: str) -> bool:
    """Whether an attacker, by its name, attacks in the white box; "" is who does when nobody is named."""
    name = attacker or WHITE_BOX
    return name in ATTACKERS and ATTACKERS.info(name).knows_all


def scenario_of(attacker: str, *, tokens: bool) -> str:
    """What records call the situation in which an attacker meets a model, with trained tokens or without."""
    known = ATTACKERS.info(attacker).scenario
    return f"trained tokens, {known}" if tokens else known


@ATTACKERS.add(
    WHITE_BOX,
    scenario="attacker knows everything",
    knows="weights, head and tokens: the judged model itself",
    claim="once the attacker knows everything: only this may be claimed without a word about secrets",
    knows_all=True,
)
def white_box(context: AttackerContext) -> list[Surrogate]:
    return [Surrogate()]


@ATTACKERS.add(
    "black-box",
    scenario="attacker asks for answers",
    knows="only the judged model's answers, so no gradients",
    claim="if attackers see nothing but answers, and few of them",
    gradients=False,
)
def black_box(context: AttackerContext) -> list[Surrogate]:
    return [Surrogate()]


@ATTACKERS.add(
    "no-tokens",
    scenario="attacker has no tokens",
    knows="the public weights and the head, not the tokens",
    claim="if the tokens stay secret and nobody trains tokens of their own",
    needs_tokens=True,
    controls=True,
)
def no_tokens(context: AttackerContext) -> list[Surrogate]:
    bare = context.hardened.replace(tokens=None)
    return [Surrogate("the public model", bare, bare.identity())]


@ATTACKERS.add(
    "own-tokens",
    scenario="attacker trains tokens",
    knows="the same, and how tokens are learned: several sets of their own, each alone and all together",
    claim="if attackers train tokens as the defender did, but never see the real ones",
    needs_tokens=True,
    learns=True,
    surrogates=lambda budget: budget.sets if budget.sets == 1 else budget.sets + 1,
    # An ensemble of k passes through k models; so the sets together cost as much as all alone.
    models=lambda budget: budget.sets if budget.sets == 1 else 2 * budget.sets,
    learning=lambda budget: _learning(budget, budget.sets),
)
def own_tokens(context: AttackerContext) -> list[Surrogate]:
    known = defenders_recipe(context)
    guesses = {f"own tokens {i + 1}": replace(known, seed=FIRST_SEED + i) for i in range(context.budget.sets)}
    return learned_surrogates(context, guesses, "own tokens together")


@ATTACKERS.add(
    "guess-layer",
    scenario="attacker does not know the layer",
    knows="the same but for the layer: a set for each of several layers, each alone and all together",
    claim="if attackers train tokens, but do not know which layers the real ones enter",
    needs_tokens=True,
    learns=True,
    models=lambda budget: 2 * len(GUESSED_LAYERS),
    learning=lambda budget: _learning(budget, len(GUESSED_LAYERS)),
)
def guess_layer(context: AttackerContext) -> list[Surrogate]:
    known, depth = defenders_recipe(context), context.hardened.depth
    layers = dict.fromkeys(round(share * (depth - 1)) for share in GUESSED_LAYERS)
    guesses = {f"tokens before block {layer + 1}": replace(known, layers=(layer,)) for layer in layers}
    return learned_surrogates(context, guesses, "tokens of several layers together")


@ATTACKERS.add(
    "guess-count",
    scenario="attacker does not know the count",
    knows="the same but for the number of tokens: sets of other numbers, each alone and all together",
    claim="if attackers train tokens, but do not know how many the real ones are",
    needs_tokens=True,
    learns=True,
    models=lambda budget: 2 * len(GUESSED_COUNTS),
    learning=lambda budget: _learning(budget, len(GUESSED_COUNTS)),
)
def guess_count(context: AttackerContext) -> list[Surrogate]:
    known = defenders_recipe(context)
    counts = [count for count in GUESSED_COUNTS if count != known.count] or [known.count + 1]
    guesses = {f"{count} tokens": replace(known, count=count) for count in counts}
    return learned_surrogates(context, guesses, "other numbers together")


@ATTACKERS.add(
    "guess-recipe",
    scenario="attacker does not know the recipe",
    knows="the same but for how they were learned: a higher rate, and images attacked within half the budget",
    claim="if attackers train tokens, but do not know rate and attack of the defender's training",
    needs_tokens=True,
    learns=True,
    learning=lambda budget: _learning(budget, 1),
)
def guess_recipe(context: AttackerContext) -> list[Surrogate]:
    return learned_surrogates(
        context, {"tokens of another recipe": other_recipe(defenders_recipe(context))}, ""
    )


@ATTACKERS.add(
    "guess-all",
    scenario="attacker guesses layer, count and recipe",
    knows="the public weights, the head, and that there are tokens: sets in several layers, all together",
    claim="if attackers know that there are tokens, and neither layers nor number nor recipe",
    needs_tokens=True,
    learns=True,
    models=lambda budget: 2 * len(GUESSED_LAYERS),
    learning=lambda budget: _learning(budget, len(GUESSED_LAYERS)),
)
def guess_all(context: AttackerContext) -> list[Surrogate]:
    other, depth = other_recipe(defenders_recipe(context)), context.hardened.depth
    count = next(count for count in GUESSED_COUNTS if count != other.count)
    layers = dict.fromkeys(round(share * (depth - 1)) for share in GUESSED_LAYERS)
    guesses = {
        f"guessed tokens before block {layer + 1}": replace(other, count=count, layers=(layer,))
        for layer in layers
    }
    return learned_surrogates(context, guesses, "guessed tokens together")


@ATTACKERS.add(
    "leak",
    scenario="attacker saw features",
    knows="the public weights, the head and features that the judged model gave away",
    claim="if features were given away, from which attackers recovered tokens",
    needs_tokens=True,
    learns=True,
    learning=lambda budget: budget.leak_steps * budget.batch,
)
def leak(context: AttackerContext) -> list[Surrogate]:
    """Tokens recovered from features by descent on the squared difference."""
    place = context.folder / "recovered.safetensors"
    if place.exists():
        tokens = RobustTokens.load(place)
    else:
        layers = context.hardened.layers
        budget = context.budget
        values = recover_tokens(
            context.hardened,
            context.public(budget.images),
            steps=budget.leak_steps,
            batch=budget.batch,
            progress=context.progress,
        )
        tokens = RobustTokens(values, context.hardened.fingerprint(), "recovered", layers=layers)
        tokens.save(place)
    model = context.hardened.replace(tokens=tokens).to(context.secret.device)
    measure_leak(context, model)
    return [Surrogate("recovered tokens", model, model.identity())]


def _learning(budget: AttackerBudget, sets: int) -> int:
    """Passes before the first attack: images attacked once, and so many token sets learned from them."""
    return budget.images * budget.attack_steps + sets * budget.steps * budget.batch * 2
