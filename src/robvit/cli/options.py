"""Options that several commands share, with one wording."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from robvit.budget import NORMS, THREATS
from robvit.errors import InputError

PRECISIONS = ("auto", "fp32", "bf16", "fp16", "fp32/plain", "bf16/plain", "fp16/plain")


def choice(*values: str, then: Callable[[str], None] | None = None) -> dict[str, Any]:
    """How an option shows and checks that it is one of some words; `then` hears the word."""

    def check(param: typer.CallbackParam, value: str | None) -> str | None:
        if value is not None and value not in values:
            known = f"{', '.join(values[:-1])} or {values[-1]}"
            raise InputError(f"{param.opts[0]} must be {known}, got {value!r}")
        if value is not None and then is not None:
            then(value)
        return value

    return {"metavar": "|".join(values), "callback": check}


def _choose_device(device: str) -> None:
    if device != "auto":
        os.environ["ROBVIT_DEVICE"] = device  # read by robvit.processes, also in processes started from here


def _choose_threads(threads: int | None) -> int | None:
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
        if torch := sys.modules.get("torch"):  # reads the environment only when it is loaded
            torch.set_num_threads(threads)
    return threads


def protocol_option(usual: str) -> Any:
    """The option --protocol of a command whose protocol, if left out, follows from the model."""
    about = "A protocol (`robvit evaluate --list`), or a YAML file."
    return typer.Option("--protocol", help=about, show_default=usual)


MODEL_HELP = (
    "An alias or timm name (`robvit models`), a checkpoint's path, torchvision:NAME, module:function, which "
    "is imported and called, or an ONNX or TorchScript file, which is judged as a black box."
)
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
OptionalModel = Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
OwnModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="An alias or timm name (`robvit models`), a checkpoint's path, or module:function, which is "
        "imported, called and returns a network.",
    ),
]
DataSpec = Annotated[
    str, typer.Argument(metavar="DATA", help="A dataset (`robvit data list`) or a folder of images.")
]
ShardFolder = Annotated[Path, typer.Option("--out", help="Folder for shards and record.")]
ReportFolder = Annotated[Path, typer.Option("--out", help="Folder for record and report.")]
CheckpointPath = Annotated[Path, typer.Option("--out", help="Where the checkpoint is written.")]
ImageSize = Annotated[
    int | None,
    typer.Option(
        "--img-size",
        min=1,
        help="Side of the images in pixels; the model's own if left out.",
        metavar="PIXELS",
    ),
]
Architecture = Annotated[
    str | None,
    typer.Option("--arch", help="The network in a checkpoint that does not name it, such as xcit-s12."),
]
Normalise = Annotated[
    str | None,
    typer.Option(
        "--normalise",
        help="How pixels in [0,1] are normalised for a model that does not say: imagenet, none or MEAN/STD.",
        metavar="imagenet|none|MEAN/STD",
    ),
]
Resize = Annotated[
    str | None,
    typer.Option(
        "--resize",
        **choice("squash", "crop"),
        help="How images become square: squash them whole, or crop the middle as for ImageNet; if left out "
        "as for what the model carries, else squash.",
    ),
]
Head = Annotated[Path | None, typer.Option("--head", help="A head from `robvit train head`.")]
Tokens = Annotated[
    Path | None, typer.Option("--tokens", help="Tokens from `robvit robustify` that harden the model.")
]
Lora = Annotated[Path | None, typer.Option("--lora", help="Factors from `robvit robustify --method lora`.")]
Adapters = Annotated[Path | None, typer.Option("--adapters", help="Adapters from `robvit train tora`.")]
Split = Annotated[
    str | None,
    typer.Option("--split", help="The split to test on; test or validation if left out."),
]
TrainSplit = Annotated[
    str | None,
    typer.Option(
        "--split",
        help="The split to learn from: train if left out, or learn, four fifths of a folder without splits.",
    ),
]
HardenSplit = Annotated[
    str | None,
    typer.Option(
        "--split", help="The split to learn from: train if left out, or all of a folder without splits."
    ),
]
Norm = Annotated[str, typer.Option("--norm", **choice(*NORMS), help="The norm of the perturbation.")]
NormOrPatch = Annotated[
    str,
    typer.Option(
        "--norm", **choice(*THREATS), help="The norm of the perturbation, or patch: a square of any pixels."
    ),
]
Eps = Annotated[
    str,
    typer.Option(
        "--eps", help="The budget in pixels, such as 8/255 or 0.5; at most 1 for linf, the side of a patch."
    ),
]
AttackSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting of the attack, such as --set steps=20; repeatable."
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        **choice(*PRECISIONS),
        help="Precision of the attack, /plain without fused attention; auto probes what is fastest. "
        "Successes are always confirmed in fp32.",
    ),
]
TrainingPrecision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        **choice(*PRECISIONS),
        help="Precision of the training, /plain without fused attention; auto, the recipes' own, probes what "
        "is fastest. The checkpoint is judged in fp32.",
    ),
]
Compiler = Annotated[
    str | None,
    typer.Option(
        "--compile",
        help="Compile MODEL first, by inductor, say, or inductor/padded for batches of few sizes; meant for "
        "GPUs.",
    ),
]
WithSecret = Annotated[
    bool, typer.Option("--with-secret", help="Yes, the file shall carry the secret tokens.")
]
Seed = Annotated[int, typer.Option("--seed", help="Decides every random draw.")]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="At most this many images, drawn by a fixed seed.", metavar="N"),
]
BatchSize = Annotated[int, typer.Option("--batch", min=1, help="Images in one pass.", metavar="N")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is already there.")]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        **choice("auto", "cpu", "cuda", then=_choose_device),
        help="Where to compute; auto takes a GPU if there is one.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        callback=_choose_threads,
        help="Processor threads; if left out as many as there are cores, or fewer where a probe of long "
        "work finds these faster.",
        metavar="N",
    ),
]
