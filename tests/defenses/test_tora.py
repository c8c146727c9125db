"""Adapters: the backbone at the start, gates that share out, the slides' counts, files that know theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import robvit
from helpers.networks import small_net
from robvit.attacks import frozen, run
from robvit.backbones.model import Model
from robvit.cli import app
from robvit.defenses.tora.attack import AttackTarget, _logits_and_gate, gate_aware, gates
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


def test_the_prediction_is_the_mean_of_two_heads_that_differ() -> None:
    model = model_of("vit")
    twin = adapted(model, moved(fresh(model)))
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        apart = twin.heads_apart(x)
        torch.testing.assert_close(twin(x), (apart["accuracy"] + apart["robustness"]) / 2)
    assert not torch.allclose(apart["accuracy"], apart["robustness"])


def test_gates_are_the_softmax_over_both_adapters_divided_by_the_tokens() -> None:
    """The fusion in its longhand: two score matrices, softmax over the adapters, both values."""
    fusion = Fusion(8, 1)
    torch.nn.init.normal_(fusion.weight)
    torch.nn.init.normal_(fusion.bias)
    z, a, r = torch.randn(3, 2, 5, 8)
    query, *_ = (z @ fusion.weight[0, i].T + fusion.bias[0, i] for i in range(3))
    keys, values = ([x @ fusion.weight[0, i].T + fusion.bias[0, i] for x in (a, r)] for i in (1, 2))
    scores = torch.stack([query @ key.transpose(1, 2) / 8**0.5 for key in keys])
    gates = scores.softmax(0)
    added, gate = fusion(z, a, r, torch.ones(1), True)
    torch.testing.assert_close(gate, gates[0])
    torch.testing.assert_close(added, (gates[0] @ values[0] + gates[1] @ values[1]) / 5)
    added, gate = fusion(z, a, r, torch.ones(1), False)
    gates = torch.stack([(query * key).sum(-1, keepdim=True) / 8**0.5 for key in keys]).softmax(0)
    torch.testing.assert_close(gate, gates[0])
    torch.testing.assert_close(added, gates[0] * values[0] + gates[1] * values[1])


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
        twin.trade_off = trade
        with torch.no_grad():
            assert torch.equal(twin(x), adapted(model, alone)(x))
    twin.trade_off = 0.3
    torch.testing.assert_close(adapters.mix(), torch.tensor([0.5, 0.5, 0.0]))
    assert twin.trade_off == pytest.approx(0.3)
    with pytest.raises(InputError, match=r"from 0\.1 to 0\.9, got 0\.95"):
        twin.trade_off = 0.95
    with pytest.raises(Unsupported, match="no adapters"):
        model.trade_off = 0.5


def test_the_knob_is_part_of_the_identity() -> None:
    model = model_of("vit")
    twin = adapted(model, fresh(model, trades=(0.1, 0.9)))
    before = twin.identity()
    twin.trade_off = 0.2
    assert twin.identity() != before


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
    assert [g.shape for g in at_start] == [(2, 9, 9)] * 2  # a class token, four registers, four patches
    assert all(torch.equal(g, torch.full_like(g, 0.5)) for g in at_start)
    leaning = adapted(model, moved(fresh(model)))
    assert all(bool(((g > 0) & (g < 1)).all()) and bool(g.std() > 1e-3) for g in gates(leaning, x))
    one_a_token = adapted(model, moved(fresh(model, tuning="adapterfusion")))
    assert [g.shape for g in gates(one_a_token, x)] == [(2, 9, 1)] * 2
    with pytest.raises(Unsupported, match="no gates"):
        gates(adapted(model, fresh(model, tuning="single")), x)


def test_the_gate_aware_attack_is_at_least_as_strong_as_any_of_its_parts() -> None:
    model = robvit.load("robvit-mini")
    twin = adapted(model, moved(fresh(model), 0.02)).eval()
    x, y = robvit.data.open_data("sample", split="test", limit=24).tensors()
    threat = robvit.Threat("linf", 1 / 255)
    settings = {"steps": 4}
    found = gate_aware(twin, x, y, threat, **settings)
    joint = run("pgd", twin, x, y, threat, **settings)
    assert bool((found.outcome.success | ~joint.success).all())
    with torch.no_grad():
        assert torch.equal(found.outcome.success, twin(found.outcome.adv).argmax(1) != y)
    assert sum(found.broken_by.values()) == int(found.outcome.success.sum())
    assert list(found.broken_by)[:3] == ["joint", "accuracy head", "robustness head"]
    assert float((found.outcome.adv - x).abs().max()) <= 1 / 255 + 1e-6


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
            loss=lambda out, target, sign=sign: sign * out[:, -1],
        )
        with torch.no_grad():
            means.append(float(torch.stack([g.mean() for g in gates(twin, adv)]).mean()))
    with torch.no_grad():
        before = float(torch.stack([g.mean() for g in gates(twin, x)]).mean())
    assert means[0] > before > means[1]


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
