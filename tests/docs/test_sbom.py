"""The bill of materials lists what is declared, with installed versions; hashes are of the pinned ones."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def test_the_bill_of_materials_lists_what_is_declared_and_what_that_needs() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from sbom import bill
    finally:
        sys.path.pop(0)
    found = bill()
    listed = {part["name"]: part["version"] for part in found["components"]}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {canonicalize_name(Requirement(line).name) for line in declared}
    assert names <= listed.keys()
    assert "markupsafe" in listed  # of jinja2
    assert all(version(name) == number for name, number in listed.items())
    refs = {part["bom-ref"] for part in found["components"]} | {found["metadata"]["component"]["bom-ref"]}
    assert {need["ref"] for need in found["dependencies"]} == refs
    assert all(set(need["dependsOn"]) <= refs for need in found["dependencies"])
    assert bill() == found


def test_hashes_are_of_the_pinned_versions_and_name_no_place() -> None:
    pins = {line.lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    text = (ROOT / "hashes.txt").read_text()
    hashed = dict(
        re.findall(r"^(\S+==\S+)((?: ;[^\\]+)? \\\n(?:    --hash=sha256:[0-9a-f]{64}.*\n)+)", text, re.M)
    )
    assert pins <= {name.lower() for name in hashed}
    assert len(hashed) == len(re.findall(r"==\d", text))  # nothing stands there without a hash
    assert "://" not in text
