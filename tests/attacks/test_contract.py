"""What every attack promises, asked of each one in the registry: a new attack is tested by being there."""

from __future__ import annotations

import inspect
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.attack_cases import EPS, EVERY, images, labelled, prepared, quick, tiny
from robvit.attacks import (
    ATTACKS,
    Count,
    SoftmaxOutput,
    ZeroGradient,
    attack,
    check_adversarial,
    pgd,
    pgd_margin,
    run,
)
from robvit.attacks.core import misclassified, per_image_uniform
from robvit.errors import BrokenAttack, InputError, UnknownName
from robvit.threat import NORMS, PATCH, Threat

every = pytest.mark.parametrize(("name", "norm"), EVERY)
# One perturbation for a whole batch cannot turn each of two classes into the other.
CLASSIFIERS = [
    (name, norm)
    for name, norm in EVERY
    if ATTACKS.info(name).task == "classes" and not ATTACKS.info(name).batch_coupled
]


@every
def test_inside_the_budget_and_the_world_untouched(name, norm):
    (model, x, y), threat = prepared(name), Threat(norm, EPS[norm])
    layers = [m for m in model.train().modules() if not list(m.children())]
    layers[0].bias.requires_grad_(False)
    layers[2].eval()
    layers[-1].weight.grad = torch.ones_like(layers[-1].weight)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    wants = [p.requires_grad for p in model.parameters()]
    untouched, random_state = x.clone(), torch.get_rng_state()

    adv = ATTACKS[name](model, x, y, threat, **quick(name))

    check_adversarial(x, adv, threat)
    assert not adv.requires_grad
    assert torch.equal(x, untouched)
    assert x.grad is None
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert modes == [m.training for m in model.modules()]
    assert wants == [p.requires_grad for p in model.parameters()]
    assert torch.equal(layers[-1].weight.grad, torch.ones_like(layers[-1].weight))
    assert layers[0].weight.grad is None
    assert torch.equal(random_state, torch.get_rng_state())


@every
def test_batches_do_not_matter_and_the_same_seed_gives_the_same(name, norm):
    if ATTACKS.info(name).batch_coupled:
        pytest.skip("documented to depend on the batch")
    (model, x, y), threat = prepared(name, 4), Threat(norm, EPS[norm])
    together = ATTACKS[name](model, x, y, threat, seed=3, **quick(name))
    alone = torch.cat(
        [
            ATTACKS[name](model, x[i : i + 1], y[i : i + 1], threat, seed=3, **quick(name))
            for i in range(len(x))
        ]
    )
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)
    again = ATTACKS[name](model, x, y, threat, seed=3, **quick(name))
    assert torch.equal(together, again)


@every
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_any_model_shape_and_budget(name, norm, data):
    info = ATTACKS.info(name)
    if info.batch_coupled:
        pytest.skip("documented to leave the smallest budgets, which the check refuses")
    eps = data.draw(st.sampled_from([0.0, 1e-4, 0.05, 1.0, 30.0]))
    fill = data.draw(st.sampled_from(["black", "white", "random", "both"]))
    count, side = data.draw(st.sampled_from([(1, 1), (1, 4), (3, 5)]))
    classes = data.draw(st.sampled_from([2, 3, 5]))
    torch.manual_seed(data.draw(st.integers(0, 9)))
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * side * side, 8), nn.ReLU(), nn.Linear(8, classes))
    if info.task == "pixels":
        model = nn.Sequential(nn.Conv2d(3, classes, 1))
    x = {
        "black": torch.zeros(count, 3, side, side),
        "white": torch.ones(count, 3, side, side),
        "random": torch.rand(count, 3, side, side),
        "both": (torch.rand(count, 3, side, side) > 0.5).float(),
    }[fill]
    threat = Threat(norm, {"linf": min(eps, 1.0), PATCH: math.ceil(eps)}.get(norm, eps))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZeroGradient)  # a dead ReLU is likely in a network this small
        result = run(name, model, x, model(x).argmax(1), threat, **quick(name))
    check_adversarial(x, result.adv, threat)
    if eps == 0:
        assert torch.equal(result.adv, x)
        assert not result.success.any()


@every
def test_no_gradient_mode_and_inference_mode_of_the_caller_do_not_matter(name, norm):
    (model, x, y), threat = prepared(name, 2), Threat(norm, EPS[norm])
    plain = ATTACKS[name](model, x, y, threat, **quick(name))
    with torch.inference_mode():
        assert torch.equal(plain, ATTACKS[name](model, x.clone(), y.clone(), threat, **quick(name)))


@pytest.mark.parametrize(("name", "norm"), CLASSIFIERS)
@pytest.mark.parametrize("classes", [2, 3])
def test_few_classes_are_attacked_with_success(name, norm, classes):
    model, x = tiny(classes, seed=1), images(6)
    y = labelled(model, x)
    result = run(name, model, x, y, Threat(norm, 4 * EPS[norm]))
    assert result.success.float().mean() > 0.8


def test_passes_are_counted_and_pgd_takes_no_more_than_it_must():
    model, x = tiny(), images()
    counted = Count(model)
    pgd(counted, x, labelled(model, x), Threat("linf", 0.0), steps=10)
    assert (counted.forward, counted.backward) == (11 * len(x), 10 * len(x))


def test_misclassified_images_leave_the_batch_with_early_stop():
    model, x = tiny(), images()
    y = labelled(model, x)
    passes = []
    for early_stop in (True, False):
        counted = Count(model)
        pgd(counted, x, y, Threat("linf", 1.0), steps=10, restarts=2, early_stop=early_stop)
        passes.append(counted.forward)
    assert passes[0] < passes[1] / 3
    assert passes[1] == 22 * len(x)


STOPPING = [e.name for e in ATTACKS if "early_stop" in e.info.defaults]


@pytest.mark.parametrize("name", STOPPING)
def test_an_attack_that_takes_early_stop_honours_it(name):
    model, x = tiny(), images()
    y = labelled(model, x)
    passes = []
    for early_stop in (True, False):
        counted, settings = Count(model), {**quick(name), "early_stop": early_stop}
        norm = ATTACKS.info(name).norms[0]
        ATTACKS[name](counted, x, y, Threat(norm, 5 if norm == PATCH else 0.9), **settings)
        passes.append(counted.forward)
    assert passes[0] < passes[1]


def test_attacks_that_have_no_early_stop_refuse_it():
    model, x = tiny(), images()
    y = labelled(model, x)
    for name in {e.name for e in ATTACKS} - set(STOPPING):
        with pytest.raises(UnknownName, match="early_stop"):
            run(name, model, x, y, Threat("linf", 0.1), early_stop=False)
    assert run("fgsm", model, x, y, Threat("linf", 0.1), victim=tiny(seed=1)).adv.shape == x.shape


def test_a_variant_tells_its_own_defaults():
    parameters = inspect.signature(pgd_margin).parameters
    assert parameters["loss"].default == ATTACKS.info("pgd_margin").defaults["loss"] == "margin"
    assert parameters["steps"].default == ATTACKS.info("pgd_margin").defaults["steps"] == 100
    assert inspect.signature(pgd).parameters["loss"].default == "cross_entropy"
    model, x = tiny(), images()
    y, threat = labelled(model, x), Threat("l2", 0.1)
    expected = pgd(model, x, y, threat, steps=3, loss="margin")
    assert torch.equal(pgd_margin(model, x, y, threat, steps=3), expected)


def test_draws_differ_by_image_seed_and_purpose_only():
    x = images(3)
    numbers = per_image_uniform(x, 0, "start")
    assert torch.equal(numbers[1:2], per_image_uniform(x[1:2], 0, "start"))
    assert not torch.equal(numbers[0], numbers[1])
    for seed, purpose in ((1, "start"), (0, "other")):
        assert not torch.equal(numbers, per_image_uniform(x, seed, purpose))


def test_a_run_reports_what_happened():
    model, x = tiny(), images()
    y = labelled(model, x)
    y[0] = (y[0] + 1) % 4
    result = run("pgd", model, x, y, Threat("linf", 1.0), batch=3)
    assert result.clean_correct.tolist() == [False] + [True] * 7
    assert result.success.all()
    assert result.robust_accuracy == 0
    assert torch.equal(result.adv[0], x[0]), "what is wrong already is left alone"
    assert torch.equal(result.success, misclassified(model.eval()(result.adv), y))
    assert result.forward >= 3 * len(x)
    assert result.warnings == ()


def test_transfer_is_judged_by_the_victim_and_runs_to_the_end():
    model, victim, x = tiny(seed=0), tiny(seed=1), images()
    y = labelled(victim, x)
    result = run("pgd", model, x, y, Threat("linf", 0.2), victim=victim, steps=5)
    assert torch.equal(result.success, misclassified(victim.eval()(result.adv), y))
    assert result.forward == len(x) * (1 + 6 + 2), "a probe, the whole attack, and two looks at the victim"


def test_a_victim_who_alone_judges_is_not_shown_what_it_gets_wrong_anyway():
    model, victim, x = tiny(seed=0), tiny(seed=1), images()
    y = labelled(victim, x)
    wrong = torch.arange(len(x)) % 2 == 0
    y[wrong] = (y[wrong] + 1) % 3
    how = {"victim": victim, "steps": 5}
    whole = run("pgd", model, x, y, Threat("linf", 0.2), **how)
    result = run("pgd", model, x, y, Threat("linf", 0.2), leave_wrong=True, **how)
    assert torch.equal(result.adv[wrong], x[wrong])
    assert bool(result.success[wrong].all())
    assert torch.equal(result.adv[~wrong], whole.adv[~wrong])  # the others, to the full objective
    assert result.forward == whole.forward - 6 * int(wrong.sum())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x: x + 0.2, "within"),
        (lambda x: x - 0.05, r"\[0,1\]"),
        (lambda x: x * math.nan, "finite"),
        (lambda x: x[:, :, 1:], "return"),
        (lambda x: x.float(), "return"),
    ],
)
def test_the_check_refuses_and_does_not_repair(spoil, message):
    x = images() * 0.5
    check_adversarial(x, x + 0.1, Threat("linf", 0.1))
    with pytest.raises(BrokenAttack, match=message):
        check_adversarial(x, spoil(x), Threat("linf", 0.1))
    with pytest.raises(BrokenAttack, match=message):
        run(lambda model, x, y, threat: spoil(x), tiny(), x, labelled(tiny(), x), Threat("linf", 0.1))


def test_the_check_knows_grey_levels_and_psnr():
    x = (images() * 255).round() / 255
    check_adversarial(x, x, Threat("linf", 0.1), eight_bit=True)
    with pytest.raises(BrokenAttack, match="grey"):
        check_adversarial(x, (x + 0.001).clamp(0, 1), Threat("linf", 0.1), eight_bit=True)
    with pytest.raises(BrokenAttack, match="PSNR"):
        check_adversarial(x * 0.5, x * 0.5 + 0.05, Threat("linf", 0.1, psnr=40))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("far", [1.01, 2.0])
def test_the_check_sees_a_ball_that_is_too_big(norm, far):
    x = torch.full((2, 3, 8, 8), 0.5)
    move = Threat(norm, 0.2).steepest(torch.randn(x.shape), 0.2)
    check_adversarial(x, x + move, Threat(norm, 0.2))
    with pytest.raises(BrokenAttack, match="must stay within"):
        check_adversarial(x, x + far * move, Threat(norm, 0.2))


def test_bad_input_is_named():
    model, x = tiny().eval(), images()
    y, threat = labelled(model, x), Threat("linf", 0.1)
    with pytest.raises(InputError, match="normalises"):
        run("pgd", model, x * 4 - 2, y, threat)
    with pytest.raises(InputError, match=r"0\.\.3"):
        run("pgd", model, x, y + 7, threat)
    with pytest.raises(InputError, match="one label"):
        run("pgd", model, x, y[:3], threat)
    with pytest.raises(InputError, match="NaN on clean"):
        run("pgd", lambda x: model(x) * math.nan, x, y, threat)
    with pytest.raises(InputError, match="NaN on attacked"):
        run("pgd", lambda z: model(z) * (1 if torch.equal(z, x) else math.nan), x, y, threat)
    with pytest.raises(InputError, match="logits"):
        run("pgd", lambda x: model(x)[:, 0], x, y, threat)
    with pytest.raises(InputError, match="bpda"):
        run("pgd", lambda x: model(x.detach()), x, y, threat)
    with pytest.raises(InputError, match="finite eps"):
        pgd(model, x, y, Threat("l2", math.inf))
    with pytest.raises(InputError, match="works in"):
        ATTACKS["cw_l2"](model, x, y, threat)
    with pytest.raises(UnknownName, match="steps"):
        run("pgd", model, x, y, threat, stepz=3)
    with pytest.raises(UnknownName, match="pgd"):
        run("pdg", model, x, y, threat)
    with pytest.raises(InputError, match="one number an image"):
        pgd(model, x, y, threat, loss=lambda output, target: output)


def test_doubtful_models_are_named_in_the_outcome():
    model, x = tiny().eval(), images()
    y = labelled(model, x)
    with pytest.warns(SoftmaxOutput):
        result = run("pgd", lambda x: model(x).softmax(1), x, y, Threat("linf", 0.1))
    assert result.warnings == ("SoftmaxOutput",)
    with pytest.warns(ZeroGradient):
        result = run("pgd", lambda x: model((x * 9).round()), x, y, Threat("linf", 0.1))
    assert result.warnings == ("ZeroGradient",)


def test_a_new_attack_is_one_decorated_function():
    @attack(kind="budget", norms=("linf",), paper="none")
    def darker(model, x, y, threat, *, share=1.0):
        return threat.project(x, x - share * threat.eps)

    try:
        model, x = tiny(), images()
        result = run("darker", model, x, labelled(model, x), Threat("linf", 0.1), share=0.5)
        assert float(result.distance.max()) == pytest.approx(0.05)
    finally:
        ATTACKS._entries.pop("darker")
