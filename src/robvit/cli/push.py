"""`robvit push`: a result onto the model hub, or into a folder that can be put there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robvit.cli.checks import read_record
from robvit.errors import InputError
from robvit.sharing import check_repository

if TYPE_CHECKING:
    from robvit.record import Record
    from robvit.sharing import Shareable


def push(
    result: Annotated[
        Path,
        typer.Argument(
            metavar="FILE_OR_FOLDER",
            help="A LoRA, head, token, adapter or record file, the folder of a run that left one, or a "
            "folder of `robvit bake --layout huggingface`.",
        ),
    ],
    repo: Annotated[str, typer.Argument(metavar="REPO", help="OWNER/NAME on the hub.")],
    folder: Annotated[
        Path | None, typer.Option(help="Write it into this folder in place of the hub; no network is used.")
    ] = None,
    record: Annotated[
        list[Path] | None,
        typer.Option(help="A record for the card, or a folder that holds one; repeat it for several."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Make a repository that only you can see.")
    ] = False,
    publish_secret: Annotated[
        bool,
        typer.Option(
            "--publish-secret",
            help="Yes, pass on secret tokens: they stop being secret, and protect no model any more.",
        ),
    ] = False,
) -> None:
    """Pass on a LoRA, head, adapters, tokens, a model or a record, with a config and a card from records.

    The card tells threat, number of images, intervals and limits; what no record says is not claimed. Only
    safetensors and JSON are written. Who is logged in by `hf auth login` needs no token.
    """
    check_repository(repo)
    if not result.exists():
        raise InputError(f"nothing at {result}; give the file or folder of a result")
    records = [read_record(path) for path in record or []]
    if result.is_dir() and (own := result / "record.json").is_file() and not records:
        records = [read_record(own)]
    from robvit.pushing import opened_result, push_folder

    held = opened_result(result)
    if held is None:  # a network's folder, which is passed on file by file
        told = push_folder(result, repo, records, to=folder, private=private, publish_secret=publish_secret)
    else:
        told = _push(held, repo, records, folder, private=private, publish_secret=publish_secret)
    typer.echo(f"written: {told}")
    if folder is not None:
        typer.echo(f"next: hf upload {repo} {folder}")


def _push(
    held: Shareable,
    repo: str,
    records: list[Record],
    folder: Path | None,
    *,
    private: bool,
    publish_secret: bool,
) -> str:
    """Write a result of robvit's; a tuning has a card of its own."""
    from robvit.report.card import model_card
    from robvit.sharing_card import metadata

    tuned = sum(one.kind == "robustify" and "settings" in one.model for one in records) == 1
    card = ""
    if tuned and held.shared_as == "lora":
        card = f"{metadata('lora')}\n\n{model_card(records, name=repo)}"
    if folder is None:
        return held.push_to_hub(
            repo, records=records, card=card, private=private or None, publish_secret=publish_secret
        )
    held.save_pretrained(folder, records=records, card=card, name=repo, publish_secret=publish_secret)
    return str(folder)
