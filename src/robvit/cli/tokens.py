"""`robvit tokens`: secret tokens as files."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robvit.cli.options import (
    Architecture,
    DataSpec,
    Fit,
    Force,
    ImageSize,
    Limit,
    ModelName,
    free_place,
)

if TYPE_CHECKING:
    from robvit.backbones.model import Model
    from robvit.data import ImageDataset
    from robvit.defenses.rotate import Seen
    from robvit.defenses.tokens import RobustTokens
    from robvit.record import Record

app = typer.Typer(no_args_is_help=True, help="Bring in, look at, rotate and bake files of robustness tokens.")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A .pt file of the paper's project.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; FILE with .safetensors if left out.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model they are for; ties them to its exact weights.")
    ] = None,
    force: Force = False,
) -> None:
    """Turn published tokens into robvit's format; nothing in the file is executed."""
    from robvit.defenses.tokens import import_published
    from robvit.loading import load

    place = free_place(out or Path(file.name).with_suffix(".safetensors"), force)
    tokens = import_published(file, None if model is None else load(model))
    tokens.save(place)
    typer.echo(str(tokens))
    if model is None:
        typer.echo("not tied to any weights: name them with --model, so that other weights are refused")
    typer.echo(f"written, for your eyes only: {place}")


@app.command()
def show(file: Annotated[Path, typer.Argument(help="A file of tokens or of a pool.")]) -> None:
    """Tell what a token file is for, without showing the tokens or the seed they grew from."""
    from robvit.defenses.pool import TokenPool, load_tokens

    found = load_tokens(file)
    sets = found.sets if isinstance(found, TokenPool) else (found,)
    for tokens in sets:
        typer.echo(str(tokens))
    typer.echo(f"weights: {sets[0].fingerprint[:16] or 'not named'}")
    for name, value in sets[0].settings.items():
        if name != "seed":
            typer.echo(f"{name}: {value}")


@app.command()
def rotate(
    old: Annotated[Path, typer.Argument(help="The token file that is to be replaced.")],
    model: ModelName,
    images: DataSpec = "sample",
    out: Annotated[Path, typer.Option(help="Folder for new tokens and record.")] = Path("runs/rotate"),
    bound: Annotated[
        float, typer.Option(help="Least cosine of clean features, with the new tokens and without.")
    ] = 0.8,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps; as before if left out.")] = None,
    judge: Annotated[int, typer.Option(min=1, help="Images kept from the training to judge on.")] = 32,
    head: Annotated[Path | None, typer.Option(help="A head, to tell accuracy as well; needs labels.")] = None,
    split: Annotated[str, typer.Option(help="The part of the data set to take images from.")] = "train",
    img_size: ImageSize = None,
    fit: Fit = "squash",
    arch: Architecture = None,
    limit: Limit = None,
) -> None:
    """Issue new tokens by the old ones' recipe, and tell how far attacks on the old ones carry over.

    The new seed is drawn in secret. New tokens that change clean features too much are refused.
    """
    from robvit.cli.robustify import kept_seed
    from robvit.data import open_data
    from robvit.defenses.attack_cache import AttackSetting
    from robvit.defenses.recipe import Recipe
    from robvit.defenses.robustify import train
    from robvit.defenses.rotate import check_invariance, compare
    from robvit.defenses.tokens import RobustTokens
    from robvit.errors import InputError
    from robvit.files import alone_in
    from robvit.loading import load
    from robvit.progress import progress
    from robvit.record import Table

    before = RobustTokens.load(old)
    net = load(model, img_size=img_size, arch=arch, head=head)
    before.check(net)
    dataset = open_data(images, split=split, size=net.input_size[0], resize=fit, limit=limit)
    if len(dataset) <= judge:
        raise InputError(f"{judge} images are kept to judge on, but there are only {len(dataset)}")
    learn, held = dataset.take(range(len(dataset) - judge)), dataset.take(range(-judge, 0))
    recipe = Recipe.from_settings(before.settings | {"layers": before.layers, "count": before.count})
    with alone_in(out):
        recipe = replace(recipe, seed=kept_seed(out), steps=steps or recipe.steps)
        with progress("new tokens", total=1) as advance:
            training = train(net, learn, recipe, state=out / "state.safetensors", report=advance)
        attack = recipe.attack
        if attack.needs_labels:  # the question is about features, whatever the tokens learned from
            attack = AttackSetting("feature", attack.threat)
        sets = {"old tokens": before, "new tokens": training.tokens}
        with progress("attacks on both sets", total=len(held)) as advance:
            seen = compare(net, sets, held, attack, report=advance)
        clean = check_invariance(seen, "new tokens", bound)
        training.tokens.save(out / "tokens.safetensors")
        record = _rotation(net, sets, seen, held, str(attack.threat))
        record.data["spec"] = images
        record.save(out / "record.json")
    typer.echo(f"{training.tokens}; clean cosine {clean:.3f}, the bound is {bound}")
    for row in (record.tables[0].columns, *record.tables[0].rows):
        typer.echo("".join(f"{Table.cell(value):<28}" for value in row).rstrip())
    typer.echo(record.notes[0])
    typer.echo(f"written: {out}/tokens.safetensors (a secret, for your eyes only), {out}/record.json")
    typer.echo(f"next: serve the new ones, then remove {old}")


def _rotation(
    net: Model, sets: dict[str, RobustTokens], seen: list[Seen], held: ImageDataset, threat: str
) -> Record:
    """What was seen, as a table: images, model, cosine, accuracy where there is a head."""
    from robvit.record import Record, Table

    rows: list[list[Any]] = []
    for one in seen:
        correct = [p == y for p, y in zip(one.predicted, held.labels, strict=False)]
        rows.append([one.images, one.model, one.cosine, sum(correct) / len(correct) if correct else None])
    cosine = {(one.images, one.model): one.cosine for one in seen}
    own, carried = (cosine["attacked with old tokens", name] for name in ("old tokens", "new tokens"))
    note = f"Feature attacks within {threat}, each by someone who knows the named tokens."
    return Record(
        kind="rotation",
        model={"name": net.name, "fingerprint": net.fingerprint(), **{k: v.key_id for k, v in sets.items()}},
        data={"digest": held.digest(), "count": len(held)},
        trials=[],
        tables=[Table("Rotation", ["images", "model", "cosine", "accuracy"], rows, note)],
        metrics={"cosine, old attack, old tokens": own, "cosine, old attack, new tokens": carried},
        notes=[
            f"Images attacked with the old tokens keep a cosine of {carried:.2f} under the new ones; "
            f"under the old ones it was {own:.2f}."
        ],
        command=" ".join(["robvit", *sys.argv[1:]]),
    )


@app.command()
def bake(
    model: ModelName,
    file: Annotated[Path, typer.Argument(help="A token file.")],
    out: Annotated[Path, typer.Option(help="Where the checkpoint is written.")] = Path("baked.safetensors"),
    layout: Annotated[
        str, typer.Option(help='"timm", or "dinov2": the hub\'s DINOv2 with registers.')
    ] = "timm",
    img_size: ImageSize = None,
    with_secret: Annotated[
        bool, typer.Option("--with-secret", help="Yes, the file shall carry the secret tokens.")
    ] = False,
    force: Force = False,
) -> None:
    """Write a plain checkpoint whose register tokens are the robustness tokens; serving needs no robvit."""
    from robvit.backbones import zoo
    from robvit.defenses.bake import WARNING, save_baked
    from robvit.defenses.tokens import RobustTokens
    from robvit.errors import InputError
    from robvit.loading import load

    if not with_secret:
        raise InputError("a baked checkpoint carries the secret tokens; say --with-secret if that is meant")
    free_place(out, force)
    timm_name = zoo.resolve(model).timm_name.split(".")[0]
    options = save_baked(
        load(model, img_size=img_size), RobustTokens.load(file), out, timm_name=timm_name, form=layout
    )
    typer.echo(f"written: {out}\nwarning: {WARNING}")
    if layout == "timm":
        wishes = ", ".join(f"{name}={value!r}" for name, value in options.items())
        typer.echo("to load it without robvit:")
        typer.echo(f"  net = timm.create_model({timm_name!r}, {wishes})")
        typer.echo(f"  net.load_state_dict(safetensors.torch.load_file({str(out)!r}))")
