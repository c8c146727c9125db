"""`robvit app`: a playground in the browser."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.checks import check_data, check_part

PASSWORD = "ROBVIT_APP_PASSWORD"  # noqa: S105  the variable's name
SHORTEST = 12


def app(
    tokens: Annotated[
        Path | None, typer.Option(help="Tokens for the model they were made for; they stay on the server.")
    ] = None,
    head: Annotated[
        Path | None, typer.Option(help="A classifier for dinov2-small, from `robvit train head`.")
    ] = None,
    images: Annotated[
        str, typer.Option(help="Images to choose from: a dataset (`robvit data list`) or a folder.")
    ] = "sample",
    demo: Annotated[
        Path,
        typer.Option(help="Folder of a `robvit demo`; its tokens and head are used if they fit a model."),
    ] = Path("runs/demo"),
    host: Annotated[
        str, typer.Option(help="Where to listen; beyond loopback visitors need a password.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port.")] = 7860,
    password_file: Annotated[
        Path | None,
        typer.Option(help=f"File whose first line is the visitors' password; or set {PASSWORD}."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long one visitor's attack may take.")] = 60,
) -> None:
    """Open a playground in the browser: attack an image, watch it happen, see what tokens change.

    It listens on this machine only, keeps nothing and serves no files. With nothing given it offers the
    bundled models, and dinov2-small where its weights are there (`robvit weights get dinov2-small`);
    after `robvit demo` that model also has its classifier and its tokens.
    """
    check_part(tokens, "tokens")
    check_part(head, "head")
    check_data(images)
    password = _password(password_file)
    import signal
    import threading

    from robvit.app.gate import check_address
    from robvit.errors import Unsupported

    check_address(host, port, password)
    try:
        from robvit.app.server import opened
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"the playground needs {error.name}, which is not installed: pip install 'robvit[app]'"
        ) from None
    from robvit.app.models import playground_models
    from robvit.app.session import Limits, Playground

    typer.echo("loading the models ...", err=True)
    models = playground_models(tokens, head, demo=demo, log=partial(typer.echo, err=True))
    playground = Playground(models, Limits(seconds=seconds))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # however it ends, uploads are removed
    with opened(playground, host=host, port=port, password=password, images=images) as address:
        for model in playground.models.values():
            has = [
                name
                for name, is_there in (("classes", model.classes), ("tokens", model.hardened))
                if is_there
            ]
            typer.echo(f"  {model.name}: {', '.join(has) or 'features alone'}")
        typer.echo(f"open {address} in a browser; end with Ctrl-C")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            typer.echo("closed; nothing was kept")


def _password(file: Path | None) -> str:
    """The visitors' password, never from the command line, where every user of the machine could read it."""
    from robvit.errors import InputError

    if file is None:
        password = os.environ.get(PASSWORD, "")
    else:
        try:
            password = file.read_text(encoding="utf-8").partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read a password from {file}: {error}") from None
        if not password:
            raise InputError(f"the first line of {file} is empty; write the password there")
    if password and len(password) < SHORTEST:
        raise InputError(f"a password needs at least {SHORTEST} characters, got {len(password)}")
    return password
