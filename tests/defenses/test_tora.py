"""Adapters: the backbone at the start, gates that share out, the slides' counts, files that know theirs."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import robvit
from helpers.networks import small_net
from robvit.attacks import frozen, run
from robvit.backbones.families import vit_embedded
from robvit.backbones.heads import ClassTokenHead
from robvit.backbones.model import Model
from robvit.cli import app
from robvit.defenses.tora.attack import AttackTarget, _logits_and_gate, gate_aware, gates
from robvit.defenses.tora.fusions import FUSIONS
from robvit.defenses.tora.io import adapted, fresh, load_adapters, save_adapters
from robvit.defenses.tora.modules import TUNINGS, Adapters, Fusion
from robvit.errors import InputError, Unsupported, WrongBackbone
from robvit.record import Record
from robvit.studies.tora.cost import cost


def model_of(family: str) -> Model:
    return Model(small_net(family), name=family, mean=(0.5,) * 3, std=(0.5,) * 3).eval()


def moved(adapters: Adapters, size: float = 0.2) -> Adapters:
    """Adapters whose every parameter has left its start."""
    with torch.no_grad():
        for parameter in adapters.parameters():
            parameter.add_(size * torch.randn_like(parameter))
    return adapters


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("family", ["vit", "deit3", "dinov2", "dinov2-reg", "clip", "mini"])
def test_at_the_start_the_model_equals_its_backbone_bit_for_bit(family: str, tuning: str) -> None:
    model = model_of(family)
    x = torch.rand(3, 3, *model.input_size)
    twin = adapted(model, fresh(model, tuning=tuning))
    with torch.no_grad():
        assert torch.equal(twin(x), model(x))
        assert torch.equal(twin.tokens(x).patch, model.tokens(x).patch)
        for logits in twin.heads_apart(x).values():
            assert torch.equal(logits, model(x))
    assert twin.fingerprint() == model.fingerprint()
    assert twin.identity() != model.identity()


@pytest.mark.parametrize("tuning", TUNINGS)
def test_with_a_head_on_the_class_token_the_start_is_that_classifier(tuning: str) -> None:
    model = model_of("dinov2")
    head = ClassTokenHead(model.width, 7, model.fingerprint())
    given = model.replace(head=head.eval())
    x = torch.rand(3, 3, *model.input_size)
    twin = adapted(given, fresh(given, 7, tuning=tuning))
    with torch.no_grad():
        torch.testing.assert_close(twin(x), given(x))
        others = adapted(given, fresh(given, 5, tuning=tuning))  # other classes: heads of their own
        assert others(x).shape == (3, 5)


@pytest.mark.parametrize("fusion", FUSIONS)
def test_with_every_fusion_the_start_is_the_backbone(fusion: str) -> None:
    model = model_of("vit")
    x = torch.rand(2, 3, *model.input_size)
    with torch.no_grad():
        assert torch.equal(adapted(model, fresh(model, fusion=fusion))(x), model(x))
        assert not torch.equal(adapted(model, moved(fresh(model, fusion=fusion)))(x), model(x))


def test_with_the_slides_wiring_tokens_meet_the_image_in_the_fusions_alone() -> None:
    model = model_of("vit")
    x = torch.rand(2, 3, *model.input_size)
    at_start = adapted(model, fresh(model, wiring="slides"))
    later = adapted(model, moved(fresh(model, wiring="slides")))
    with torch.no_grad():
        assert torch.equal(at_start.tokens(x).patch, model.tokens(x).patch)  # the blocks go on as they did
        assert torch.equal(at_start(x)[0], at_start(x)[1])
        assert not torch.equal(later(x)[0], later(x)[1])
        # to the letter: [ACC] after the first block is its adapter's, plus what is fused at the first place
        adapters = later.adapters
        own = [side.token.expand(2, -1, -1) for side in adapters._sides()]
        z = model.net.blocks[0](vit_embedded(model.net, model.normalise(x)))
        seen = [torch.cat((token, z[:, 1:]), dim=1) for token in own]
        features = [side.adapters[0](one) for side, one in zip(adapters._sides(), seen, strict=True)]
        added, _ = adapters.fusions[0](z, seen, features, adapters.mix(), adapters.fuse)
        adapters._refine(0, own, z, adapters.mix())
        torch.testing.assert_close(own[0], features[0][:, :1] + added[:, :1])


def test_a_fusion_or_wiring_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="fusion must be one of adapters, tokens, both, own, got 'mean'"):
        fresh(model_of("vit"), fusion="mean")
    with pytest.raises(InputError, match="wiring must be mean or slides"):
        fresh(model_of("vit"), wiring="none")


def test_the_prediction_is_the_mean_of_two_heads_that_differ() -> None:
    model = model_of("vit")
    twin = adapted(model, moved(fresh(model)))
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        apart = twin.heads_apart(x)
        torch.testing.assert_close(twin(x), (apart["accuracy"] + apart["robustness"]) / 2)
    assert not torch.allclose(apart["accuracy"], apart["robustness"])


def in_longhand(name: str, query: Tensor, keys: list[Tensor], values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The weights (2 B T T) of every fusion spelled out, applied to both adapters' values."""
    scores = torch.stack([query @ key.transpose(1, 2) for key in keys])
    if name == "both":
        weights = (scores.exp() / scores.exp().sum((0, 3), keepdim=True)).clone()
    elif name == "own":
        weights = scores.softmax(0) * torch.eye(scores.shape[-1])
    elif name == "tokens":
        near = scores.softmax(-1)
        weights = (near * scores).sum(-1, keepdim=True).softmax(0) * near
    else:
        near, gates, own = scores.mean(0).softmax(-1), scores.softmax(0), torch.eye(scores.shape[-1]) / 2
        weights = torch.stack([own + near * (gate - 0.5) for gate in gates])
    return weights[0] @ values[0] + weights[1] @ values[1], weights[0].sum(-1)


@pytest.mark.parametrize("name", FUSIONS)
def test_a_fusion_is_its_longhand(name: str) -> None:
    query, *rest = torch.randn(5, 2, 6, 8)
    added, gate = FUSIONS[name](query, rest[:2], rest[2:])
    wanted, share = in_longhand(name, query, rest[:2], rest[2:])
    torch.testing.assert_close(added, wanted)
    torch.testing.assert_close(gate, share)
    assert bool(((gate >= 0) & (gate <= 1)).all())


@pytest.mark.parametrize("name", FUSIONS)
def test_what_is_added_varies_over_tokens_as_what_the_adapters_change_does(name: str) -> None:
    """A fusion that gave every token the same mean would leave nothing of what an adapter does at a patch."""
    model = model_of("dinov2")
    fusion, draws = Fusion(model.width, 1), torch.Generator().manual_seed(0)
    z = model.features(torch.rand(2, 3, *model.input_size)).detach()
    changes = [torch.randn(z.shape, generator=draws) for _ in range(2)]
    with torch.no_grad():
        added, _ = fusion(z, [z, z], [z + change for change in changes], torch.ones(1), FUSIONS[name])
    apart = added - added.mean(1, keepdim=True)
    assert apart.square().sum() > 0.5 * added.square().sum()
    own = torch.nn.functional.cosine_similarity(added, sum(changes), dim=-1)
    assert own.mean() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tuning", "gflops", "millions"),
    [("heads", 17.6, 88.1), ("single", 17.8, 88.3), ("adapterfusion", 24.9, 111.2), ("tora", 26.0, 111.2)],
)
def test_operations_and_parameters_on_vit_b_16_are_those_of_the_slides(
    tuning: str, gflops: float, millions: float
) -> None:
    counted = cost(tuning)
    assert round(counted.gflops, 1) == gflops
    assert round(counted.millions, 1) == millions


def test_every_part_learns_from_the_joint_output_and_the_backbone_does_not() -> None:
    model = model_of("dinov2-reg")
    adapters = moved(fresh(model))
    twin = adapted(model, adapters)
    twin(torch.rand(2, 3, 28, 28)).square().sum().backward()
    without = [n for n, p in adapters.named_parameters() if p.grad is None or not bool(p.grad.any())]
    assert without == []
    assert all(p.grad is None for p in twin.net.parameters())


def test_the_knob_is_exact_at_trained_states_and_between_them_their_mean() -> None:
    model = model_of("vit")
    adapters = moved(fresh(model, trades=(0.1, 0.5, 0.9)))
    twin = adapted(model, adapters)
    x = torch.rand(2, 3, 32, 32)
    for place, trade in enumerate((0.1, 0.5, 0.9)):
        alone = fresh(model, trades=(trade,))
        state = {
            name: t[place : place + 1] if name.startswith("fusions") else t
            for name, t in adapters.state_dict().items()
        }
        alone.load_state_dict({**state, "trades": torch.tensor([trade]), "place": torch.tensor(trade)})
        with torch.no_grad():
            assert torch.equal(twin.replace(trade_off=trade)(x), adapted(model, alone)(x))
    between = twin.replace(trade_off=0.3)
    torch.testing.assert_close(adapters.at(0.3).mix(), torch.tensor([0.5, 0.5, 0.0]))
    assert (between.trade_off, twin.trade_off) == (pytest.approx(0.3), pytest.approx(0.5))
    with torch.no_grad():
        assert not torch.equal(between(x), twin(x))  # they share weights, and not the place of the knob
    assert all(a is b for a, b in zip(adapters.at(0.3).parameters(), adapters.parameters(), strict=True))
    with pytest.raises(InputError, match=r"from 0\.1 to 0\.9, got 0\.95"):
        twin.replace(trade_off=0.95)
    with pytest.raises(Unsupported, match="no adapters"):
        model.replace(trade_off=0.5)


def test_the_knob_is_part_of_the_identity() -> None:
    model = model_of("vit")
    twin = adapted(model, fresh(model, trades=(0.1, 0.9)))
    assert twin.replace(trade_off=0.2).identity() != twin.identity()
    assert twin.replace(trade_off=0.5).identity() == twin.identity()


def test_robustness_tokens_go_with_adapters() -> None:
    model = model_of("vit")
    extra = torch.randn(1, 3, 48)
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        both = adapted(model.replace(tokens=extra), fresh(model))
        assert torch.equal(both(x), model.replace(tokens=extra)(x))
        twin = adapted(model, moved(fresh(model))).replace(tokens=extra)
        assert not torch.equal(twin(x), twin.replace(tokens=None)(x))
        assert twin.tokens(x).extra.shape == (2, 3, 48)
        assert twin.tokens(x).patch.shape == (2, 4, 48)


def test_adapters_survive_saving_and_load_by_name(tmp_path: Path) -> None:
    model = robvit.load("robvit-mini")
    adapters = moved(fresh(model, trades=(0.1, 0.9)))
    adapters.trade_off = 0.7
    save_adapters(adapters, tmp_path / "tora.safetensors")
    twin = robvit.load("robvit-mini", adapters=tmp_path / "tora.safetensors")
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad(), frozen(adapters):
        assert torch.equal(twin(x), adapted(model, adapters)(x))
    assert twin.trade_off == pytest.approx(0.7)
    assert twin.classes == 10
    with pytest.raises(WrongBackbone, match="exact weights"):
        robvit.load("robvit-mini-robust", adapters=tmp_path / "tora.safetensors")


@pytest.mark.slow
def test_a_model_with_adapters_is_attacked_from_the_command_line(tmp_path: Path) -> None:
    model = robvit.load("robvit-mini")
    adapters = fresh(model)
    with torch.no_grad():
        for side in adapters.sides.values():
            side.head.weight.neg_()  # everything is classified otherwise than by the backbone
    save_adapters(adapters, tmp_path / "tora.safetensors")
    shown = ["attack", "robvit-mini", "--limit", "4", "--attack", "fgsm", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*shown, "--adapters", str(tmp_path / "tora.safetensors")])
    assert done.exit_code == 0, done.output
    record = Record.load(tmp_path / "out" / "record.json")
    x, y = robvit.data.open_data("sample", limit=4).tensors()
    with torch.no_grad():
        said = adapted(model, adapters)(x).argmax(1)
    assert record.trials[0].correct == (said == y).tolist()


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    model = model_of("vit")
    with pytest.raises(WrongBackbone, match="width 48, mini has 128"):
        adapted(model_of("mini"), fresh(model))
    for family in ("swin", "xcit", "siglip"):
        with pytest.raises(Unsupported, match="class token"):
            fresh(model_of(family))
    with pytest.raises(InputError, match="tuning must be one of"):
        fresh(model, tuning="lora")
    with pytest.raises(InputError, match="rising numbers"):
        fresh(model, trades=(0.5, 0.5))
    path = tmp_path / "tokens.safetensors"
    robvit.RobustTokens(torch.randn(1, 2, 8)).save(path)
    with pytest.raises(InputError, match="does not hold adapters"):
        load_adapters(path)


def test_gates_are_those_of_the_forward_pass_and_sum_to_one_over_the_adapters() -> None:
    model = model_of("dinov2-reg")
    x = torch.rand(2, 3, 28, 28)
    at_start = gates(adapted(model, fresh(model)), x)
    assert [g.shape for g in at_start] == [(2, 9)] * 2  # a class token, four registers, four patches
    for gate in at_start:
        torch.testing.assert_close(gate, torch.full_like(gate, 0.5))
    leaning = adapted(model, moved(fresh(model)))
    assert all(bool(((g > 0) & (g < 1)).all()) and bool(g.std() > 1e-3) for g in gates(leaning, x))
    one_a_token = adapted(model, moved(fresh(model, tuning="adapterfusion")))
    assert [g.shape for g in gates(one_a_token, x)] == [(2, 9)] * 2
    with pytest.raises(Unsupported, match="no gates"):
        gates(adapted(model, fresh(model, tuning="single")), x)


@pytest.mark.slow
def test_the_gate_aware_attack_is_at_least_as_strong_as_any_of_its_parts() -> None:
    model = robvit.load("robvit-mini")
    twin = adapted(model, moved(fresh(model), 0.02)).eval()
    x, y = robvit.data.open_data("sample", split="test", limit=12).tensors()
    threat = robvit.Threat("linf", 1 / 255)
    settings = {"steps": 3}
    found = gate_aware(twin, x, y, threat, **settings)
    joint = run("pgd", twin, x, y, threat, **settings)
    assert bool((found.outcome.success | ~joint.success).all())
    with torch.no_grad():
        assert torch.equal(found.outcome.success, twin(found.outcome.adv).argmax(1) != y)
    assert sum(found.success_by.values()) == int(found.outcome.success.sum())
    assert list(found.success_by)[:3] == ["joint", "accuracy head", "robustness head"]
    assert float((found.outcome.adv - x).abs().max()) <= 1 / 255 + 1e-6


def _last(sign: float, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return sign * out[:, -1]


@pytest.mark.slow
def test_pushing_the_gates_moves_them() -> None:
    model = robvit.load("robvit-mini")
    twin = adapted(model, moved(fresh(model), 0.05))
    x, y = robvit.data.open_data("sample", split="test", limit=4).tensors()
    means = []
    for sign in (1.0, -1.0):
        goal = AttackTarget(twin, _logits_and_gate)
        adv = robvit.attacks.pgd(
            goal,
            x,
            y,
            robvit.Threat("linf", 8 / 255),
            steps=5,
            early_stop=False,
            loss=functools.partial(_last, sign),
        )
        with torch.no_grad():
            means.append(float(torch.stack([g.mean() for g in gates(twin, adv)]).mean()))
    with torch.no_grad():
        before = float(torch.stack([g.mean() for g in gates(twin, x)]).mean())
    assert means[0] > before > means[1]


@pytest.mark.slow
def test_a_model_with_adapters_is_judged_from_the_command_line(tmp_path: Path) -> None:
    model = robvit.load("robvit-mini-robust")
    save_adapters(moved(fresh(model, trades=(0.1, 0.9)), 0.01), tmp_path / "a.safetensors")
    command = ["evaluate", "robvit-mini-robust", "sample", "--protocol", "clean@1", "--limit", "6"]
    done = CliRunner().invoke(
        app, [*command, "--adapters", str(tmp_path / "a.safetensors"), "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.output
    record = Record.load(tmp_path / "out" / "record.json")
    assert 0.1 <= record.model["trade-off"] <= 0.9
    assert record.model["identity"] != model.identity()
