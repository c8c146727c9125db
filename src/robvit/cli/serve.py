"""`robvit serve`: a model behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.attack_checks import check_patch
from robvit.cli.checks import check_file, check_model
from robvit.cli.given import refuse_given
from robvit.cli.options import (
    Adapters,
    Architecture,
    Device,
    Head,
    ImageSize,
    Lora,
    OwnModel,
    Resize,
    Threads,
)


def serve(
    context: typer.Context,
    model: OwnModel,
    tokens: Annotated[
        Path | None,
        typer.Option(help="Tokens that harden it, or a pool of which every request draws a set."),
    ] = None,
    patch: Annotated[
        str | None,
        typer.Option(
            help="Predict behind double masking, against a square patch: pixels (32), or a share (2%)."
        ),
    ] = None,
    windows: Annotated[
        str, typer.Option(help="With --patch, windows along each side (3), or rows x columns (1x7).")
    ] = "3",
    head: Head = None,
    lora: Lora = None,
    adapters: Adapters = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; only this machine unless you say so.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name that requests may use for this machine, beside localhost and --host; repeat it."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    bearer_file: Annotated[
        Path | None, typer.Option(help="A file with a key that requests must bring as a bearer token.")
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Images in one pass of the model.")] = 16,
    max_wait: Annotated[
        float, typer.Option(min=0, help="Milliseconds that a batch waits for more images.")
    ] = 5.0,
    queue: Annotated[
        int, typer.Option(min=1, help="Requests accepted and not answered yet; others get 429.")
    ] = 64,
    max_bytes: Annotated[
        int, typer.Option(min=1, help="Size of an image's file; more get 413.")
    ] = 10_000_000,
    max_pixels: Annotated[
        int, typer.Option(min=1, help="Height times width of an image; more get 422, undecoded.")
    ] = 25_000_000,
    features: Annotated[
        bool | None,
        typer.Option(
            "--features/--no-features",
            help="Answer /features; with tokens only if asked for, since few answers give the tokens away.",
            show_default="on without tokens",
        ),
    ] = None,
    img_size: ImageSize = None,
    resize: Resize = None,
    arch: Architecture = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Answer HTTP requests with features and predictions, until SIGTERM or Ctrl-C.

    POST an image's bytes to /predict or /features (not of a model with tokens, unless --features); GET
    /healthz, /readyz and /metrics, and /docs or /openapi.json, which tell all of this. Requests are gathered
    into batches. Each request occupies one queue slot; when none is free it gets 429. On shutdown what was
    accepted is still answered.
    """
    from importlib.util import find_spec

    from robvit.errors import Unsupported
    from robvit.serve.keys import read_key

    check_model(model, arch, img_size=img_size, head=head, tokens=tokens, lora=lora, adapters=adapters)
    check_file(bearer_file, "key")
    check_patch(patch, windows, model)
    if patch is None:
        refuse_given(context, "goes with --patch", "windows")
    key = read_key(bearer_file) if bearer_file else ""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise Unsupported(
            "serving needs starlette and uvicorn; install them with: pip install 'robvit[serve]'"
        )
    from robvit.loading import load
    from robvit.processes import device_name, processes
    from robvit.serve.hosts import is_loopback
    from robvit.serve.limits import Limits
    from robvit.serve.predictor import Predictor
    from robvit.serve.server import listen, run
    from robvit.serve.service import Service

    sock = listen(host, port)
    net = load(model, tokens=tokens, head=head, lora=lora, adapters=adapters, img_size=img_size, arch=arch)
    net = net.to(processes().device)
    defense = None
    if patch is not None:
        from robvit.certification.patches import open_defense

        defense = open_defense(net, patch, windows)
    limits = Limits(max_bytes, max_pixels, max_batch, max_wait / 1000, queue)
    service = Service(
        Predictor(net, resize, defense.logits_and_disputed if defense else None),
        limits,
        key,
        host=host,
        allowed_hosts=tuple(allow_host or ()),
        features=features,
    )
    at = f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}"
    if not is_loopback(host):
        who = "with the key, which travels in the clear," if key else "without any key"
        typer.echo(
            f"warning: whoever can reach {host} may ask {who} and learn from the answers; "
            "put a proxy with TLS in front"
        )
    masked = f", defended against patches of {defense.cover.patch} pixels a side" if defense else ""
    hardened = f", hardened by {'a pool of ' + str(len(net.pool.sets)) + ' sets' if net.pool else 'tokens'}"
    typer.echo(
        f"serving {model} ({net.classes or 'no'} classes{hardened * net.hardened}{masked}) at {at} "
        f"on {device_name()}"
    )
    if net.hardened and features:
        typer.echo("warning: /features is on, from whose answers the tokens can be recovered")
    typer.echo(f"next: curl -X POST -T IMAGE {at}/{'predict' if net.classes else 'features'}")
    run(service, sock)
    typer.echo("stopped")
