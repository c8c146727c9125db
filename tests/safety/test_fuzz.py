"""Loaders under damaged bytes and strange values: what comes out is a result or an error of ours.

`ROBVIT_FUZZ=5000 pytest tests/safety/test_fuzz.py` tries more; `make fuzz` tries more targets, for longer.
"""

from __future__ import annotations

import copy
import io
import json
import os
import random
import warnings
from contextlib import suppress
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from helpers.fuzz_files import FILES, YAMLS
from helpers.report_samples import rich_record
from helpers.scripts import load_script
from robvit.data.archives import unpickle
from robvit.data.decode import read_image
from robvit.errors import RobvitError
from robvit.evaluation.compare import compare, differences, open_record
from robvit.report.html import write_report

MORE = os.environ.get("ROBVIT_FUZZ")
fuzzed = settings(
    max_examples=int(MORE or 40),
    derandomize=not MORE,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

# Damage: a place as a share of the whole, what is taken out there, and what is put in.
damage = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 40), st.binary(max_size=8)), min_size=1, max_size=4
)


def damaged(data: bytes, wounds: list[tuple[float, int, bytes]]) -> bytes:
    for place, gone, put in wounds:
        at = int(place * len(data))
        data = data[:at] + put + data[at + gone :]
    return data


@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_file_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    name, write, read = FILES[kind]
    write(tmp_path / name)
    data = (tmp_path / name).read_bytes()

    @fuzzed
    @given(damage)
    def trial(wounds: list[tuple[float, int, bytes]]) -> None:
        (tmp_path / name).write_bytes(damaged(data, wounds))
        with suppress(RobvitError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch wonders about old forms
            read(tmp_path / name)

    trial()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "PPM"])
def test_a_damaged_image_is_read_or_refused(kind: str) -> None:
    held = io.BytesIO()
    Image.radial_gradient("L").resize((24, 24)).convert("RGB").save(held, kind)

    @fuzzed
    @given(damage)
    def trial(wounds: list[tuple[float, int, bytes]]) -> None:
        with suppress(RobvitError):
            assert read_image(damaged(held.getvalue(), wounds), max_pixels=10**6).dtype == torch.uint8

    trial()


@fuzzed
@given(damage)
def test_a_damaged_pickle_is_read_or_refused(wounds: list[tuple[float, int, bytes]]) -> None:
    whole = b"\x80\x02}q\x01(U\x04dataq\x02]q\x03(K\x01K\x02eU\x06labelsq\x04(lp5\nu."
    with suppress(RobvitError):
        unpickle(damaged(whole, wounds), b"data")


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just(10**30)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
places = st.lists(st.integers(0, 10**6), min_size=1, max_size=5)


def replaced(content: Any, place: list[int], value: Any) -> Any:
    """The content with one thing inside it replaced; each number of the place chooses one level's entry."""
    if not place or not isinstance(content, dict | list) or not content:
        return value
    keys = list(content) if isinstance(content, dict) else range(len(content))
    key = keys[place[0] % len(keys)]
    content[key] = replaced(content[key], place[1:], value)
    return content


@pytest.mark.slow
def test_a_record_with_strange_values_is_shown_or_refused(tmp_path: Path) -> None:
    content = asdict(rich_record(count=4))
    path = tmp_path / "record.json"

    @fuzzed
    @given(places, values)
    def trial(place: list[int], value: Any) -> None:
        path.write_text(json.dumps(replaced(copy.deepcopy(content), place, value)))
        with suppress(RobvitError):
            record = open_record(path)
            write_report(record, tmp_path / "report.html")
            compare(record, record)
            differences(record, record)
            record.table()

    trial()


@pytest.mark.slow
@pytest.mark.parametrize("kind", YAMLS)
def test_damaged_yaml_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    room, name, read = YAMLS[kind]
    text, path = resources.files(room).joinpath(name).read_bytes(), tmp_path / "x.yaml"

    @fuzzed
    @given(damage)
    def trial(wounds: list[tuple[float, int, bytes]]) -> None:
        path.write_bytes(damaged(text, wounds))
        with suppress(RobvitError):
            read(path)

    trial()


@pytest.mark.slow
@pytest.mark.parametrize("kind", YAMLS)
def test_yaml_with_strange_values_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    room, name, read = YAMLS[kind]
    content, path = yaml.safe_load(resources.files(room).joinpath(name).read_text()), tmp_path / "x.yaml"

    @fuzzed
    @given(places, values)
    def trial(place: list[int], value: Any) -> None:
        path.write_text(json.dumps(replaced(copy.deepcopy(content), place, value)))  # JSON is YAML
        with suppress(RobvitError):
            read(path)

    trial()


@pytest.mark.slow
def test_the_fuzzer_tells_what_is_found_from_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuzz = load_script("fuzz", monkeypatch)

    def ends(error: type[BaseException] | None) -> Any:
        def feed(content: bytes) -> None:
            if error is not None:
                raise error("as planted")

        target = fuzz.Target("planted", ("bytes",), lambda kind, rng: b"good", feed)
        return fuzz.one_try(target, random.Random(0))

    assert ends(None)[0] == "read"
    assert ends(RobvitError)[0] == "refused"
    for error in (KeyError, MemoryError, RecursionError, SystemExit):
        how, content, trace = ends(error)
        assert how == "found"
        fuzz.keep(tmp_path, "planted", content, trace)
    assert "as planted" in next(tmp_path.glob("*.txt")).read_text()
    assert len(list(tmp_path.glob("*.input"))) == 1  # all came from one place
