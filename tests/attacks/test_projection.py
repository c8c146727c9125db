"""The quick gradient of a patch projection: the convolution's own, and only while a network is attacked."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from robvit.attacks import eot, run
from robvit.attacks.core import frozen
from robvit.loading import load
from robvit.threat import Threat


def pixel_gradient(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = x.clone().requires_grad_()
    out = layer(leaf)
    return out.detach(), torch.autograd.grad((out**2).sum(), leaf)[0]


@pytest.mark.parametrize(("side", "patch", "bias"), [(28, 14, True), (32, 4, False), (24, (4, 8), True)])
def test_the_quick_gradient_is_the_convolutions(side: int, patch: int | tuple[int, int], bias: bool) -> None:
    layer = nn.Conv2d(3, 16, patch, stride=patch, bias=bias)
    x = torch.rand(5, 3, side, side)
    out, grad = pixel_gradient(layer, x)
    with frozen(layer):
        quick_out, quick = pixel_gradient(layer, x)
        assert "_ProjectionBackward" in str(layer(x.clone().requires_grad_()).grad_fn)
    assert torch.equal(out, quick_out)
    assert torch.allclose(quick, grad, rtol=1e-5, atol=1e-5 * float(grad.abs().max()))


def test_a_second_derivative_goes_through_it() -> None:
    layer, x = nn.Conv2d(3, 4, 2, stride=2), torch.rand(2, 3, 4, 4)

    def curvature() -> torch.Tensor:
        leaf = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad((layer(leaf) ** 3).sum(), leaf, create_graph=True)
        return torch.autograd.grad((slope**2).sum(), leaf)[0]

    expected = curvature()
    with frozen(layer):
        assert torch.allclose(curvature(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")  # in torch's own rules
def test_all_kinds_of_derivatives_are_the_convolutions() -> None:
    layer, x, direction = nn.Conv2d(3, 4, 2, stride=2), torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4)

    def value(x: torch.Tensor) -> torch.Tensor:
        return torch.sum(layer(x) ** 3)

    def several() -> torch.Tensor:
        leaf = x.clone().requires_grad_()
        out = layer(leaf)
        rows = torch.eye(out.numel())[:3].reshape(3, *out.shape)
        return torch.autograd.grad(out, leaf, rows, is_grads_batched=True)[0]

    kinds = {
        "several at once": several,
        "forward": lambda: torch.func.jvp(value, (x,), (direction,))[1],
        "forward over reverse": lambda: torch.func.jvp(torch.func.grad(value), (x,), (direction,))[1],
        "one by one": lambda: torch.func.vmap(torch.func.grad(lambda one: value(one[None])))(x),
    }
    for name, kind in kinds.items():
        layer.requires_grad_(False)
        expected = kind()
        with frozen(layer):
            assert torch.allclose(kind(), expected, rtol=1e-4, atol=1e-5), name


def test_a_wrapper_may_list_a_projection_twice() -> None:
    torch.manual_seed(0)
    model = load("tiny-deit", pretrained=False, num_classes=4, img_size=16).eval()
    x = (torch.rand(2, 3, 16, 16) * 255).round() / 255
    twice = nn.ModuleList([model, nn.ModuleList([model.get_submodule("net.patch_embed")])])
    twice.forward = model.forward  # type: ignore[method-assign]
    for net in (twice, eot(model, 2)):
        run("pgd", net, x, model(x).argmax(1), Threat("linf", 1 / 255), steps=2)
        assert "forward" not in vars(model.net.patch_embed.proj)


def test_all_is_as_before_outside_and_where_it_would_not_be_right() -> None:
    patches, overlapping = nn.Conv2d(3, 4, 4, stride=4), nn.Conv2d(3, 4, 3, stride=2)
    own = nn.Conv2d(3, 4, 4, stride=4)
    own.forward = lambda x: x  # type: ignore[method-assign]
    net = nn.ModuleList([patches, overlapping, own])
    with frozen(net), frozen(net):
        assert "forward" in vars(patches)
        assert "forward" not in vars(overlapping)
        ragged = torch.rand(1, 3, 9, 9)  # a row and a column are in no window
        _, grad = pixel_gradient(patches, ragged)
        assert grad.shape == ragged.shape
        twin = copy.deepcopy(patches)
        twin.weight.data.zero_()
        assert float(twin(torch.rand(1, 3, 4, 4)).abs().max()) <= float(twin.bias.abs().max())
        with torch.autocast("cpu", torch.bfloat16):
            assert patches(torch.rand(1, 3, 8, 8).requires_grad_()).dtype == torch.bfloat16
    assert "forward" not in vars(patches)
    assert own(1) == 1
    x = torch.rand(2, 3, 8, 8).requires_grad_()
    (grad,) = torch.autograd.grad(patches(x).sum(), patches.weight)
    assert float(grad.abs().sum()) > 0


def test_an_attack_uses_it_and_leaves_the_network_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = load("tiny-deit", pretrained=False, num_classes=4, img_size=16)
    projection = model.net.patch_embed.proj
    x = (torch.rand(3, 3, 16, 16) * 255).round() / 255
    y, seen = model.eval()(x).argmax(1), list[bool]()
    model.register_forward_pre_hook(lambda *_: seen.append("forward" in vars(projection)))
    run("pgd", model, x, y, Threat("linf", 1 / 255), steps=2)
    assert seen
    assert all(seen)
    assert "forward" not in vars(projection)
