"""LoRA with everything else: tokens, heads, adapters, AAS, export and serving see the merged network."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
import torch

import robvit
from helpers.lora import changed_lora
from robvit import attacks
from robvit.backbones.heads import LinearHead
from robvit.backbones.model import Model
from robvit.defenses.lora import LoRA
from robvit.defenses.tokens import RobustTokens
from robvit.defenses.tora.io import fresh, save_adapters
from robvit.errors import WrongBackbone
from robvit.exporting import export
from robvit.serve.predictor import Predictor, PreparedImage
from robvit.threat import Threat


@pytest.fixture(scope="module")
def lora() -> LoRA:
    """With normalisations that learned along."""
    return changed_lora(robvit.load("robvit-mini"), norms=True)


@pytest.fixture(scope="module")
def merged(lora: LoRA) -> Model:
    return lora.merge(robvit.load("robvit-mini"))


X = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
def test_tokens_and_heads_of_both_kinds(lora: LoRA, merged: Model) -> None:
    original = robvit.load("robvit-mini")
    tokens = RobustTokens(torch.randn(1, 3, merged.width), merged.fingerprint())
    for owner in (original, merged):  # heads of the original keep working, and new ones fit too
        head = LinearHead(2 * merged.width, 4, owner.fingerprint())
        model = robvit.load("robvit-mini", lora=lora, tokens=tokens, head=head)
        assert torch.equal(model(X), merged.replace(tokens=tokens, head=head)(X))
        assert not torch.equal(model(X), merged.replace(head=head)(X))
    with pytest.raises(WrongBackbone, match="fingerprint"):  # a secret belongs to exact weights
        robvit.load("robvit-mini", lora=lora, tokens=RobustTokens(tokens.values, original.fingerprint()))


def test_adapters_that_were_trained_on_the_merged_network(lora: LoRA, merged: Model, tmp_path: Path) -> None:
    adapters = fresh(merged)
    save_adapters(adapters, tmp_path / "a.safetensors")
    model = robvit.load("robvit-mini", lora=lora, adapters=tmp_path / "a.safetensors")
    assert model(X).shape == (2, 10)
    with pytest.raises(WrongBackbone):
        robvit.load("robvit-mini", adapters=tmp_path / "a.safetensors")


def test_attention_scaling_attacks_the_merged_network(lora: LoRA, merged: Model) -> None:
    threat, y = Threat("linf", 8 / 255), torch.tensor([0, 1])
    loaded = robvit.load("robvit-mini", lora=lora)
    first, second = (
        attacks.aas(m, X, y, threat, steps=2, fit="batch", scale_steps=1) for m in (loaded, merged)
    )
    assert torch.equal(first, second)
    assert 0 < float((first - X).abs().max()) <= 8 / 255 + 1e-6


@pytest.mark.slow
def test_serving_and_a_torch_program_answer_as_the_merged_network_does(
    lora: LoRA, merged: Model, tmp_path: Path
) -> None:
    model = robvit.load("robvit-mini", lora=lora)
    served = Predictor(model)([PreparedImage(x, None) for x in X])
    with torch.no_grad():
        for answer, logits in zip(served, merged(X), strict=True):
            torch.testing.assert_close(answer.logits, logits, rtol=0, atol=1e-5)
    export(model, tmp_path / "m.pt2", "torch", images=X)
    program = torch.export.load(tmp_path / "m.pt2").module()
    with torch.no_grad():
        torch.testing.assert_close(program(X)[0], merged.features(X), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_onnx_answers_as_the_merged_network_does(lora: LoRA, merged: Model, tmp_path: Path) -> None:
    export(robvit.load("robvit-mini", lora=lora), tmp_path / "m.onnx", "onnx", images=X)
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    features, logits = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(features), merged.features(X), rtol=0, atol=1e-4)
        torch.testing.assert_close(torch.from_numpy(logits), merged(X), rtol=0, atol=1e-4)
