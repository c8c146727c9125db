"""`robvit evaluate`: judge a classifier by a protocol."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from robvit.cli.attack_checks import check_compiler, check_threat
from robvit.cli.checks import (
    check_classifier,
    check_data,
    check_model,
    check_out,
    parse_normalise,
    read_record,
)
from robvit.cli.given import refuse_given, refuse_others
from robvit.cli.options import (
    Adapters,
    Architecture,
    BatchSize,
    Compiler,
    DataSpec,
    Device,
    Head,
    ImageSize,
    Limit,
    Lora,
    Normalise,
    OptionalModel,
    Precision,
    Resize,
    ShardFolder,
    Split,
    Threads,
    Tokens,
    protocol_option,
)
from robvit.cli.recipe_checks import check_protocol, check_robustbench
from robvit.cli.shell import command_line, typed
from robvit.cli.tables import console, show_table
from robvit.errors import InputError
from robvit.specs import parse_part

if TYPE_CHECKING:
    from robvit.record import Record

OF_RETRIEVAL = ("gallery", "gallery_limit", "eps", "steps")
OF_CLASSES = (
    "protocol",
    "adapters",
    "head",
    "public",
    "normalise",
    "precision",
    "compiler",
    "audit",
    "part",
    "robustbench",
)
# Options that go with --pool; all others are decided by the records.
OF_POOLING = ("pool", "out", "robustbench")

AuditSize = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="So many survivors for audited attacks, in place of the protocol's number."
    ),
]


def evaluate(
    context: typer.Context,
    model: OptionalModel = None,
    data: DataSpec = "sample",
    protocol: Annotated[
        str | None, protocol_option("quick@1, or quick-black-box@1 for ONNX and TorchScript")
    ] = None,
    out: ShardFolder = Path("runs/evaluate"),
    tokens: Tokens = None,
    lora: Lora = None,
    adapters: Adapters = None,
    head: Head = None,
    task: Annotated[
        Literal["classes", "retrieval"],
        typer.Option(help="retrieval: nearest neighbours by embeddings, clean and attacked; no classifier."),
    ] = "classes",
    gallery: Annotated[
        str | None, typer.Option(help="Where retrieval looks; the data's training part if left out.")
    ] = None,
    gallery_limit: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="At most this many images in the gallery.")
    ] = None,
    eps: Annotated[str, typer.Option(help="Budget of retrieval's attacks (L-inf).")] = "2/255",
    steps: Annotated[int, typer.Option(min=1, help="Gradient steps of retrieval's attacks.")] = 30,
    public: Annotated[
        str | None,
        typer.Option(help="Images of attackers who learn; the data's training part if left out."),
    ] = None,
    split: Split = None,
    img_size: ImageSize = None,
    normalise: Normalise = None,
    resize: Resize = None,
    arch: Architecture = None,
    limit: Limit = None,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="K/N",
            help="Only the K-th of N parts of the images; --pool makes one record of all.",
        ),
    ] = None,
    pool: Annotated[
        list[Path] | None,
        typer.Option(help="The record of a part, once for each: they become one. Takes no MODEL."),
    ] = None,
    audit: AuditSize = None,
    batch: BatchSize = 32,
    precision: Precision = "auto",
    compiler: Compiler = None,
    robustbench: Annotated[
        Path | None, typer.Option(help="Also write the result as a `model_info` file of RobustBench's.")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List the protocols and stop.")] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Judge a classifier by a protocol: every image's outcome under every attack, and the worst case.

    A forecast comes first. Interrupted, the same command resumes where it stopped; under `accelerate
    launch` several processes share the work; the record is the same. Machines that share no disk judge
    parts (--part 1/4), which --pool puts together.
    """
    if pool:
        refuse_others(context, "is decided by the records of --pool", *OF_POOLING)
        _pool(pool, out, robustbench)
        return
    if show or model is None:
        _list()
        if not show:
            raise typer.BadParameter("name a MODEL to judge", param_hint="MODEL")
        return
    if task == "retrieval":
        refuse_given(context, "is for --task classes; retrieval has no classifier", *OF_CLASSES)
        own = {"arch": arch, "img_size": img_size, "tokens": tokens, "lora": lora}
        images = {"split": split, "resize": resize, "limit": limit, "gallery_limit": gallery_limit}
        _retrieval(model, data, gallery, eps, out, own, steps=steps, batch=batch, **images)
        return
    refuse_given(context, "is for --task retrieval; a protocol says what is attacked", *OF_RETRIEVAL)
    if protocol is not None:
        check_protocol(protocol)
    check_robustbench(robustbench, protocol)
    check_model(
        model, arch, img_size=img_size, programs=True, head=head, tokens=tokens, lora=lora, adapters=adapters
    )
    check_data(data, split)
    check_classifier(model, data, head, adapters)
    statistics = parse_normalise(normalise)
    check_compiler(compiler)
    check_data(public)
    share = (1, 1) if part is None else parse_part(part)
    check_out(out)
    from robvit.evaluation import evaluate as judging
    from robvit.evaluation.classifiers import open_classifier
    from robvit.evaluation.protocol import find
    from robvit.processes import processes
    from robvit.progress import progress, silent

    given = None if protocol is None else find(protocol)
    classifier = open_classifier(
        model,
        arch=arch,
        img_size=img_size,
        normalise=statistics,
        tokens=tokens,
        head=head,
        lora=lora,
        adapters=adapters,
    )
    rules = given or judging.quick_rules(classifier)
    main = processes().is_main_process
    with progress(f"{rules.name} on {classifier.name}", total=1) as advance:
        record = judging.evaluate(
            classifier,
            data,
            protocol=rules,
            out=out,
            split=split,
            resize=resize,
            limit=limit,
            part=share,
            audit=audit,
            public=public,
            batch=batch,
            precision=precision,
            compiler=compiler,
            log=typer.echo if main else silent,
            progress=advance if main else silent,
            command=typed(),
        )
    if not main:
        return
    _finish(record, out, robustbench)


def _pool(places: list[Path], out: Path, robustbench: Path | None) -> None:
    """Parts of one evaluation as one record."""
    records = [read_record(place) for place in places]
    check_out(out)
    parts = {(place if place.is_dir() else place.parent).resolve() for place in places}
    if out.resolve() in parts:
        raise InputError(f"{out} holds one of the parts, which the whole would replace; give another --out")
    from robvit.evaluation.pooling import pool

    _finish(pool(records, out=out, command=typed()), out, robustbench)


def _finish(record: Record, out: Path, robustbench: Path | None) -> None:
    """Show a record that was written, and say what can be done with it."""
    _show(record)
    typer.echo(f"\nwritten: {out}/record.json")
    if robustbench is not None:
        _write_robustbench(record, robustbench)
    typer.echo(f"next: {command_line('report', out)}, or {command_line('compare', out, 'ANOTHER')}")


def _retrieval(
    model: str, data: str, gallery: str | None, eps: str, out: Path, own: dict[str, Any], **settings: Any
) -> None:
    check_model(model, own["arch"], img_size=own["img_size"], tokens=own["tokens"], lora=own["lora"])
    check_data(data, settings["split"])
    check_data(gallery)
    check_out(out)
    check_threat("linf", eps, usable=True)
    from robvit.evaluation.retrieval import evaluate_retrieval
    from robvit.loading import load
    from robvit.progress import progress
    from robvit.threat import Threat

    net, threat = load(model, **own), Threat.parse("linf", eps)
    with progress(f"retrieval with {model}", total=1) as advance:
        record = evaluate_retrieval(
            net, data, gallery=gallery, threat=threat, out=out, progress=advance, command=typed(), **settings
        )
    _show(record)
    typer.echo(f"\nwritten: {out}/record.json\nnext: {command_line('report', out)}")


def _write_robustbench(record: Record, place: Path) -> None:
    from robvit.evaluation.robustbench import model_info
    from robvit.files import write_json

    write_json(place, model_info(record))
    typer.echo(f"written: {place} (RobustBench's model_info form)")


def _show(record: Record) -> None:
    """The table of attacks, the tables beside it, and what may be claimed."""
    if len(record.trials) <= 40:
        typer.echo("\n" + record.table() + "\n")
    for table in record.tables:
        show_table(table)
    for note in record.notes:
        typer.echo(f"- {note}")


def _list() -> None:
    from rich.table import Table

    from robvit.evaluation.protocol import find, names

    table = Table(box=None, pad_edge=False)
    for column in ("protocol", "threat", "about"):
        table.add_column(column, no_wrap=column != "about")
    for name in names():
        rules = find(name)
        table.add_row(name, str(rules.threat.threat()) if rules.threat else "", rules.about)
    console().print(table)
    typer.echo("\nnext: robvit evaluate robvit-mini-robust sample --protocol quick@1")
