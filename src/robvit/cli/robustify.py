"""`robvit robustify`: learn secret tokens for a frozen backbone."""

from __future__ import annotations

import re
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robvit.cli.options import Architecture, DataSpec, Fit, ImageSize, ModelName

if TYPE_CHECKING:
    from robvit.backbones.model import Model
    from robvit.defenses.attack_cache import AttackSetting
    from robvit.defenses.recipe import Recipe
    from robvit.defenses.robustify import Training
    from robvit.record import Record

BEYOND = "Beyond the paper"

Text = str | None
Whole = int | None
Number = float | None
Layers = Annotated[
    Text, typer.Option(help='Blocks before which tokens enter: "0,6", or "all".', rich_help_panel=BEYOND)
]
Attacks = Annotated[
    list[str] | None,
    typer.Option(
        help='Given several times, attacks take turns: "feature", "feature@2/255", or "pgd@4/255", which '
        "needs a head and labels.",
        rich_help_panel=BEYOND,
    ),
]
SeesTokens = Annotated[
    bool, typer.Option("--adaptive", help="The attacker sees the tokens.", rich_help_panel=BEYOND)
]
InnerSteps = Annotated[
    int, typer.Option(min=1, help="Steps of the attacker who sees them.", rich_help_panel=BEYOND)
]
Share = Annotated[
    float, typer.Option(help="Share of images attacked so; the rest are stored.", rich_help_panel=BEYOND)
]
Head = Annotated[
    Path | None, typer.Option(help="A linear head of `robvit train head`.", rich_help_panel=BEYOND)
]
Task = Annotated[
    float, typer.Option(help="Share of the head's loss; above 0 it learns along.", rich_help_panel=BEYOND)
]
Pool = Annotated[int, typer.Option(min=1, help="Independent sets to learn.", rich_help_panel=BEYOND)]
Seed = Annotated[
    Whole, typer.Option(help="Decides start and order; drawn in secret if left out, else repeatable.")
]


def robustify(
    model: ModelName,
    images: DataSpec = "sample",
    out: Annotated[Path, typer.Option(help="Folder of the result.")] = Path("runs/robustify"),
    preset: Annotated[str, typer.Option(help="Decides all that is left out: paper or deep.")] = "paper",
    compat: Annotated[str, typer.Option(help='"reference": the choices of the published code.')] = "paper",
    count: Annotated[Whole, typer.Option(min=1, help="How many tokens; in the paper 10.")] = None,
    steps: Annotated[Whole, typer.Option(min=1, help="Training steps; in the paper 200.")] = None,
    batch: Annotated[Whole, typer.Option(min=1, help="Images in a step; in the paper 8.")] = None,
    lr: Annotated[Number, typer.Option(help="Adam's learning rate; in the paper 1e-3.")] = None,
    start: Annotated[Number, typer.Option(help="Scale of the random start; 0.01.")] = None,
    eps: Annotated[Text, typer.Option(help="Budget in pixels (L-inf); in the paper 8/255.")] = None,
    attack_steps: Annotated[Whole, typer.Option(min=1, help="Steps of the stored attack; 30.")] = None,
    psnr: Annotated[Number, typer.Option(help="Decibels attacked images keep; 40, 0 for none.")] = None,
    layers: Layers = None,
    attack: Attacks = None,
    adaptive: SeesTokens = False,
    inner_steps: InnerSteps = 3,
    adaptive_share: Share = 1.0,
    head: Head = None,
    task: Task = 0.0,
    pool: Pool = 1,
    split: Annotated[str, typer.Option(help="The part of the data set to learn from.")] = "train",
    img_size: ImageSize = None,
    fit: Fit = "squash",
    arch: Architecture = None,
    limit: Annotated[
        Whole,
        typer.Option(
            min=1,
            help="At most so many images; half as many as steps draw if left out, since an "
            "attack that serves twice costs half.",
        ),
    ] = None,
    seed: Seed = None,
) -> None:
    """Learn a few secret, label-free tokens that make a frozen backbone's features survive attacks.

    Attacked images are kept in the cache, so another run with other tokens is many times faster.
    Interrupted, the same command goes on where it stopped. Whoever has the images and the seed can
    make the same tokens.
    """
    from robvit.data import open_data
    from robvit.defenses.robustify import train_pool
    from robvit.errors import InputError
    from robvit.files import alone_in
    from robvit.loading import load
    from robvit.progress import progress

    base = _base(preset, compat)
    if pool > 1 and task:
        raise InputError("a head learns along with one set of tokens; leave out --pool or --task")
    hub = compat == "reference" and "dinov2" in model
    net = load(model, img_size=img_size, arch=arch, head=head, pos_embed="hub" if hub else "timm")
    if limit is None and compat == "paper":
        limit = max(1, (steps or base.steps) * (batch or base.batch) // 2)
    dataset = open_data(images, split=split, size=net.input_size[0], resize=fit, limit=limit)
    with alone_in(out):
        given = {
            "count": count,
            "steps": steps,
            "batch": batch,
            "lr": lr,
            "start": start,
            "task": task or None,
            "layers": _layers(layers),
            "seed": kept_seed(out) if seed is None else seed,
        }
        recipe = _recipe(base, given, attack or [], eps=eps, steps=attack_steps, psnr=psnr)
        if adaptive:
            recipe = _adaptive(recipe, inner_steps, adaptive_share)
        with progress(f"robustify {model}", total=1) as advance:
            sets, trainings = train_pool(net, dataset, recipe, pool, state=out, report=advance)
        (sets if pool > 1 else sets[0]).save(out / _secret(trainings))
        data = {"spec": images, "digest": dataset.digest(), "count": len(dataset)}
        _tell(_record(net, data, trainings), trainings, out)


def kept_seed(out: Path) -> int:
    """A secret seed that a run started again finds again: it is worth as much as the tokens."""
    from robvit.files import written_whole

    place = out / "seed"
    if not place.exists():
        with written_whole(place, mode=0o600) as aside:
            aside.write_text(f"{secrets.randbits(62)}\n", encoding="ascii")
    return int(place.read_text(encoding="ascii"))


def _base(preset: str, compat: str) -> Recipe:
    from robvit.defenses.recipe import PRESETS, REFERENCE
    from robvit.errors import InputError

    if compat not in ("paper", "reference"):
        raise InputError(f"compat must be paper or reference, got {compat!r}")
    if preset not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    return REFERENCE if compat == "reference" else PRESETS[preset]


def _layers(text: str | None) -> tuple[int, ...] | str | None:
    from robvit.errors import InputError

    if text is None or text == "all":
        return text
    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError:
        raise InputError(f'layers must be "all" or numbers such as 0,6, got {text!r}') from None


def _recipe(base: Recipe, given: dict[str, Any], attacks: list[str], **attack_settings: Any) -> Recipe:
    """The preset, with what was given in its place."""
    from dataclasses import replace

    chosen = {name: value for name, value in given.items() if value is not None}
    if attacks:
        first, *others = (_attack(base.attack, text, **attack_settings) for text in attacks)
        chosen |= {"attack": first, "also": tuple(others)}
    else:
        chosen["attack"] = _attack(base.attack, base.attack.name, **attack_settings)
    return replace(base, **chosen)


def _adaptive(recipe: Recipe, steps: int, share: float) -> Recipe:
    from dataclasses import replace

    from robvit.defenses.recipe import Adaptive

    return replace(recipe, adaptive=Adaptive(steps, share))


def _attack(
    base: AttackSetting, text: str, *, eps: str | None, steps: int | None, psnr: float | None
) -> AttackSetting:
    """An attack from text such as feature@2/255; what is not said is the preset's."""
    from robvit.attacks import ATTACKS
    from robvit.defenses.attack_cache import AttackSetting
    from robvit.threat import Threat

    name, _, own = text.partition("@")
    wanted = dict(base.settings) if name == base.name else {}
    wanted |= {} if steps is None else {"steps": steps}
    wanted |= {} if psnr is None else {"psnr": psnr or None}
    known = ATTACKS.info(name).defaults
    budget = own or eps
    threat = base.threat if budget is None else Threat.parse("linf", budget)
    return AttackSetting(name, threat, {k: v for k, v in wanted.items() if k in known}, base.seed)


def _record(net: Model, data: dict[str, Any], trainings: list[Training]) -> Record:
    """What was learned and how, with both parts of the objective; of the tokens, their keys alone."""
    from robvit.record import Curve, Record

    lines: dict[str, list[list[float]]] = {}
    figures: dict[str, float] = {}
    for number, training in enumerate(trainings, 1):
        of = f", set {number}" if len(trainings) > 1 else ""
        figures[f"un-hardened cosine under attack{of}"] = training.baseline
        named = {"clean": "hardened cosine, clean", "attacked": "hardened cosine under attack"}
        for name, side in zip(named, zip(*training.history, strict=True), strict=True):
            lines[f"{name}{of}"] = [[step, value] for step, value in enumerate(side, 1)]
            figures[f"{named[name]}{of}"] = sum(side[-20:]) / len(side[-20:])
    baseline, last = trainings[0].baseline, len(trainings[0].history)
    lines["un-hardened, attacked"] = [[1, baseline], [last, baseline]]
    note = "Both parts of the objective on each step's images; 1 is what the frozen backbone says."
    keys = ", ".join(training.tokens.key_id for training in trainings)
    return Record(
        kind="robustify",
        model={"name": net.name, "fingerprint": net.fingerprint(), "tokens": keys},
        data=data,
        trials=[],
        metrics=figures,
        curves=[Curve("Learning tokens", "step", "cosine with the original features", lines, note)],
        notes=["These figures are from the training; what attackers can do is another question."],
        command=_command(),
    )


def _command() -> str:
    """What was typed, but for the seed: whoever has it can make the same tokens."""
    return re.sub(r"--seed[ =]\S+", "--seed ...", " ".join(["robvit", *sys.argv[1:]]))


def _secret(trainings: list[Training]) -> str:
    return "pool.safetensors" if len(trainings) > 1 else "tokens.safetensors"


def _tell(record: Record, trainings: list[Training], out: Path) -> None:
    """Write record and report, and say what there is now."""
    from robvit.report.html import write_report

    record.save(out / "record.json")
    write_report(record, out / "report.html")
    for training in trainings:
        typer.echo(str(training.tokens))
    typer.echo("cosine with the original features in training:")
    for name, value in record.metrics.items():
        typer.echo(f"  {name}: {value:.3f}")
    place, head = f"{out}/{_secret(trainings)}", "HEAD"
    typer.echo(f"written: {place} (a secret, for your eyes only), record.json, report.html")
    if trainings[0].head is not None:
        head = f"{out}/head.safetensors"
        trainings[0].head.save(head)
        typer.echo(f"written: {head}, the head that learned along")
    name = record.model["name"]
    typer.echo(f"next: robvit attack {name} DATA --victim {name} --tokens {place} --head {head}")
