"""Slips at the keyboard are answered before torch is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from robvit import cli

SAMPLE = ["robvit-mini", "sample"]

# What is typed, and what the answer says.
SLIPS = [
    (["attack", *SAMPLE, "--attack", "pgdd"], "did you mean pgd"),
    (["attack", *SAMPLE, "--eps", "8"], "eps is in pixels, 0 or more and at most 1, got 8; write 8/255"),
    (["attack", *SAMPLE, "--eps", "eight"], "expected a number such as 8/255"),
    (["attack", *SAMPLE, "--eps", "inf"], "pgd needs a finite eps"),
    (["attack", *SAMPLE, "--norm", "l3"], "--norm must be linf, l2, l1 or patch, got 'l3'"),
    (["attack", *SAMPLE, "--attack", "cw_l2"], "cw_l2 works in l2, got linf"),
    (["attack", *SAMPLE, "--set", "step=3"], "no setting of pgd is called 'step'"),
    (["attack", *SAMPLE, "--set", "steps=-3"], "steps must be a whole number from 1, got -3"),
    (["attack", *SAMPLE, "--set", "steps"], "a setting looks like steps=20"),
    (["attack", *SAMPLE, "--limit", "0"], "--limit"),
    (["attack", *SAMPLE, "--surrogate", "robvit-minni"], "did you mean robvit-mini"),
    (["attack", *SAMPLE, "--head", "nosuch.safetensors"], "no head at nosuch.safetensors"),
    (["attack", *SAMPLE, "--tokens", "nosuch.safetensors"], "no tokens at nosuch.safetensors"),
    (["attack", *SAMPLE, "--resize", "stretch"], "--resize must be squash or crop, got 'stretch'"),
    (["attack", *SAMPLE, "--precision", "fp8"], "--precision must be auto, fp32, bf16, fp16"),
    (["train", "mini", "--precision", "fp8"], "--precision must be auto, fp32, bf16, fp16"),
    (["evaluate", *SAMPLE, "--compile", "inductr"], "torch has no compiler called 'inductr'"),
    (["attack", *SAMPLE, "--device", "gpu"], "--device must be auto, cpu or cuda"),
    (["attack", *SAMPLE, "--out", __file__], "--out must be a folder"),
    (["attack", "robvit-mini", "smaple"], "no dataset is called 'smaple'; did you mean sample"),
    (["attack", "robvit-mini", "sample?corruption=smog:3"], "no corruption is called 'smog'"),
    (["attack", "robvit-mini", "masks:.?viod=3"], "no option of masks is called 'viod'"),
    (["attack", "robvit-mini", "./nowhere"], "got nowhere, which does not exist"),
    (["attack", *SAMPLE, "--head", "x" * 400], "cannot be a path (File name too long)"),
    (["attack", *SAMPLE, "--out", "x" * 400], "cannot be a path (File name too long)"),
    (["attack", "robvit-mini", "~nobody-at-all/x"], "cannot be a path (Could not determine home"),
    (["evaluate", "~nobody-at-all/x.pt"], "no file at ~nobody-at-all/x.pt"),
    (["attack", *SAMPLE, "--attack", "nosuch:mine"], "there is no module nosuch"),
    (["attack", "nosuch:model", "sample"], "there is no module nosuch"),
    (["attack", "robvit-mini", "nosuch:data"], "no dataset is called 'nosuch'"),
    (["curve", *SAMPLE, "--eps", "1/255,8"], "eps is in pixels, 0 or more and at most 1, got 8"),
    (["curve", *SAMPLE, "--attack", "pgd"], "smallest perturbation in linf: fab, fab_t, pgd_min; got pgd"),
    (["curve", *SAMPLE, "--set", "stepz=3"], "no setting of pgd_min is called 'stepz'"),
    (["attack", *SAMPLE, "--compile", "indctor"], "torch has no compiler called 'indctor'"),
    (["evaluate", *SAMPLE, "--split", "tset"], "sample has the splits train and test, got 'tset'"),
    (["evaluate", "robvit-mini", ".", "--split", "tset"], "has no split called 'tset'"),
    (["evaluate", "nosuch"], "no model is called 'nosuch'"),
    (["evaluate", "torchvision:nosuch"], "torchvision has no network called 'nosuch'"),
    (["evaluate", "nowhere/net.safetensors"], "no file at nowhere/net.safetensors"),
    (["evaluate", "net.safetensors", "--arch", "xcit-s13"], "no file at net.safetensors"),
    (["evaluate", *SAMPLE, "--protocol", "quick"], "did you mean quick@1"),
    (["evaluate", *SAMPLE, "--protocol", "mine.yaml"], "no protocol at mine.yaml"),
    (["evaluate", *SAMPLE, "--public", "nosuch"], "no dataset is called 'nosuch'"),
    (["train", "nosuch"], "no recipe is called 'nosuch'"),
    (["train", "mini", "--set", "lrr=1"], "no key of mini is called 'lrr'; did you mean lr"),
    (["train", "mini", "--set", "inner.stps=1"], "did you mean inner.steps"),
    (["train", "mini", "--set", "lr=fast"], "mini: lr: Value error, expected a number such as 8/255"),
    (["train", "mini", "--set", "epochs=-1"], "mini: epochs: Input should be greater than"),
    (["train", "mini", "--set", "loss=tradez"], "no training loss is called 'tradez'; did you mean trades"),
    (["train", "mini", "--loss", "tradez"], "no training loss is called 'tradez'; did you mean trades"),
    (["train", "mini", "--loss", "nosuch:loss"], "there is no module nosuch"),
    (["train", "tora", "--set", "adapters.trades=[0.9,0.1]"], "trade-offs must be rising numbers"),
    (["train", "tora", "--set", "adapters.trads=1"], "did you mean adapters.trade"),
    (["train", "head", *SAMPLE, "--kind", "linaer", "--out", "nosuch"], "did you mean linear"),
    (["train", "head", *SAMPLE, "--out", __file__], "is already there"),
    (["robustify", *SAMPLE, "--eps", "8"], "eps is in pixels"),
    (["robustify", *SAMPLE, "--preset", "papper"], "--preset must be paper, deep or reference, got 'papper'"),
    (["robustify", *SAMPLE, "--attack", "feture@2/255"], "did you mean feature"),
    (["robustify", *SAMPLE, "--layers", "0,x"], 'layers must be "all" or numbers such as 0,6'),
    (["robustify", *SAMPLE, "--method", "lora", "--set", "rnak=3"], "did you mean rank"),
    (["certify", *SAMPLE, "--patch", "abc"], "a patch is a number of pixels, such as 32"),
    (["certify", *SAMPLE, "--patch", "-3"], "--patch must be 1 pixel or more, got -3"),
    (["certify", *SAMPLE, "--l2", "-1"], "--l2 must be a radius above 0"),
    (["app", "--tokens", "nosuch"], "no tokens at nosuch"),
    (["reproduce", "nosuch"], "no study is called 'nosuch'"),
    (["reproduce", "rob-table2", "--set", "steps=abc"], "steps must be a number from 0, got 'abc'"),
    (["reproduce", "xcit-table7", "--set", "sets=flowers"], "sets must be a list, such as"),
    (["reproduce", "rob-table2", "--set", "stepz=3"], "did you mean steps"),
    (["reproduce", "xcit-table1", "--pool", "x", "--images", "3"], "--images is decided by the records"),
    (["explain", "robvit-mini", "sample:0", "--figure", "nosuch"], "no figure is called 'nosuch'"),
    (["explain", "robvit-mini", "nosuch.png"], "expected an image's file, or DATA:NUMBER"),
    (["doctor", *SAMPLE, "--check", "nosuch"], "no check is called 'nosuch'"),
    (["doctor", *SAMPLE, "--eps", "8"], "eps is in pixels"),
    (["demo", "--eps", "8"], "eps is in pixels"),
    (["export", "robvit-mini", "--format", "onx"], "--format must be onnx, torch"),
    (["tokens", "show", "nosuch.safetensors"], "no tokens at nosuch.safetensors"),
    (["compare", "nowhere", "nowhere"], "no record at nowhere"),
    (["report", "nowhere"], "no record at nowhere"),
    (["serve", "nosuch"], "no model is called 'nosuch'"),
    (["weights", "get", "nosuch"], "no model is called 'nosuch'"),
    (["data", "show", "nosuch"], "no dataset is called 'nosuch'"),
    (["nosuch"], "nosuch"),
    (["attack", *SAMPLE, "--eps", "8/0"], "expected a number such as 8/255 or 0.03, got '8/0'"),
    (["attack", *SAMPLE, "--set", "loss=marign"], "no loss is called 'marign'; did you mean margin"),
    (["attack", "robvit-mini", "sample?corruption=fog:9"], "with a severity of 1 to 5, got 'fog:9'"),
    (["train", "mini", "--set", "inner.attack=pgdd"], "no attack is called 'pgdd'"),
    (["challenge", *SAMPLE, "--defence", "nosuch:mine"], "there is no module nosuch"),
    (["challenge", *SAMPLE, "--defence", "json:loads", "--split", "tset"], "splits train and test"),
    (["curve", *SAMPLE, "--split", "tset"], "sample has the splits train and test, got 'tset'"),
    (["doctor", *SAMPLE, "--eps", "0"], "eps is in pixels, more than 0"),
    (["evaluate", *SAMPLE, "--protocol", "clean@1", "--robustbench", "x.json"], "wants attacks"),
    (["robustify", *SAMPLE, "--lr", "-1"], "--lr must be above 0"),
    (["robustify", *SAMPLE, "--psnr", "-4"], "--psnr must be decibels"),
    (["robustify", *SAMPLE, "--task", "5"], "--task must be a share of the objective, 0 to 1, got 5"),
    (["robustify", *SAMPLE, "--adaptive", "--adaptive-share", "2"], "must be above 0 and at most 1"),
    (["robustify", *SAMPLE, "--task", "0.5", "--pool", "2"], "leave out --pool or --task"),
    (["certify", *SAMPLE, "--patch", "2", "--windows", "many"], "windows are a number along each side"),
    (["certify", *SAMPLE, "--l2", "0.5", "--sigma", "0"], "--sigma must be above 0"),
    (["certify", *SAMPLE, "--l2", "0.5", "--alpha", "2"], "--alpha must be a chance between 0 and 1"),
    (["serve", "robvit-mini", "--patch", "0"], "--patch must be 1 pixel or more, got 0"),
    (["app", "--host", "192.0.2.1"], "so visitors need a password"),
    (["push", "nowhere", "me/mine"], "nothing at nowhere; give the file or folder of a result"),
    (["push", "nowhere", "mine"], "a repository is OWNER/NAME, got 'mine'"),
    (["attack", *SAMPLE, "--target", "catt"], "no target is called 'catt'; did you mean cat"),
    (["attack", *SAMPLE, "--target", "10"], "no target is called '10'"),
    (["attack", *SAMPLE, "--attack", "square", "--target", "cat"], "square aims at no class"),
    (["attack", *SAMPLE, "--img-size", "33"], "multiple of 4 pixels, the side of its patches, got 33"),
    (["train", "head", "dinov2-small", "sample", "--img-size", "8"], "multiple of 14 pixels"),
    (["attack", *SAMPLE, "--attack", "segpgd"], "segpgd needs masks, sample has none; take shapes"),
    (["attack", "robvit-mini", "shapes"], "pgd needs labels, shapes has masks (masks are attacked by segpgd"),
    (["robustify", *SAMPLE, "--layers", "0,4"], "rising numbers in 0..3, the blocks of robvit-mini"),
    (["robustify", *SAMPLE, "--task", "0.5"], "a linear head learns along; give robvit-mini one by --head"),
    (
        ["robustify", "dinov2-small", "--attack", "feature", "--attack", "pgd@2/255"],
        "pgd attacks a classifier",
    ),
    (["models", "dinov33"], "no timm model is called 'dinov33'"),
    (
        ["attack", *SAMPLE, "--surrogate", "dinov2-small"],
        "dinov2-small has no classifier; `robvit train head`",
    ),
    (["evaluate", "dinov2-small"], "dinov2-small has no classifier; `robvit train head` makes one"),
    (["evaluate", "vit-base"], "vit-base tells 1000 classes apart, the images have 10"),
    (["curve", "robvit-mini", "forms"], "robvit-mini tells 10 classes apart, the images have 8"),
    (["doctor", "dinov2-base", "sample"], "dinov2-base has no classifier"),
    (["challenge", "xcit-s12", "sample", "--defence", "json:loads"], "xcit-s12 tells 1000 classes apart"),
    (
        ["train", "head", "robvit-mini", "shapes"],
        "learns from labels, shapes has other targets; take --kind seg",
    ),
    (["train", "head", *SAMPLE, "--kind", "segmentation"], "learns from masks, sample has other targets"),
    (["explain", "robvit-mini", "sample:0", "--attack", "segpgd"], "segpgd attacks pixels, robvit-mini ret"),
    (["certify", *SAMPLE, "--patch", "3"], "nothing can be certified by dropping tokens of robvit-mini"),
    (["serve", "xcit-s12", "--patch", "3"], "nothing can be certified by dropping tokens of xcit-s12"),
    (["robustify", "robvit-mini", "shapes", "--attack", "pgd"], "pgd needs labels, shapes has masks"),
    (["check", "dinov2-small", "sample"], "dinov2-small has no classifier"),
    (["review", "dinov2-small", "sample"], "dinov2-small has no classifier"),
]
# Options that would do nothing beside the others, and what the answer says.
IGNORED = [
    (["evaluate", *SAMPLE, "--gallery", "sample"], "--gallery is for --task retrieval"),
    (["evaluate", *SAMPLE, "--gallery-limit", "8"], "--gallery-limit is for --task retrieval"),
    (["evaluate", *SAMPLE, "--steps", "3"], "--steps is for --task retrieval; a protocol says"),
    (["evaluate", *SAMPLE, "--eps", "2/255"], "--eps is for --task retrieval; a protocol says"),
    *(
        (["evaluate", *SAMPLE, "--task", "retrieval", option, value], f"{option} is for --task classes")
        for option, value in (
            ("--protocol", "quick@1"),
            ("--head", "head.safetensors"),
            ("--adapters", "adapters.safetensors"),
            ("--public", "sample"),
            ("--normalise", "none"),
            ("--precision", "auto"),
            ("--compile", "inductor"),
            ("--robustbench", "x.json"),
        )
    ),
    (
        ["robustify", *SAMPLE, "--method", "lora", "--preset", "paper"],
        "--preset is for tokens, the method is",
    ),
    (["robustify", *SAMPLE, "--method", "full", "--count", "3"], "--count is for tokens, the method is full"),
    (["robustify", *SAMPLE, "--method", "lora", "--pool", "1"], "--pool is for tokens"),
    (["robustify", *SAMPLE, "--method", "lora", "--precision", "bf16/plain"], "bf16/plain is for tokens"),
    (["robustify", *SAMPLE, "--method", "full", "--rank", "4"], "--rank is for lora, the method is full"),
    (["robustify", *SAMPLE, "--rank", "4"], "--rank is for lora and full, the method is tokens"),
    (["robustify", *SAMPLE, "--set", "rank=4"], "--set is for lora and full, the method is tokens"),
    (["robustify", *SAMPLE, "--inner-steps", "3"], "--inner-steps goes with --adaptive"),
    (["robustify", *SAMPLE, "--adaptive-share", "1"], "--adaptive-share goes with --adaptive"),
    (["certify", *SAMPLE, "--l2", "0.5", "--windows", "3"], "--windows is for --patch"),
    (["certify", *SAMPLE, "--l2", "0.5", "--maps"], "--maps is for --patch"),
    (["certify", *SAMPLE, "--patch", "2", "--sigma", "0.5"], "--sigma is for --l2"),
    (["certify", *SAMPLE, "--patch", "2", "--embedding"], "--embedding is for --l2"),
    (["train", "head", *SAMPLE, "--draws", "4"], "--draws goes with --patch"),
    (["train", "head", *SAMPLE, "--windows", "3"], "--windows goes with --patch"),
    (["train", "mini", "--extra", "sample"], "--extra and --set extra_share=0.5, say, go together"),
    (["train", "mini", "--set", "extra_share=0.5"], "go together; got --extra None"),
    (["train", "tora", "--extra", "sample"], "adapters learn from the data alone; leave --extra out"),
    (["serve", "robvit-mini", "--windows", "3"], "--windows goes with --patch"),
]
# Lists that are read from the table of names.
LISTS = [["attacks"], ["reproduce"], ["data", "list"], ["models"], ["models", "xcit"], ["weights", "list"]]

RUN = """
import contextlib, functools, io, json, sys
import typer.main
from robvit import cli

typer.main.get_command = functools.cache(typer.main.get_command)  # once for all that is typed

def watch(event, arguments):
    if event == "import" and arguments[0] in ("torch", "timm", "gradio"):
        raise SystemExit(f"loads {arguments[0]}")

sys.addaudithook(watch)
answers = []
for typed in json.load(sys.stdin):
    sys.argv, code, printed = ["robvit", *typed], 0, io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    answers.append([code, printed.getvalue()])
json.dump(answers, sys.stdout)
"""


def answers(typed: list[list[str]], folder: Path) -> list[tuple[int | str, str]]:
    """Exit code and all that was printed, for each command in turn; none may begin to load torch."""
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(typed),
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"},
    )
    return [tuple(answer) for answer in json.loads(done.stdout)]


PROTOCOL = "name: mine@1\nabout: a test\nthreat: {norm: linf, eps: 8/255}\n"
# What a protocol's file holds beside that, and what the answer says.
MISTAKES = [
    ("attcks: []", "no key of mine.yaml is called 'attcks'; did you mean attacks"),
    ("attacks: [{attack: pgdd}]", "did you mean pgd"),
    (
        "attacks: [{attack: pgd, settings: {step: 3}}]",
        "no setting of pgd is called 'step'; did you mean steps",
    ),
    ("attacks: [{attack: pgd, settings: {steps: -3}}]", "steps must be a whole number from 1, got -3"),
    ("threat: {norm: linf, eps: 8}", "eps is in pixels"),
]


@pytest.mark.parametrize(("line", "wanted"), MISTAKES)
def test_mistakes_in_a_protocols_file_are_answered_without_torch(
    line: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = PROTOCOL if not line.startswith("threat") else PROTOCOL.partition("threat")[0]
    Path("mine.yaml").write_text(kept + line)
    monkeypatch.setattr(cli.evaluate, "check_model", pytest.fail)  # asked after the protocol, before torch
    done = CliRunner().invoke(cli.app, ["evaluate", *SAMPLE, "--protocol", "mine.yaml"])
    assert wanted in str(done.exception)


@pytest.mark.slow
@pytest.mark.parametrize("slips", [SLIPS, IGNORED], ids=["slips", "ignored"])
def test_slips_are_answered_without_torch(slips: list[tuple[list[str], str]], tmp_path: Path) -> None:
    found = answers([typed for typed, _ in slips], tmp_path)
    for (typed, wanted), (code, printed) in zip(slips, found, strict=True):
        plain = " ".join(printed.replace("│", " ").split())
        assert code == 2, (typed, printed)
        assert wanted in plain, (typed, printed)
        assert "Traceback" not in printed
    assert not list(tmp_path.iterdir()), "nothing is left behind"


@pytest.mark.slow
def test_what_is_no_record_is_refused_without_torch(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("{}")
    typed = [
        [*words, "record.json"] for words in (["card"], ["report"], ["verify"], ["compare", "record.json"])
    ]
    for code, printed in answers(typed, tmp_path):
        assert code == 2
        assert "expected a record of schema" in printed


# The format that a file names, the option it is given for, and what the answer says.
OTHER_KINDS = [
    ("robvit-tokens-1", "head", "does not hold a head of format robvit-head-1, got tokens; `robvit train"),
    ("robvit-head-1", "tokens", "does not hold tokens of format robvit-tokens-1, got a head"),
    ("robvit-token-pool-1", "lora", "does not hold a LoRA of format robvit-lora-1, got a pool of tokens"),
    ("mine", "adapters", "does not hold adapters of format robvit-adapters-2, got the format 'mine'"),
    ("", "head", "is not a file for --head that can be read"),
]


@pytest.mark.slow
def test_a_file_of_another_kind_is_refused_without_torch(tmp_path: Path) -> None:
    typed = []
    for held, option, _ in OTHER_KINDS:
        header = json.dumps({"__metadata__": {"format": held}}).encode() if held else b"{"
        (tmp_path / f"{held}.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        typed.append(["attack", *SAMPLE, f"--{option}", f"{held}.safetensors"])
    wants = [*(wanted for *_, wanted in OTHER_KINDS), "does not hold tokens of format robvit-tokens-1, got a"]
    typed.append(["tokens", "show", "robvit-head-1.safetensors"])
    for wanted, (code, printed) in zip(wants, answers(typed, tmp_path), strict=True):
        assert code == 2, printed
        assert wanted in " ".join(printed.split())


def commands(app: typer.Typer, above: tuple[str, ...] = ()) -> list[list[str]]:
    """Every command as it is typed."""
    found = [[*above, c.name or c.callback.__name__.strip("_")] for c in app.registered_commands]
    for group in app.registered_groups:
        found += [[*above, group.name], *commands(group.typer_instance, (*above, group.name))]
    return found


@pytest.mark.slow
def test_help_and_lists_are_shown_without_torch(tmp_path: Path) -> None:
    typed = [[*command, "--help"] for command in [[], *commands(cli.app)]] + LISTS
    for command, (code, printed) in zip(typed, answers(typed, tmp_path), strict=True):
        assert code == 0, (command, printed)
        assert len(printed) > 200, command
        assert "<bool>" not in printed
