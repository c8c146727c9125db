"""A review in the forms that other people and programs read: Markdown, JUnit and SARIF; no local paths."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as XML

from robvit.report.verdict import ORDER, Review
from robvit.texts import markdown_text, printable


def markdown(review: Review) -> str:
    """The verdict first, then findings, reds first, then the figures."""
    robust, clean = review.headline, review.evaluation.clean()
    images = len(review.evaluation.still_correct())
    before = "" if clean is None else f"; clean accuracy {clean.accuracy:.1%}"
    lines = [
        f"# Review of {markdown_text(review.name)}",
        "",
        f"**Robust accuracy {robust.share:.1%}** (95 % interval {robust.low:.1%} to {robust.high:.1%}) under "
        f"{robust.threat} on {images} images{before}.",
        "",
        f"**Can it be believed?** {markdown_text(review.believable)}",
        "",
        "**You may write:**",
        "",
        f"> {markdown_text(review.to_paste())}",
        "",
        "## Findings",
        "",
        _tally(review),
        "",
    ]
    for one in review.findings:
        lines.append(f"- **{one.status}**: {markdown_text(f'{one.title or one.check}: {one.evidence}')}")
        if one.remedy and one.status in ("red", "amber"):
            lines.append(f"  - Remedy: {markdown_text(one.remedy)}")
    lines += ["", "## Figures", "", "```", _tables(review), "```", ""]
    lines += [f"- {markdown_text(note)}" for note in review.evaluation.notes]
    lines += ["", "## Terms", "", "| catalogue | identifier | name |", "|---|---|---|"]
    lines += [f"| {' | '.join(term)} |" for term in review.terms]
    lines += ["", f"SHA-256 of the model's file: `{review.model_sha256}`"] if review.model_sha256 else []
    return "\n".join(lines) + "\n"


def _tables(review: Review) -> str:
    """The table as code, in which no name can end the code."""
    return printable(review.evaluation.table().replace("`", "'"))


def _tally(review: Review) -> str:
    """How many findings of each status."""
    counts = {status: sum(one.status == status for one in review.findings) for status in ORDER}
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count)


def junit(review: Review) -> str:
    """A test case for each finding: red fails, skipped is skipped."""
    counts = {status: sum(one.status == status for one in review.findings) for status in ORDER}
    suite = XML.Element(
        "testsuite",
        name="robvit review",
        tests=str(len(review.findings)),
        failures=str(counts["red"]),
        errors="0",
        skipped=str(counts["skipped"]),
    )
    about = XML.SubElement(suite, "properties")
    facts = {"model": review.name, "model file sha-256": review.model_sha256}
    facts |= {identifier: f"{catalogue}: {name}" for catalogue, identifier, name in review.terms}
    for name, value in facts.items():
        if value:
            XML.SubElement(about, "property", name=name, value=_plain(value))
    for one in review.findings:
        case = XML.SubElement(suite, "testcase", classname="robvit", name=_plain(one.title or one.check))
        if one.status == "red":
            XML.SubElement(case, "failure", message=_plain(one.evidence)).text = _plain(one.remedy)
        elif one.status == "skipped":
            XML.SubElement(case, "skipped", message=_plain(one.evidence))
        elif one.status == "amber":
            XML.SubElement(case, "system-out").text = _plain(f"amber: {one.evidence}")
    return XML.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def sarif(review: Review) -> str:
    """SARIF 2.1.0: a rule for each check, a result for each red or amber one.

    Dashboards show a result only where a file is; that is review.md, which lies beside it.
    """
    levels = {"red": "error", "amber": "warning"}
    rules = [
        {"id": one.check, "shortDescription": {"text": one.title or one.check}}
        | ({"help": {"text": one.remedy}} if one.remedy else {})
        for one in review.findings
    ]
    place = {
        "physicalLocation": {"artifactLocation": {"uri": "review.md"}, "region": {"startLine": 1}},
        "logicalLocations": [{"name": review.name, "kind": "module"}],
    }
    results = [
        {
            "ruleId": one.check,
            "ruleIndex": number,
            "level": levels[one.status],
            "message": {"text": one.evidence},
            "locations": [place],
        }
        for number, one in enumerate(review.findings)
        if one.status in levels
    ]
    driver = {"name": "robvit", "version": review.evaluation.versions.get("robvit", ""), "rules": rules}
    run: dict[str, Any] = {"tool": {"driver": driver}, "results": results}
    run["properties"] = {"terms": [" ".join(term) for term in review.terms]}
    if review.model_sha256:
        model = {"location": {"uri": quote(review.name)}, "hashes": {"sha-256": review.model_sha256}}
        run["artifacts"] = [model]
    content = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(content, indent=2) + "\n"


def _plain(text: str) -> str:
    """Text that XML can hold: control characters are left out."""
    return "".join(c for c in text if c in "\t\n" or (c.isprintable()))
