"""The bill of materials: what is declared is listed, with the versions that are installed."""

from __future__ import annotations

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
