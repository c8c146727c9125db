"""Write the software bill of materials of this environment: robvit and all it needs, as CycloneDX 1.6 JSON.

    python scripts/sbom.py sbom.json

Read from the metadata of what is installed; nothing is fetched. `--extra` names extras to follow as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from robvit.files import write_json


def needed(name: str, extras: set[str]) -> Iterator[Requirement]:
    """What a package asks for on this machine, with these extras."""
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def closure(root: str, extras: set[str]) -> dict[str, set[str]]:
    """Every package that is installed and needed, with the packages it needs in turn."""
    found: dict[str, set[str]] = {}
    asked: dict[str, set[str]] = {}
    waiting = [(root, extras)]
    while waiting:
        name, wanted = waiting.pop()
        if name in asked and wanted <= asked[name]:
            continue
        asked[name] = asked.get(name, set()) | wanted
        there = [r for r in needed(name, asked[name]) if installed(r.name)]
        found[name] = {canonicalize_name(r.name) for r in there}
        waiting += [(canonicalize_name(r.name), set(r.extras)) for r in there]
    return found


def installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def address(name: str) -> str:
    """The package's name and version in the form that tools compare."""
    return f"pkg:pypi/{name}@{distribution(name).version}"


def component(name: str) -> dict[str, Any]:
    facts = distribution(name).metadata
    licence = facts.get("License-Expression") or facts.get("License") or ""
    entry = {
        "type": "library",
        "bom-ref": address(name),
        "name": name,
        "version": distribution(name).version,
        "purl": address(name),
    }
    if licence and "\n" not in licence:
        entry["licenses"] = [{"license": {"name": licence}}]  # type: ignore[assignment]
    return entry


def bill(root: str = "robvit", extras: set[str] | None = None) -> dict[str, Any]:
    """The bill of materials; the same environment gives the same bill."""
    packages = closure(root, extras or set())
    own = component(root) | {"type": "application"}
    needs = [
        {"ref": address(name), "dependsOn": sorted(address(other) for other in others)}
        for name, others in sorted(packages.items())
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": [component(name) for name in sorted(packages) if name != root],
        "dependencies": needs,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=Path("sbom.json"))
    parser.add_argument("--extra", action="append", default=[])
    given = parser.parse_args()
    found = bill(extras=set(given.extra))
    write_json(given.out, found)
    print(f"written: {given.out}, {len(found['components'])} packages")
