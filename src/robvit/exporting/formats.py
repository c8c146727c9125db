"""A model as a file for other runtimes: ONNX, a `torch.export` program, a timm or Hugging Face checkpoint.

Whatever the format, the file is written aside, opened again as its users would open it, and compared
with the model on real images; only then does it get its name. ONNX and torch files take pixels
(B 3 H W) in [0,1] of one size, in batches of any size, normalise inside, and answer with `features`
(B 1+N D), what `Model.features` gives, and, where there are classes, `logits`; behind a defence with
`logits` alone.
"""

from __future__ import annotations

import importlib.util
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from robvit import __version__
from robvit.attention import KEPT
from robvit.backbones import zoo
from robvit.backbones.folders import open_folder
from robvit.backbones.huggingface import loading_line, write_transformers
from robvit.backbones.model import Model
from robvit.backbones.trained_on import fitting
from robvit.backbones.validate import load_strict
from robvit.defenses.bake import save_baked
from robvit.defenses.tokens import RobustTokens
from robvit.defenses.tora.modules import Adapters
from robvit.errors import InputError, Unsupported, check_images
from robvit.exporting.parity import SAME_NETWORK, TOLERANCE, Parity, Runner, answers, checked
from robvit.files import folder_written_whole, written_whole

ONNX_LIMIT = 2**31 - 2**24  # bytes: a protobuf message ends at two gigabytes, and the graph needs some
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2", "timm": ".safetensors", "huggingface": ""}  # the last: a folder
WARNING = "this file carries secret robustness tokens; keep it as you keep a key"
NORMALISED_INSIDE, NORMALISED_OUTSIDE = "normalised inside", "subtract mean and divide by std first"
INTERPOLATION = "bilinear"  # of `robvit.decoding.fit`
ABOUT = "robvit.json"  # where a torch program keeps what other formats have as metadata


def export(
    model: Model,
    path: str | Path,
    format: str = "onnx",
    *,
    images: torch.Tensor,
    with_secret: bool = False,
    arch: str = "",
    defense: nn.Module | None = None,
) -> Parity:
    """Write the model in a format of `SUFFIXES`, if the file answers as it does on images (n 3 H W).

    A hardened model's file carries its secret tokens: that must be asked for, stands in the file's
    metadata, and the file is for its owner's eyes only.

    model: what is written, with its tokens, head or adapters
    path: the file, or the folder of "huggingface"
    format: "onnx", "torch" (a `torch.export` program), "timm" (a plain checkpoint) or "huggingface" (what
        transformers' `from_pretrained` opens)
    images: those on which the file is compared with the model
    with_secret: yes, the file shall carry the secret tokens
    arch: the network of a model that was loaded from a path
    defense: what answers with logits (B K) in the model's place, without a branch:
        `defend_patches(model, 14).exportable()`; "onnx" and "torch" only
    """
    if format not in SUFFIXES:
        raise InputError(f"format must be {', '.join(SUFFIXES)}, got {format!r}")
    if model.pool is not None:
        raise Unsupported(
            "a pool draws a set of tokens for every request, which no file can do by itself; "
            "export one set, or serve the pool with `robvit serve`"
        )
    hardened = model.extra is not None
    if hardened and not with_secret:
        raise InputError("the file would carry the secret tokens; say --with-secret if that is meant")
    if defense is not None and format not in ("onnx", "torch"):
        raise Unsupported(
            f"a {format} checkpoint holds a network, not what is done around it; use onnx or torch"
        )
    check_images(images)
    model = _settled(model)
    facts = _facts(model, arch)
    asked = model if defense is None else defense
    if defense is not None:
        facts["defence"] = str(defense)
        del facts["features"]
    traced = {"onnx": _write_onnx, "torch": _write_torch}
    kept = {"timm": _write_timm, "huggingface": _write_huggingface}
    place = folder_written_whole if format == "huggingface" else written_whole
    with torch.no_grad(), place(path, mode=0o600 if hardened else 0o644) as aside:
        if format in traced:
            run, tolerance = traced[format](asked, aside, facts, images), TOLERANCE
        else:
            run, tolerance = kept[format](model, aside, facts), SAME_NETWORK
        return checked(asked, run, images, f"the {format} file", tolerance)


def loading_lines(path: str | Path, format: str) -> list[str]:
    """The lines of Python that use an exported file without robvit."""
    from safetensors import safe_open

    if format == "onnx":
        return [f"net = onnxruntime.InferenceSession({str(path)!r})", 'net.run(None, {"pixels": x})']
    if format == "torch":
        return [f"net = torch.export.load({str(path)!r}).module()", "net(x)"]
    if format == "huggingface":
        return [loading_line(path)]
    with safe_open(path, "pt") as file:
        facts = file.metadata()
    wishes = "".join(f", {k}={v!r}" for k, v in json.loads(facts["timm_options"]).items())
    return [
        f"net = timm.create_model({facts['timm_name']!r}{wishes})",
        f"net.load_state_dict(safetensors.torch.load_file({str(path)!r}))",
    ]


class _Graph(nn.Module):
    """What is traced: pixels to answers."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(answers(self.network, pixels).values())


def _settled(model: Model) -> Model:
    """A twin that shares the weights, in eval mode; of adapters for many trade-offs, the present one."""
    held = model.adapters
    return model.replace(adapters=held.settled() if isinstance(held, Adapters) else held).eval()


def _facts(model: Model, arch: str) -> dict[str, str]:
    """What stands beside the weights in every format; a path says nothing to others, so none is named."""
    shape = f"(batch, 3, {model.input_size[0]}, {model.input_size[1]})"
    facts = {
        "producer": f"robvit {__version__}",
        "model": arch or (Path(model.name).name if zoo.is_path(model.name) else model.name),
        "fingerprint": model.fingerprint(),
        "input": f"pixels: RGB, float32 {shape} in [0,1]; {NORMALISED_INSIDE}",
        "features": "class token, then " * model.has_class_token + f"patch tokens, width {model.width}",
        "img_size": json.dumps(list(model.input_size)),
        "resize": fitting(model, None),
        "interpolation": INTERPOLATION,
        "mean": json.dumps(model.mean.flatten().tolist()),
        "std": json.dumps(model.std.flatten().tolist()),
    }
    if model.classes:
        facts["logits"] = f"{model.classes} classes"
    if model.class_names:
        facts["classes"] = json.dumps(model.class_names)
    if model.adapters is not None:
        facts["trade_off"] = f"{model.trade_off:g}"
    if model.extra is not None:
        facts["warning"] = WARNING
    return facts


def _program(network: nn.Module, facts: dict[str, str], images: torch.Tensor) -> torch.export.ExportedProgram:
    """The traced network, compared; it holds no image and no path of this machine."""
    shapes = ({0: torch.export.Dim("batch")},)
    example = torch.zeros(2, *images.shape[1:])  # it is kept in the file
    try:
        program = torch.export.export(_Graph(network), (example,), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # torch refuses what it cannot trace in as many ways as there are networks
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise Unsupported(f"torch.export cannot trace {facts['model']}: {reason}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    checked(network, program.module(), images, "the traced program")
    return program


def _write_torch(network: nn.Module, aside: Path, facts: dict[str, str], images: torch.Tensor) -> Runner:
    program = _program(network, facts, images)
    with aside.open("wb") as file:
        torch.export.save(program, file, extra_files={ABOUT: json.dumps(facts, indent=2)})
    loaded: Runner = torch.export.load(io.BytesIO(aside.read_bytes())).module()
    return loaded


def _write_onnx(network: nn.Module, aside: Path, facts: dict[str, str], images: torch.Tensor) -> Runner:
    for needed in ("onnxscript", "onnxruntime"):
        if importlib.util.find_spec(needed) is None:
            raise Unsupported(f"ONNX needs {needed}; install it with: pip install 'robvit[export]'")
    import onnxruntime

    size = sum(tensor.nbytes for tensor in network.state_dict().values())
    if size > ONNX_LIMIT:
        raise Unsupported(
            f"an ONNX file holds at most 2 GB, {facts['model']} has {size / 1e9:.1f} GB; use the torch format"
        )
    names = list(answers(network, images[:1]))
    _save_onnx(_program(network, facts, images), aside, facts, names)
    session = onnxruntime.InferenceSession(aside, providers=["CPUExecutionProvider"])
    return lambda x: [torch.from_numpy(answer) for answer in session.run(names, {"pixels": x.numpy()})]


def _save_onnx(
    program: torch.export.ExportedProgram, path: Path, facts: dict[str, str], names: list[str]
) -> None:
    """Write a traced model as ONNX; its copies of the weights are gone before the file is opened."""
    with _quiet("onnxscript", "onnx_ir"):
        made: Any = torch.onnx.export(
            program,
            (),
            input_names=["pixels"],
            output_names=names,
            dynamic_shapes=({0: "batch"},),
            verbose=False,
        )
    made.model.metadata_props.update(facts)
    made.save(path, external_data=False)


def _write_timm(model: Model, aside: Path, facts: dict[str, str]) -> Runner:
    if model.head is not None or model.adapters is not None:
        raise Unsupported("a plain timm network has no place for a head or adapters; use onnx or torch")
    state = {name: tensor.contiguous() for name, tensor in model.net.state_dict().items()}
    if any(name.endswith(f".{KEPT}") for name in state):
        raise Unsupported("a plain timm network has no place for trained attention scales; use onnx or torch")
    facts["input"] = facts["input"].replace(NORMALISED_INSIDE, NORMALISED_OUTSIDE)
    known = zoo.resolve(facts["model"])
    name, options = known.timm_name.split(".")[0], {**known.options}
    if model.extra is not None:
        tokens = RobustTokens(model.extra, model.fingerprint(), layers=model.layers)
        options |= save_baked(model, tokens, aside, timm_name=name, about=facts)
    else:
        net: Any = model.net
        options |= {"num_classes": int(net.num_classes)}
        options |= {"img_size": list(model.input_size)} if model.fixed_size else {}
        normalise = [json.loads(facts[key]) for key in ("mean", "std")]
        build = {
            "img_size": list(model.input_size),
            "num_classes": options["num_classes"],
            "normalise": normalise,
            "resize": facts["resize"],
            "original": model.original_fingerprint or None,
            "names": model.class_names or None,
        }
        facts = facts | {"timm_name": name, "timm_options": json.dumps(options), "build": json.dumps(build)}
        save_file(state, aside, facts)
    plain = zoo.build(zoo.resolve(name), **options)
    load_strict(plain, load_file(aside), f"timm's {name}")
    twin = Model(plain, mean=model.mean, std=model.std, input_size=model.input_size)
    return twin.eval().features_and_logits


def _write_huggingface(model: Model, aside: Path, facts: dict[str, str]) -> Runner:
    facts["input"] = facts["input"].replace(NORMALISED_INSIDE, NORMALISED_OUTSIDE)
    write_transformers(model, aside, facts)
    return open_folder(str(aside)).features_and_logits


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Keep libraries from telling of every optimisation they left out."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
