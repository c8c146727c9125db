"""Every command and every block of code in README and docs is run, small; the documentation builds.

The one mechanism: a page is run from top to bottom in a folder of its own. In every command the words
of STANDS_FOR are exchanged (a big model for a bundled one, a placeholder for a file made here), and the
options of SMALLER and the settings of SMALL are appended, which win over those before them. So names,
options, settings and files from command to command are the printed ones, and only the scale is not.
What cannot run here stands in NOT_RUN with its reason; its options are checked all the same. A block in
no known language, or an indented line that is no command, fails.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import runpy
import subprocess
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

import robvit
from helpers import plain_vit
from helpers.docs_blocks import (
    LANGUAGES,
    PAGES,
    ROOT,
    STARTS,
    Block,
    blocks,
    check_command,
    found_command,
    inline,
    words,
)
from robvit.attacks import ATTACKS, AttackWarning
from robvit.backbones.families import FAMILIES
from robvit.backbones.huggingface import write_transformers
from robvit.cli import app
from robvit.evaluation import protocol
from robvit.studies import STUDIES
from robvit.studies.aas import controls as aas_controls
from robvit.training import finetune_plan
from robvit.training.losses import LOSSES
from robvit.training.recipe import make_recipe

STANDS_FOR = {
    "dinov2-small": "robvit-mini",
    "vit-base": "robvit-mini",
    "hf:facebook/dinov2-small": "./tiny-hf",
    "MODEL": "robvit-mini",
    "DATA": "sample",
    "cifar10": "sample",
    "/data/imagenet": "sample",
    "IMAGENET": "images",
    "imagenet:PATH": "sample",
    "learn_data=imagenet:OTHER": "learn_data=sample",
    "IMAGENET_FOLDER": "images",
    "IMAGES": "images",
    "camvid:PATH": "shapes",
    "segmentation_data=camvid:FOLDER": "segmentation_data=shapes",
    "HEAD": "head.safetensors",
    "tokens=dinov2_small.pt": "tokens=published.pt",
    "scale=paper": "scale=small",
    "rob-tokens-small@1": "levels.yaml",  # the same levels with shorter trainings, written here
    "quick@1": "quick.yaml",  # the same attacks with fewer steps
    "linf-1-short@1": "short.yaml",
    "linf-1-white-box@1": "white-box.yaml",
}

TRAINING = (
    "--model robvit-mini --data sample --limit 24 --set batch=8 --set epochs=1 --set warmup=0 "
    "--set eps_warmup=0 --set cooldown=0 --set workers=0 --set inner.steps=1 --set judge_steps=1 "
    "--set validation=8"
)
SMALLER = {
    "demo": "--model robvit-mini --head 40 --learn 16 --judge 2 --steps 1 --attack-steps 1",
    "robustify": "--limit 8 --steps 1 --attack-steps 1",
    "attack": "--limit 2",
    "check": "--limit 2",
    "evaluate": "--limit 2 --batch 2",
    "doctor": "--limit 4 --steps 4 --restarts 2 --queries 2 --draws 1",
    "explain": "--set steps=1",
    "export": "--limit 2",
    "reproduce": "--images 2 --model robvit-mini",
    "tokens rotate": "--limit 12 --judge 4 --steps 1 --bound -1",
    "train head": "--limit 20",
    "certify": "--limit 2",
    "curve": "--limit 2 --set steps=1 --set rounds=1",
    "challenge": "--limit 2 --steps 1 --samples 2 --queries 2",
    "train recipe": TRAINING,
}
TUNING = ("--limit", "20", "--batch", "4", "--set", "judge_steps=1", "--set", "validations=1")
# Settings of studies, attacks and TORA that decide how long one takes.
SMALL = {
    "steps": "1",
    "attack_steps": "1",
    "queries": "2",
    "targets": "2",
    "scenes": "4",
    "few": "1",
    "learn": "40",
    "head": "40",
    "epochs": "1",
    "fusion_epochs": "1",
    "inner_steps": "1",
    "token_steps": "1",
    "token_learn": "8",
    "counts": "[1]",
    "levels": "[8]",
    "places": "[0.5]",
    "methods": '["mart"]',
    "between": "[2]",
    "periods": "[5]",
    "values": "[0.05]",
    "trades": "[0.1,0.9]",
    "starts": "1",
    "scale_steps": "1",
    "fit_images": "4",
}
TRAINED = '"batch": 8, "validation": 8, "inner.steps": 1, "judge_steps": 1'
SMALLER_PYTHON = {
    '"dinov2-small-robust"': '"robvit-mini-robust"',
    'load("dinov2-small", **parts)': 'load("robvit-mini", **parts)',
    'load("dinov2-small", head=': 'load("robvit-mini", head=',
    'load("dinov2-small", tokens=': 'load("robvit-mini", tokens=',
    'open_data("IMAGES"': 'open_data("images"',
    "hf:facebook/dinov2-small": "./tiny-hf",
    "limit=64": "limit=2",
    "limit=16": "limit=4",
    '"steps": 100': '"steps": 1',
    "starts=4": "starts=1",
    "limit=128": "limit=24",
    "limit=264": "limit=24",
    '"batch": 32, "validation": 64}': f"{TRAINED}}}",
    '{"batch": 32}': f"{{{TRAINED}}}",
}

NOT_RUN = {
    "robvit review": "asks every check of the doctor, for a minute; tests/report runs it",
    "robvit serve": "answers until it is stopped; tests/serve runs and asks it",
    "robvit app": "answers until it is stopped; tests/app runs it",
    "pip": "would change the environment; the extras it names are checked",
    "curl": "needs a server that answers",
    "make": "sets up an environment or takes hours; make is asked what it would do",
    "python": "benchmarks and scripts take minutes to hours; their --help knows every option that is printed",
}
EXIT = {"robvit doctor gate:model": 1}  # a red check, and the page says so

# Of the studies that pages name, only those whose files the page goes on with; tests/studies runs them all.
STUDIES_RUN = ("rob-fig5", "aas-table1")
# Of the command that several pages begin with, the file is made once; it depends on nothing of its page.
PLAIN_EXPORT = ["export", "robvit-mini", "--format", "onnx", "--out", "runs/mini.onnx", "--limit", "2"]
MADE: list[bytes] = []
QUICK = ("CONTRIBUTING.md", "docs/extending/attack", "docs/extending/backbone")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_accounted_for(page: str) -> None:
    for block in blocks(PAGES[page]):
        where = f"{page}:{block.line}: {block.text.splitlines()[0] if block.text else ''}"
        if block.kind == "command":
            assert words(block.text)[0] in STARTS, f"neither a command nor a fenced block: {where}"
        else:
            assert block.kind in LANGUAGES, f"say in which language it is: {where}"
        if block.kind == "python":
            compile(block.text, where, "exec")
        if block.kind == "toml":
            tomllib.loads(block.text)
        if block.kind == "yaml":
            content = yaml.safe_load(block.text)
            if "attacks" in content:
                protocol.Protocol(**content)
            else:
                make_recipe({key: value for key, value in content.items() if key != "base"})


@pytest.mark.parametrize("page", PAGES)
def test_robvit_knows_every_command_option_and_setting(page: str) -> None:
    printed = [(block.text, True) for block in blocks(PAGES[page]) if block.kind == "command"]
    own_attack = "--attack spsa"  # the page adds it
    for text, whole in printed + [(text, False) for text in inline(PAGES[page])]:
        if words(text)[0] == "robvit" and own_attack not in text:
            try:
                check_command(text, whole)
            except Exception as error:
                raise AssertionError(f"{page}: {text}: {error}") from error


def test_no_exchange_is_left_of_code_that_pages_do_not_print_any_more() -> None:
    code = "".join(block.text for path in PAGES.values() for block in blocks(path) if block.kind == "python")
    assert [printed for printed in SMALLER_PYTHON if printed not in code] == []


def test_links_between_files_lead_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text("utf-8")):
            assert (ROOT / link).exists(), f"{name}: {link}"


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (not page.startswith(QUICK))) for page in PAGES]
)
def test_a_page_runs_from_top_to_bottom(page: str, own_folder: Path) -> None:
    names: dict[str, Any] = _given()
    for block in blocks(PAGES[page]):
        where = f"{page}:{block.line}"
        if block.kind == "command":
            _run(block.text, where)
        elif block.title:
            (own_folder / block.title).write_text(_small_code(block.text), encoding="utf-8")
        if block.kind == "python" and not block.title:
            _execute(block, where, names)
        elif block.title.endswith(".py"):
            exec(f"import {Path(block.title).stem}", {})  # noqa: S102  our own page


def _run(command: str, where: str) -> None:
    first, *arguments = words(command)
    if first != "robvit":
        WITHOUT_RUNNING[first](arguments)
        return
    if f"robvit {arguments[0]}" in NOT_RUN:
        return
    small = smaller(arguments)
    if small == PLAIN_EXPORT and MADE:
        Path("runs").mkdir(exist_ok=True)
        Path(small[-3]).write_bytes(MADE[0])
        return
    if small[0] == "reproduce" and small[1:2] and small[1] not in STUDIES_RUN:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttackWarning)  # what a page shows may deserve one
        done = CliRunner().invoke(app, small)
    expected = next((code for start, code in EXIT.items() if command.startswith(start)), 0)
    told = f"{where}: robvit {' '.join(small)}\n{done.output[-2000:]}\n{done.exception!r}"
    assert done.exit_code == expected, told
    assert done.exception is None or isinstance(done.exception, SystemExit), told
    if small == PLAIN_EXPORT:
        MADE.append(Path(small[-3]).read_bytes())


def smaller(arguments: list[str]) -> list[str]:
    """The same command at the scale of a test."""
    exchanged = [STANDS_FOR.get(word, word) for word in arguments]
    if "--patch" in arguments or "hide=14" in arguments:  # the bundled models cannot drop tokens
        exchanged = ["plain.safetensors" if word == "robvit-mini" else word for word in exchanged]
        exchanged += ["--arch", plain_vit.ARCH]
    if exchanged != arguments and "--img-size" in exchanged:  # the bundled models have one size
        place = exchanged.index("--img-size")
        del exchanged[place : place + 2]
    names, command, rest = found_command(exchanged)
    given = command.make_context(names[-1], list(rest)).params
    added = SMALLER.get(" ".join(names), "").split()
    if names == ["evaluate"] and (given["show"] or given["pool"]):
        return exchanged
    if names == ["evaluate"] and given["task"] == "retrieval":
        added += ["--gallery-limit", "8"]
    if names == ["reproduce"]:
        if given["name"] is None:
            return exchanged
        added += _settings(STUDIES.info(given["name"]).defaults)
        added += ["--img-size", "32"] if given["name"] == "rob-choices" else []
        added += ["--data", "sample"] if given["data"] is None else []
    if names == ["export"] and given["patch"] is not None:
        added += ["--patch", "5", "--windows", "1x4"]  # few masks make a small program
    if names == ["certify"] and given["l2"] is not None:
        added += ["--samples", "4"]
    if names == ["explain"] and not given["figure"]:
        added += ["--figure", "attention", "--figure", "perturbation"]
    if names == ["robustify"] and given["adaptive"]:
        added += ["--inner-steps", "1"]
    if names == ["robustify"] and given["method"] != "tokens":
        # In a tenth of a minute a few steps are planned, see `own_folder`.
        added = [*(["--minutes", "0.1"] if given["minutes"] else ["--steps", "1"]), *TUNING]
    if names == ["robustify"] and "--out" not in exchanged:  # choices that a page lists side by side
        added += ["--out", tempfile.mkdtemp(dir=".")]
    if names == ["attack"]:
        added += _settings(ATTACKS.info(given["attack"]).defaults)
    if names == ["train", "recipe"] and given["name"] == "tora":
        added += ["--set", "adapters.trades=[0.1,0.9]", "--set", "adapters.fusion_epochs=1"]
    if names == ["train", "recipe"] and given["name"] == "xcit-mini":
        added += ["--model", "xcit-mini"]  # its patches are no other network's
    return exchanged + added


def _settings(known: Any) -> list[str]:
    # A word of the same name, such as the file of a head, decides no scale.
    chosen = [name for name in known if name in SMALL and not isinstance(known[name], str)]
    return [word for name in chosen for word in ("--set", f"{name}={SMALL[name]}")]


def _execute(block: Block, where: str, names: dict[str, Any]) -> None:
    exec(compile(_small_code(block.text), where, "exec"), names)  # noqa: S102  our own page


def _small_code(code: str) -> str:
    """The same code at the scale of a test."""
    for printed, small in SMALLER_PYTHON.items():
        code = code.replace(printed, small)
    return code


def _given() -> dict[str, Any]:
    """What a page may take for granted: a model, a few images, a threat."""
    images = robvit.data.open_data("sample", limit=2)
    x, y = images.tensors()
    threat = robvit.Threat("linf", 8 / 255)
    return {
        "robvit": robvit,
        "model": robvit.load("robvit-mini"),
        "images": images,
        "x": x,
        "y": y,
        "threat": threat,
    }


def test_studies_that_pages_name_are_run_by_the_tests_of_their_papers() -> None:
    commands = [
        words(block.text) for path in PAGES.values() for block in blocks(path) if block.kind == "command"
    ]
    named = {command[2] for command in commands if command[:2] == ["robvit", "reproduce"] and command[2:]}
    assert len(named) > 10
    for name in named:
        paper = name.partition("-")[0]
        files = [path for path in (ROOT / "tests").rglob(f"test_{paper}*.py") if path.parent.name != "docs"]
        tests = "".join(path.read_text("utf-8") for path in files)
        assert f'"{name}"' in tests or f'f"{name.rstrip("123456789")}{{n}}"' in tests, name


def _make_knows(arguments: list[str]) -> None:
    done = subprocess.run(["make", "-n", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _script_knows(arguments: list[str]) -> None:
    script, *options = arguments
    told = _help_of(script)
    for option in (word for word in options if word.startswith("--")):
        assert re.search(rf"{option}\b", told), f"{script} has no option {option}"


@functools.cache
def _help_of(script: str) -> str:
    """What a script of ours answers to --help, in this process, which has torch already."""
    told, given, path = io.StringIO(), sys.argv, list(sys.path)
    sys.argv = [script, "--help"]
    sys.path.insert(0, str((ROOT / script).parent))  # as Python does for a script
    try:
        quiet = warnings.catch_warnings(action="ignore")  # benchmarks import other libraries, with theirs
        with quiet, contextlib.redirect_stdout(told), pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = given, path
    assert not end.value.code
    return told.getvalue()


def _extras_exist(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for extra in re.findall(r"\[([\w,]+)\]", arguments[1]):
        assert set(extra.split(",")) <= set(known)


WITHOUT_RUNNING: dict[str, Callable[[list[str]], None]] = {
    "make": _make_knows,
    "python": _script_knows,
    "pip": _extras_exist,
    "curl": lambda _: None,
}


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files that placeholders stand for; what pages register is gone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(aas_controls, "CHOOSE", 2)  # images on which studies of AAS choose a factor
    monkeypatch.setattr("robvit.training.forecast.FEW", 2)  # images on which a forecast is measured
    for figure, name in (("landscape", "POINTS"), ("accumulation", "STEPS")):
        monkeypatch.setattr(f"robvit.explanation.figures.{figure}.{name}", 4)  # its passes through the model
    monkeypatch.setattr(finetune_plan, "probe", lambda *_: finetune_plan.Cost(step=1.0, validation=0.001))
    monkeypatch.setattr(finetune_plan, "LEAST_STEPS", 1)
    _write_placeholders(tmp_path)
    loaded, families = set(sys.modules), list(FAMILIES)
    entries = [(registry, dict(registry._entries)) for registry in (ATTACKS, LOSSES)]
    yield tmp_path
    for name in set(sys.modules) - loaded:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]
    FAMILIES[:] = families
    for registry, before in entries:
        registry._entries = before


def _write_placeholders(folder: Path) -> None:
    sample = robvit.data.open_data("sample", split="train", limit=20)
    for i, name in enumerate(sample.names):
        x, label = sample[i]
        place = folder / "images" / sample.classes[label] / f"{name.replace('/', '-')}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((x * 255).round().byte().permute(1, 2, 0).numpy()).save(place)
    torch.save({"rtokens": 0.01 * torch.randn(1, 10, 128)}, folder / "published.pt")
    plain_vit.save_plain_vit(folder / "plain.safetensors")
    save_file({"weight": torch.randn(10, 128), "bias": torch.zeros(10)}, folder / "my_linear.safetensors")
    (folder / "tiny-hf").mkdir()
    small = timm.create_model("vit_small_patch14_dinov2", img_size=28, depth=1, embed_dim=48, num_heads=3)
    write_transformers(robvit.Model(small), folder / "tiny-hf", {})
    levels = protocol.find("rob-tokens-small@1").model_dump(mode="json", exclude_defaults=True)
    levels["attacker_budget"] = {
        "sets": 2,
        "images": 4,
        "steps": 1,
        "batch": 2,
        "attack_steps": 1,
        "leak_steps": 1,
    }
    levels["name"] = "levels@1"
    for attack in levels["attacks"]:
        attack["settings"] = {"steps": 1}
    (folder / "levels.yaml").write_text(yaml.safe_dump(levels), encoding="utf-8")
    for name in ("quick@1", "linf-1-short@1", "linf-1-white-box@1"):
        short = protocol.find(name).model_dump(mode="json", exclude_defaults=True)
        short["name"] = f"small-{name}"  # the names of the package's own are reserved
        for attack in short["attacks"]:
            attack["settings"] = {"steps": 3} | ({"targets": 1} if attack["attack"] == "apgd_t" else {})
        (folder / STANDS_FOR[name]).write_text(yaml.safe_dump(short), encoding="utf-8")
