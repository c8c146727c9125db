"""`robvit robustify`: learn secret tokens for a frozen backbone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.options import Architecture, DataSpec, Fit, ImageSize, Limit, ModelName


def robustify(
    model: ModelName,
    images: DataSpec = "sample",
    out: Annotated[Path, typer.Option(help="Folder for tokens, state and record.")] = Path("runs/robustify"),
    count: Annotated[int, typer.Option(min=1, help="How many tokens.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 200,
    batch: Annotated[int, typer.Option(min=1, help="Pictures in a step.")] = 8,
    lr: Annotated[float, typer.Option(help="Adam's learning rate.")] = 1e-3,
    eps: Annotated[str, typer.Option(help="Budget of the attack in pixels (L-inf).")] = "8/255",
    attack_steps: Annotated[int, typer.Option(min=1, help="Steps of the attack on each picture.")] = 30,
    psnr: Annotated[
        float, typer.Option(help="Decibels every attacked picture keeps; 0 for no limit.")
    ] = 40.0,
    compat: Annotated[
        str, typer.Option(help='"paper", or "reference": the choices of the published code.')
    ] = "paper",
    split: Annotated[str, typer.Option(help="The part of the data set to learn from.")] = "train",
    img_size: ImageSize = None,
    fit: Fit = "squash",
    arch: Architecture = None,
    limit: Limit = None,
    seed: Annotated[int, typer.Option(help="Decides tokens' start, order and attack.")] = 0,
) -> None:
    """Learn a few secret, label-free tokens that make a frozen backbone's features survive attacks.

    Attacked pictures are kept in the cache, so another run with other tokens is many times faster.
    Interrupted, the same command goes on where it stopped.
    """
    from dataclasses import replace

    from robvit.data import open_data
    from robvit.defenses.robustify import REFERENCE, Recipe, train
    from robvit.defenses.store import AttackSetting
    from robvit.errors import InputError
    from robvit.evaluate.record import Record
    from robvit.loading import load
    from robvit.progress import progress
    from robvit.threat import Threat

    if compat not in ("paper", "reference"):
        raise InputError(f"compat must be paper or reference, got {compat!r}")
    reference = compat == "reference"
    net = load(
        model, img_size=img_size, arch=arch, pos_embed="hub" if reference and "dinov2" in model else "timm"
    )
    pictures = open_data(images, split=split, size=net.input_size[0], how=fit, limit=limit)
    settings = {"steps": attack_steps} | ({} if reference else {"psnr": psnr or None})
    name = "feature_reference" if reference else "feature"
    recipe = replace(
        REFERENCE if reference else Recipe(), count=count, steps=steps, batch=batch, lr=lr, seed=seed,
        attack=AttackSetting(name, Threat.parse("linf", eps), settings, seed),
    )  # fmt: skip
    with progress(f"robustify {model}", total=1) as advance:
        training = train(net, pictures, recipe, state=out / "state.safetensors", report=advance)
    training.tokens.save(out / "tokens.safetensors")
    kept, withstood = (sum(side) / len(side) for side in zip(*training.history[-20:], strict=True))
    record = Record(
        kind="robustify",
        model={"name": model, "fingerprint": net.fingerprint(), "tokens": training.tokens.key_id},
        data={"spec": images, "digest": pictures.digest(), "count": len(pictures)},
        trials=[],
        figures={"un-hardened cosine under attack": training.baseline,
                 "hardened cosine, clean": kept, "hardened cosine under attack": withstood},
        history={"clean": [a for a, _ in training.history], "attacked": [b for _, b in training.history]},
        command=" ".join(["robvit", *sys.argv[1:]]),
    )  # fmt: skip
    record.save(out / "record.json")
    typer.echo(
        f"{count} tokens, key {training.tokens.key_id}; cosine with the original features in training:"
    )
    for name, value in record.figures.items():
        typer.echo(f"  {name}: {value:.3f}")
    typer.echo(f"written: {out}/tokens.safetensors (a secret, for your eyes only), {out}/record.json")
    typer.echo(
        f"next: robvit attack {model} DATA --victim {model} --tokens {out}/tokens.safetensors --head HEAD"
    )
