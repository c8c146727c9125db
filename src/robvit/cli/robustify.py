"""`robvit robustify`: secret tokens for a frozen backbone, or a network tuned to stand in the white box."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robvit.cli.attack_checks import check_attack
from robvit.cli.checks import check_data, check_model, check_out, check_tokens
from robvit.cli.finetune import Extra, GoOn, Minutes, Rank, Setting, TuningLoss, tune
from robvit.cli.given import is_given, refuse_given
from robvit.cli.options import (
    PRECISIONS,
    Architecture,
    DataSpec,
    Device,
    HardenSplit,
    ImageSize,
    OwnModel,
    Resize,
    Threads,
    choice,
)
from robvit.cli.recipe_checks import check_tuning
from robvit.cli.shell import tell_device, tell_next, typed
from robvit.errors import InputError
from robvit.names import facts

if TYPE_CHECKING:
    from robvit.hardening import Hardening

BEYOND = "Beyond the paper"
OF_TOKENS = (
    *("preset", "count", "start", "layers", "attack", "attack_steps", "psnr"),
    *("adaptive", "adaptive_share", "task", "pool"),
)
OF_TUNING = ("rank", "minutes", "loss", "setting", "extra")

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
    Whole,
    typer.Option(
        min=1,
        help="Steps of the attacker who sees them, 3; lora, full: of the inner attack, 2, more beyond 2/255.",
        rich_help_panel=BEYOND,
    ),
]
Share = Annotated[
    float, typer.Option(help="Share of images attacked so; the rest are stored.", rich_help_panel=BEYOND)
]
Head = Annotated[
    Path | None,
    typer.Option(help="A (linear) head of `robvit train head`.", rich_help_panel=BEYOND),
]
Task = Annotated[
    float, typer.Option(help="Share of the head's loss; above 0 it learns along.", rich_help_panel=BEYOND)
]
Pool = Annotated[int, typer.Option(min=1, help="Independent sets to learn.", rich_help_panel=BEYOND)]
Precision = Annotated[
    str,
    typer.Option(
        **choice(*PRECISIONS),
        help="Of the tokens' attacks, /plain without fused attention; lora, full: of all that is computed. "
        "auto probes what is fastest.",
    ),
]
Seed = Annotated[
    Whole, typer.Option(help="Makes the tokens repeatable, and so no secret; left out, nobody can make them.")
]


def robustify(
    context: typer.Context,
    model: OwnModel,
    data: DataSpec = "sample",
    out: Annotated[Path, typer.Option(help="Folder of the result.")] = Path("runs/robustify"),
    method: Annotated[
        str,
        typer.Option(
            help="tokens: a secret. lora, full: tuned factors or weights that stand when the attacker knows "
            "everything.",
            **choice("tokens", "lora", "full"),
        ),
    ] = "tokens",
    preset: Annotated[
        str,
        typer.Option(
            help="Decides all that is left out; reference: as the published code.", **choice(*facts("preset"))
        ),
    ] = "paper",
    count: Annotated[Whole, typer.Option(min=1, help="How many tokens; in the paper 10.")] = None,
    steps: Annotated[
        Whole, typer.Option(min=1, help="Training steps; in the paper 200, lora, full: 150.")
    ] = None,
    batch: Annotated[
        Whole, typer.Option(min=1, help="Images in a step; in the paper 8, lora, full: 32.")
    ] = None,
    lr: Annotated[
        Number, typer.Option(help="Learning rate; in the paper and for lora 1e-3, full: 1e-4.")
    ] = None,
    start: Annotated[Number, typer.Option(help="Scale of the random start; 0.01.")] = None,
    eps: Annotated[
        Text, typer.Option(help="Budget in pixels (L-inf); in the paper 8/255, lora, full: 2/255.")
    ] = None,
    attack_steps: Annotated[Whole, typer.Option(min=1, help="Steps of the stored attack; 30.")] = None,
    psnr: Annotated[Number, typer.Option(help="Decibels attacked images keep; 40, 0 for none.")] = None,
    layers: Layers = None,
    attack: Attacks = None,
    adaptive: SeesTokens = False,
    inner_steps: InnerSteps = None,
    adaptive_share: Share = 1.0,
    head: Head = None,
    task: Task = 0.0,
    pool: Pool = 1,
    rank: Rank = None,
    extra: Extra = None,
    lora: GoOn = None,
    minutes: Minutes = None,
    loss: TuningLoss = None,
    setting: Setting = None,
    split: HardenSplit = None,
    img_size: ImageSize = None,
    resize: Resize = None,
    arch: Architecture = None,
    limit: Annotated[
        Whole,
        typer.Option(
            min=1,
            help="At most so many images; if left out half as many as steps draw, since an attack that "
            "serves twice costs half, lora, full: all.",
        ),
    ] = None,
    precision: Precision = "auto",
    seed: Seed = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Make a frozen backbone's features survive attacks, without labels.

    By default a few secret tokens are learned, which hold against attacks on the public model; --method lora
    and full tune the network itself, which holds when the attacker has it; with labels and a head also for
    its task (--loss). With --lora tokens are learned on the tuned network.

    Attacked images are kept in the cache, so another run with other tokens is many times faster.
    Interrupted, the same command resumes where it stopped. Tokens grow from the system's randomness;
    with --seed they can be made again by others, and are marked as no secret.
    """
    for text in attack or ["feature"]:
        name, _, own = text.partition("@")
        check_attack(name, "linf", own or eps or "8/255")
    check_model(model, arch, img_size=img_size, head=head, lora=lora)
    check_data(data, split)
    check_data(extra)
    check_out(out)
    check_tuning(setting)
    _check_numbers(lr=lr, start=start, psnr=psnr)
    if method != "tokens":
        _check_of_tuning(context, method, precision, minutes)
        options = {"method": method, "rank": rank, "eps": eps, "inner_steps": inner_steps, "lr": lr}
        options |= {"steps": steps, "batch": batch, "seed": seed, "loss": loss}
        place: dict[str, Any] = {"split": split, "resize": resize, "limit": limit, "head": head}
        place |= {"img_size": img_size, "arch": arch, "lora": lora, "extra": extra}
        place |= {"precision": precision if is_given(context, "precision") else None}
        tune(model, data, out, options=options, setting=setting or [], minutes=minutes, **place)
        return
    refuse_given(context, "is for lora and full, the method is tokens", *OF_TUNING)
    if not adaptive:
        refuse_given(context, "goes with --adaptive", "inner_steps", "adaptive_share")
    _check_shares(adaptive_share, task)
    if pool > 1 and task:
        raise InputError("a head learns along with one set of tokens; leave out --pool or --task")
    check_tokens(model, data, layers, [text.partition("@")[0] for text in attack or []], task, head)
    from robvit.defenses.recipe import AdaptiveAttack
    from robvit.hardening import robustify as harden
    from robvit.progress import progress
    from robvit.report.html import write_report

    tell_device()
    with progress(f"robustify {model}", total=1) as advance:
        hardening = harden(
            model,
            data,
            out=out,
            recipe=preset,
            count=count,
            steps=steps,
            batch=batch,
            lr=lr,
            start=start,
            layers=layers,
            attacks=attack,
            eps=eps,
            attack_steps=attack_steps,
            psnr=psnr,
            adaptive=AdaptiveAttack(inner_steps or 3, adaptive_share) if adaptive else None,
            head=head,
            lora=lora,
            task=task or None,
            pool=pool if pool > 1 else None,
            seed=seed,
            split=split,
            resize=resize,
            limit=limit,
            img_size=img_size,
            arch=arch,
            precision=precision,
            log=typer.echo,
            progress=advance,
            command=typed(),
        )
    write_report(hardening.record, out / "report.html")
    _tell(hardening, out, lora=lora, img_size=img_size, arch=arch)


def _check_of_tuning(context: typer.Context, method: str, precision: str, minutes: float | None) -> None:
    """Refuse what is not for the method, or does not go together."""
    refuse_given(context, f"is for tokens, the method is {method}", *OF_TOKENS)
    if precision.endswith("/plain"):
        raise InputError(f"--precision {precision} is for tokens, the method is {method}")
    if method == "full":
        refuse_given(context, "is for lora, the method is full", "rank", "lora")
    if minutes is not None:
        refuse_given(context, "and --minutes, which decides the steps, do not go together", "steps")


def _check_numbers(lr: float | None, start: float | None, psnr: float | None) -> None:
    if lr is not None and not lr > 0:
        raise InputError(f"--lr must be above 0, such as 1e-3, got {lr:g}")
    if start is not None and not start >= 0:
        raise InputError(f"--start must be 0 or more, got {start:g}")
    if psnr is not None and not psnr >= 0:
        raise InputError(f"--psnr must be decibels, 0 for none, got {psnr:g}")


def _check_shares(adaptive_share: float, task: float) -> None:
    if not 0 < adaptive_share <= 1:
        raise InputError(f"--adaptive-share must be above 0 and at most 1, got {adaptive_share:g}")
    if not 0 <= task <= 1:
        raise InputError(f"--task must be a share of the objective, 0 to 1, got {task:g}")


def _tell(hardening: Hardening, out: Path, **loaded: Any) -> None:
    """Say what there is now."""
    for tokens in hardening.sets:
        typer.echo(str(tokens))
    typer.echo("cosine with the original features in training, its last part:")
    for name, value in hardening.record.metrics.items():
        typer.echo(f"  {name}: {value:.3f}")
    if len(hardening.record.metrics) == len(hardening.sets):
        typer.echo("  hardened: not told of fewer than 20 steps or one pass, which would tell of the secret")
    place, head = str(hardening.file), "HEAD"
    is_secret = hardening.record.model["secret"]
    kind = "a secret, for your eyes only" if is_secret else "no secret, made with a seed"
    typer.echo(f"written: {place} ({kind}), record.json, report.html")
    if not is_secret:
        typer.echo(f"warning: {hardening.record.notes[-1]}")
    if hardening.head is not None:
        head = f"{out}/head.safetensors"
        typer.echo(f"written: {head}, the head that learned along")
    name = hardening.record.model["name"]
    tell_next("attack", name, "DATA", surrogate=name, tokens=place, head=head, **loaded)
