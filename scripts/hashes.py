"""Write hashes.txt: the versions of constraints.txt with the hashes of their wheels.

    python scripts/hashes.py                  # after a change of constraints.txt
    make hashed                               # an environment of exactly these files

The hashes are those of the package registry that pip is set up with; none is named in the file. All wheels
of the Pythons that robvit supports are listed, so that the file serves every machine that has wheels.
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pip._internal.commands import create_command
from pip._vendor.packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[1]
BUILD = ("hatchling", "editables", "packaging", "pathspec", "pluggy", "trove-classifiers")  # of robvit itself
PYTHONS = {"py3", "py2.py3", "cp311", "cp312", "cp313"}
# Parts of torch for one system; elsewhere torch asks for none of them.
LINUX = re.compile(r"(nvidia|cuda|triton)\b")
HEAD = """\
# Made by scripts/hashes.py from constraints.txt: pip install --require-hashes --no-deps -r hashes.txt
"""


class Registry:
    """The package registry that pip is set up with, asked as pip asks."""

    def __init__(self) -> None:
        command = create_command("download")
        self.options, _ = command.parse_args([])
        self.session = command._build_session(self.options)

    def wheels(self, name: str) -> list[tuple[str, str]]:
        """Every wheel of a package with its SHA-256."""
        page = self.session.get(f"{self.options.index_url.rstrip('/')}/{canonicalize_name(name)}/")
        page.raise_for_status()
        links = re.findall(r'#sha256=([0-9a-f]{64})"[^>]*>\s*([^<\s]+\.whl)\s*</a>', page.text)
        return [(file, digest) for digest, file in links]

    def newest(self, name: str) -> str:
        """The newest version of a package that has a wheel."""
        versions = [parse_wheel_filename(file)[1] for file, _ in self.wheels(name)]
        return str(max(version for version in versions if not version.is_prerelease))

    def line(self, name: str, version: str) -> str:
        """A requirement with the hashes of its wheels."""
        found = set()
        for file, digest in self.wheels(name):
            _, of, _, tags = parse_wheel_filename(file)
            python = any(tag.interpreter in PYTHONS or tag.abi == "abi3" for tag in tags)
            if str(of) == version and python:
                found.add(digest)
        if not found:
            sys.exit(f"{name} {version} has no wheel with a hash in this registry")
        where = " ; sys_platform == 'linux'" if LINUX.match(name) else ""
        hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(found))
        return f"{name}=={version}{where}{hashes}\n"


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def main() -> None:
    registry, wanted = Registry(), pins()
    known = {canonicalize_name(name) for name in wanted}
    for name in BUILD:
        if name not in known:
            wanted[name] = registry.newest(name)
    with ThreadPoolExecutor(8) as pool:
        lines = list(pool.map(registry.line, wanted, wanted.values()))
    (ROOT / "hashes.txt").write_text(HEAD + "".join(sorted(lines, key=str.lower)))
    print(f"{len(lines)} packages, {sum(line.count('--hash') for line in lines)} hashes")


if __name__ == "__main__":
    main()
