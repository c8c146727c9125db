"""`robvit verify` and `robvit sign`: whether a record's claims hold, and whose record it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.checks import check_data, check_file, check_model, check_record, parse_normalise, read_record
from robvit.cli.options import (
    Adapters,
    Architecture,
    BatchSize,
    Device,
    Head,
    ImageSize,
    Lora,
    Normalise,
    Threads,
    Tokens,
)

RecordPlace = Annotated[Path, typer.Argument(help="A record.json, or the folder that holds it.")]


def verify(
    record: RecordPlace,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="The judged model, as it was given; without it only files, budgets and counts are checked.",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Where the images are now, if not where the record says.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="A public key whose signature the record must carry.")
    ] = None,
    tokens: Tokens = None,
    lora: Lora = None,
    adapters: Adapters = None,
    head: Head = None,
    arch: Architecture = None,
    img_size: ImageSize = None,
    normalise: Normalise = None,
    batch: BatchSize = 32,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Judge the images that a record kept again, and say whether every claim holds; else the exit code is 1.

    Checked are the protocol's rules, hashes of files, the model's identity, the images' pixels, every
    image's distance and every prediction. What cannot be checked is listed, not passed over.
    """
    read_record(record)
    statistics = parse_normalise(normalise)
    if key is not None:
        check_file(key, "key")
    if model is not None:
        check_model(
            model,
            arch,
            img_size=img_size,
            programs=True,
            head=head,
            tokens=tokens,
            lora=lora,
            adapters=adapters,
        )
    check_data(data)
    from robvit.evaluation.classifiers import open_classifier
    from robvit.evaluation.verify import verify as judge
    from robvit.progress import progress
    from robvit.signing import signature_flaw

    classifier = None
    if model is not None:
        parts = {"tokens": tokens, "head": head, "lora": lora, "adapters": adapters}
        classifier = open_classifier(model, arch=arch, img_size=img_size, normalise=statistics, **parts)
    with progress("verifying", total=1) as advance:
        found = judge(record, classifier, data=data, batch=batch, progress=advance)
    if key is not None:
        place = record / "record.json" if record.is_dir() else record
        found.note(f"signed by {key}", signature_flaw(place, key))
    for word, lines in (("holds", found.holds), ("not checked", found.unchecked), ("BROKEN", found.broken)):
        for line in lines:
            typer.echo(f"{word}: {line}")
    if classifier is None:
        typer.echo("not checked: what the model answers; name the MODEL to have it judged again")
    if not found.good:
        typer.echo(f"{len(found.broken)} claims do not hold")
        raise typer.Exit(1)
    typer.echo(f"all {len(found.holds)} claims that were checked hold")


def sign(
    record: Annotated[Path | None, typer.Argument(help="A record.json, or the folder that holds it.")] = None,
    key: Annotated[Path | None, typer.Option(help="Your private ed25519 key, PEM.")] = None,
    new_key: Annotated[
        Path | None, typer.Option(help="Write a new private key here, and its public half beside it as .pub.")
    ] = None,
) -> None:
    """Sign a record with your key; `robvit verify RECORD --key KEY.pub` checks it.

    The signature is a file beside the record. The private key is for your eyes only; give away the .pub.
    """
    if (record is None or key is None) and new_key is None:
        raise typer.BadParameter("give a RECORD and --key, or --new-key")
    if new_key is not None:
        from robvit.signing import new_key as make

        make(new_key)
        typer.echo(f"written: {new_key} (a secret, for your eyes only), {new_key}.pub")
    if record is not None and (chosen := key or new_key):
        check_record(record)
        check_file(chosen, "key")
        from robvit.record import Record
        from robvit.signing import sign as put

        place = record / "record.json" if record.is_dir() else record
        Record.load(place)  # what is no record is not signed
        typer.echo(f"written: {put(place, chosen)}")
