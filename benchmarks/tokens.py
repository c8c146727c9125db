"""What does learning tokens cost beside the published recipe?

python benchmarks/tokens.py --images 8 --steps 2

The published recipe is written anew here as a loop with its passes: for every batch the clean features,
an attack of 30 steps, then clean features again, hardened clean and attacked features, and a pass for
logging, 35 forward and 32 backward in all, with gradients for the weights. Ours runs twice: with an empty
cache, and again with another seed. The network has the size of DINOv2-small with random weights: what is
measured is cost. Seconds are the processor's, on which other work does not count, and the clock's.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from recording import NOTHING, Spent, Watch, add_out, bf16_note, finish

import robvit
from robvit.attacks.compute import probe
from robvit.attacks.precision import PRECISIONS
from robvit.defenses.attack_cache import TensorImages
from robvit.defenses.batches import order
from robvit.defenses.recipe import TokenRecipe
from robvit.defenses.token_training import train_tokens
from robvit.record import Table

LONG = 1e9  # passes that are worth a probe


@dataclass
class Cost:
    """Passes, summed over images, and what they took."""

    forward: int = 0
    backward: int = 0
    spent: Spent = NOTHING


@contextmanager
def counted(model: robvit.Model) -> Iterator[Cost]:
    """Count what passes the network's last norm, which every pass does once."""
    cost = Cost()

    def backward(grad: torch.Tensor) -> None:
        cost.backward += len(grad)

    def forward(_: torch.nn.Module, __: object, output: torch.Tensor) -> None:
        cost.forward += len(output)
        if output.requires_grad:
            output.register_hook(backward)

    watch = Watch()
    with model.net.get_submodule("norm").register_forward_hook(forward):
        yield cost
    cost.spent = watch.read()


def published(model: robvit.Model, images: TensorImages, recipe: TokenRecipe, attack_steps: int = 30) -> None:
    """The passes of the published recipe, weights' gradients included."""
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    tokens = (recipe.start * torch.randn(1, recipe.count, model.width)).requires_grad_()
    adam = torch.optim.Adam([tokens], lr=recipe.lr)
    for places in order(len(images), recipe):
        x = images.x[places]
        with torch.no_grad():
            reference = model.features(x)
        adv = x + 0.01 * torch.randn_like(x)
        for _ in range(attack_steps):
            adv = adv.detach().requires_grad_()
            loss = F.cosine_similarity(model.features(adv), reference, dim=1).mean() + F.mse_loss(adv, x)
            loss.backward()
            assert adv.grad is not None
            adv = x + (adv - 0.01 * adv.grad.sign() - x).clamp(-8 / 255, 8 / 255)
        with torch.no_grad():
            target = model.features(x)
            model.features(adv)  # for logging
        adam.zero_grad()
        hardened = [model.features(part, tokens) for part in (x, adv.detach())]
        total = sum(F.cosine_similarity(one, target, dim=1).mean() for one in hardened)
        torch.neg(torch.as_tensor(total)).backward()
        adam.step()
    for parameter in model.parameters():
        parameter.grad = None


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--model", default="dinov2-small")
    parser.add_argument("--img-size", type=int, default=56)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2, help="of eight images each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="auto", choices=["auto", *PRECISIONS], help="of our attacks")
    add_out(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = robvit.load(options.model, pretrained=False, img_size=options.img_size)
    x = (torch.rand(options.images, 3, options.img_size, options.img_size) * 255).round() / 255
    images, recipe, costs = TensorImages(x), TokenRecipe(steps=options.steps), dict[str, Cost]()
    model.features(x[:8])  # warm up
    precision = probe(model, x, options.precision, LONG).precision
    with counted(model) as costs["published recipe"]:
        published(model, images, recipe)
    with tempfile.TemporaryDirectory() as cache:
        given = {"cache": Path(cache), "precision": precision}
        with counted(model) as costs[f"ours, first run, {precision}"]:
            train_tokens(model, images, recipe, **given)
        with counted(model) as costs["ours, repeated run"]:
            train_tokens(model, images, replace(recipe, seed=1), **given)
    draws, first = options.steps * recipe.batch, costs["published recipe"].spent
    rows = []
    for name, cost in costs.items():
        passes = [cost.forward / draws, cost.backward / draws]
        ratios = [a / b for a, b in zip(first, cost.spent, strict=True)]
        rows.append([name, *passes, *cost.spent, *ratios])
    columns = ["", "forward an image", "backward an image", "CPU seconds", "seconds"]
    columns += ["times faster, CPU", "times faster, seconds"]
    note = f"{options.images} images of {options.img_size} pixels, {options.steps} steps of {recipe.batch}."
    table = Table("Learning tokens beside the published recipe", columns, rows, note)
    data = {"spec": "random pixels", "count": options.images}
    name = {"name": f"{options.model}, random weights"}
    finish(options.out, [table], model=name, data=data, notes=[bf16_note()])


if __name__ == "__main__":
    main()
