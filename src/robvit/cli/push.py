"""`robvit push`: a result onto the model hub, or into a folder that can be put there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.checks import read_record
from robvit.errors import InputError
from robvit.sharing import check_repository


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
    force: Annotated[
        bool, typer.Option("--force", help="Write into a --folder that is not empty; what is in it may go.")
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
    from robvit.pushing import push as pass_on

    place = pass_on(
        result,
        repo,
        folder=folder,
        records=records,
        private=private,
        publish_secret=publish_secret,
        force=force,
    )
    typer.echo(f"written: {place}")
    if folder is not None:
        typer.echo(f"next: hf upload {repo} {folder}")
