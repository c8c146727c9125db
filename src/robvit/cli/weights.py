"""`robvit weights`: which weights there are, where they come from, and whether they are right."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from robvit.backbones import download, zoo
from robvit.backbones.zoo import Known
from robvit.cli.commands import Command, Group
from robvit.cli.shell import tell_next
from robvit.cli.tables import console
from robvit.texts import printable

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="List, fetch and verify pretrained weights.\n\n"
    "Weights are looked for in this order: a local file, the cache, the model hub, and for a few models "
    "a file inside a package of the package registry, which is converted once and checked. "
    "No other model is ever taken instead.",
)

Name = Annotated[
    str, typer.Argument(help="A name from `robvit weights list`, or any timm name.", show_default=False)
]


@app.command("list", cls=Command)
def list_() -> None:
    """Show the friendly names, what timm calls them, and where their weights come from.

    $ROBVIT_CACHE moves robvit's own cache, $HF_HOME the hub's;
    HF_HUB_OFFLINE=1 keeps the hub out. NAME@COMMIT takes a model's
    weights from that commit of its repository on the hub.
    """
    console().print(f"[bold]{'name':<20}{'parameters':>11}  {'licence':<12}{'comes from':<23}here[/bold]")
    for known in zoo.TABLE:
        here = download.on_disk(known) or "-"
        size = f"{known.params:.1f} M"
        console().print(f"{known.alias:<20}{size:>11}  {known.licence:<12}{_comes_from(known):<23}{here}")
        console().print(f"  timm: {known.timm_name}{_options(known)}", style="dim")
    console().print("\nAny other timm name works too. Next: robvit weights get dinov2-small")


@app.command(cls=Command)
def get(name: Name) -> None:
    """Fetch weights, check them, and say what was taken from where under which licence."""
    zoo.check_name(name)
    from robvit.backbones import weights

    tensors, origin = weights.state_dict(name)
    count = sum(tensor.numel() for tensor in tensors.values()) / 1e6
    shown = escape(printable(origin.name))
    console().print(f"[bold]{shown}[/bold]: {count:.1f} million numbers in {len(tensors)} tensors")
    cached = "robvit's cache, once taken from " if origin.kind == "cache" else ""
    facts = {
        "from": cached + origin.source,
        "licence": origin.licence,
        "sha256": origin.sha256,
        "file": origin.path,
    }
    for what, value in facts.items():
        console().print(f"  {what:<8} {escape(printable(str(value)))}", soft_wrap=True)
    if origin.kind != "local":
        tell_next("weights", "verify", origin.name)


@app.command(cls=Command)
def verify(
    name: Annotated[
        str | None, typer.Argument(help="One model; without it, all that are here.", show_default=False)
    ] = None,
) -> None:
    """Check the weights on this machine; exit code 1 if any are wrong.

    Asked of each: is the checksum of the tensors the known one, do they
    load strictly into timm's model, and do a known image's features
    come out within 0.001. Nothing is fetched.
    """
    if name:
        zoo.check_name(name)
    from robvit.backbones import weights

    models = [zoo.resolve(name)] if name else [known for known in zoo.TABLE if download.on_disk(known)]
    wrong = []
    for known in models:
        console().print(f"[bold]{known.alias}[/bold]")
        for check in weights.verify(known):
            word = "[green]ok   [/green]" if check.passed else "[red]WRONG[/red]"
            console().print(f"  {word} {check.what}: {escape(printable(check.detail))}", soft_wrap=True)
            if not check.passed and known.alias not in wrong:
                wrong.append(known.alias)
    if wrong:
        console().print(
            f"Not to be trusted: {', '.join(wrong)}. `robvit weights get NAME` fetches a wrong copy again."
        )
        raise typer.Exit(1)
    if not models:
        console().print("No weights are on this machine. Next: robvit weights get dinov2-small")
        return
    console().print(f'All right. Use it in Python: robvit.load("{models[0].alias}")')


def _comes_from(known: Known) -> str:
    if known.tuned_from:
        return f"robvit, on {known.tuned_from}"
    places = ["robvit"] if known.bundled else []
    if known.hub:
        places.append("hub")
    if known.registry:
        places.append("package" if known.registry.bits == 32 else f"{known.registry.bits}-bit package")
    return ", or ".join(places) or "your file"


def _options(known: Known) -> str:
    given = ", ".join(f"{name}={value}" for name, value in known.options.items())
    return f" with {given}" if given else ""
