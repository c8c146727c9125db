"""Attacks in low precision: what they claim holds in full precision."""

from __future__ import annotations

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

import robvit
from helpers.plain_vit import plain_vit
from robvit.attacks import run
from robvit.attacks.compiled import Compiled, bucket
from robvit.attacks.precision import Autocast
from robvit.data import open_data
from robvit.errors import InputError, UnknownName, Unsupported
from robvit.threat import Threat

LINF = Threat("linf", 4 / 255)


@pytest.mark.slow
def test_every_success_holds_in_full_precision() -> None:
    model = robvit.load("robvit-mini-robust")
    x, y = open_data("sample", limit=10).tensors()
    full = run("pgd", model, x, y, LINF, steps=3)
    low = run("pgd", model, x, y, LINF, steps=3, precision="bf16")
    with torch.no_grad():
        assert torch.equal(low.success, model(low.adv).argmax(1) != y)
    assert torch.equal(low.clean_correct, full.clean_correct)
    assert int((low.success != full.success).sum()) <= 1


def test_a_false_success_is_attacked_again() -> None:
    """A model that errs in low precision only: autocast must not be believed."""

    class Touchy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3 * 16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.linear(x.flatten(1))
            return out.flip(1) if out.dtype != torch.float32 else out

    model = Touchy()
    x = (torch.rand(6, 3, 4, 4) * 255).round() / 255
    with torch.no_grad():
        y = model(x).argmax(1)
    full = run("pgd", model, x, y, LINF, steps=3)
    low = run("pgd", model, x, y, LINF, steps=3, precision="bf16")
    assert torch.equal(low.success, full.success)
    assert torch.equal(low.clean_correct, torch.ones(6, dtype=torch.bool))
    assert "PrecisionDisagreement" in low.warnings


def test_a_success_that_the_search_claimed_in_another_batch_is_attacked_again() -> None:
    """In low precision an answer may hang on the batch: here the last image errs unless all six are asked."""

    class Moody(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3 * 16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.linear(x.flatten(1))
            alone = out.dtype != torch.float32 and len(x) < 6
            return out.flip(1) if alone else out

    torch.manual_seed(0)
    model = Moody()
    x = (torch.rand(6, 3, 4, 4) * 255).round() / 255
    with torch.no_grad():
        y = model(x).argmax(1)
    y[0] = 1 - y[0]  # wrong from the start, so that the others are attacked as a smaller batch
    full = run("pgd", model, x, y, Threat("linf", 0.3), steps=5)
    low = run("pgd", model, x, y, Threat("linf", 0.3), steps=5, precision="bf16")
    assert int(full.success.sum()) > 1
    assert torch.equal(low.success, full.success)
    assert torch.equal(low.adv, full.adv)
    assert "PrecisionDisagreement" in low.warnings


@pytest.mark.parametrize("transfer", [False, True])
def test_a_batch_on_which_low_precision_gives_nan_is_attacked_in_full_precision(transfer: bool) -> None:
    """Clean images pass a probe; attacked ones of the second batch overflow in half precision only."""

    class Overflowing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(48, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.linear(x.flatten(1))
            large = (8.5e4 * x.amax((1, 2, 3))[:, None]).to(out.dtype)  # fp16 ends at 65504
            return out + (large - large)

    torch.manual_seed(0)
    net = Overflowing()
    x = 0.2 * torch.rand(8, 3, 4, 4) + torch.tensor([0.1] * 4 + [0.5] * 4).view(-1, 1, 1, 1)
    with torch.no_grad():
        y = net(x).argmax(1)
        assert not torch.stack([net(x), Autocast(net, "fp16")(x)]).isnan().any()
    given = {"victim": net if transfer else None, "batch": 4, "steps": 4}
    low, full = (run("pgd", net, x, y, Threat("linf", 0.3), precision=p, **given) for p in ("fp16", "fp32"))
    assert "PrecisionUnsound" in low.warnings
    assert "PrecisionUnsound" not in full.warnings
    assert torch.equal(low.adv[4:], full.adv[4:])
    assert torch.equal(low.success[4:], full.success[4:])

    class Broken(Overflowing):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (float("nan") if x.amax() > 0.8 else 1.0)

    with pytest.raises(InputError, match="got NaN"):  # in full precision too
        run("pgd", Broken(), x, y, Threat("linf", 0.3), precision="fp16", batch=4, steps=4)


def test_full_precision_is_the_plain_run_and_others_are_refused() -> None:
    model = robvit.load("robvit-mini")
    x, y = open_data("sample", limit=4).tensors()
    plain, full = (run("fgsm", model, x, y, LINF, **given) for given in ({}, {"precision": "fp32"}))
    assert torch.equal(plain.adv, full.adv)
    with pytest.raises(InputError, match="fp32, bf16 or fp16"):
        run("fgsm", model, x, y, LINF, precision="fp8")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_a_compiled_model_gives_the_same_images() -> None:
    model = robvit.Model(plain_vit(depth=1), name="small").eval()
    x, y = open_data("sample", limit=4).tensors()
    plain, compiled = (run("pgd", model, x, y, LINF, steps=2, compiler=c) for c in (None, "aot_eager"))
    torch.testing.assert_close(plain.adv, compiled.adv, rtol=0, atol=1e-5)
    assert torch.equal(plain.success, compiled.success)
    assert (plain.forward, plain.backward) == (compiled.forward, compiled.backward)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_padded_batches_give_the_same_images_from_few_shapes() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))
    x = torch.rand(7, 3, 4, 4)
    with torch.no_grad():
        y = net(x).argmax(1)
        y[:2] = (y[:2] + 1) % 3  # these leave at once, so that the others' batch is odd
        padded = Compiled(net, "eager/padded")
        for count in (1, 3, 5, 7):
            torch.testing.assert_close(padded(x[:count]), net(x[:count]))
    plain, filled = (run("pgd", net, x, y, LINF, steps=3, compiler=c) for c in (None, "eager/padded"))
    torch.testing.assert_close(filled.adv, plain.adv)
    assert torch.equal(filled.success, plain.success)
    assert (filled.forward, filled.backward) == (plain.forward, plain.backward)
    assert [bucket(count) for count in (0, 1, 2, 3, 5, 8, 9, 128)] == [0, 8, 8, 8, 8, 8, 16, 128]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_a_model_is_compiled_for_every_size_of_a_batch_with_gradients_and_without() -> None:
    compiled = 0

    def counting(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        nonlocal compiled
        compiled += 1
        return graph

    torch.compiler.reset()
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    try:
        torch._dynamo.register_backend(counting, name="counting")
        padded = Compiled(net, "counting/padded")
        for count in (1, 8, 9, 32, 64, 100, 130):
            for grad in (False, True):
                with torch.set_grad_enabled(grad):
                    padded(torch.rand(count, 3, 2, 2))
        assert compiled == 12  # sizes 8, 16, 32, 64, 128, 256
    finally:
        torch._dynamo.backends.registry._COMPILER_FNS.pop("counting")
        torch.compiler.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_a_padded_vit_gives_the_same_images() -> None:
    torch.manual_seed(0)
    net = VisionTransformer(img_size=8, patch_size=4, embed_dim=8, depth=1, num_heads=2, num_classes=3).eval()
    x = torch.rand(5, 3, 8, 8)
    with torch.no_grad():
        y = net(x).argmax(1)
    plain, padded = (run("pgd", net, x, y, LINF, steps=2, compiler=c) for c in (None, "aot_eager/padded"))
    torch.testing.assert_close(padded.adv, plain.adv, rtol=0, atol=1e-5)
    assert torch.equal(padded.success, plain.success)
    assert (padded.forward, padded.backward) == (plain.forward, plain.backward)


def test_a_compiler_that_fails_or_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.rand(2, 3, 4, 4), torch.zeros(2, dtype=torch.long)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))
    with pytest.raises(UnknownName, match="did you mean inductor"):
        run("pgd", net, x, y, LINF, compiler="inductr")

    def broken(*_: object) -> None:
        raise RuntimeError("no C++ compiler here")

    monkeypatch.setitem(torch._dynamo.backends.registry._COMPILER_FNS, "broken", broken)
    monkeypatch.setitem(torch._dynamo.backends.registry._BACKENDS, "broken", None)
    with pytest.raises(Unsupported, match=r"broken can't compile this model.*compiler here"):
        run("pgd", net, x, net(x).argmax(1), LINF, compiler="broken")
