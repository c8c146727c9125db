"""A review in the forms that people and other programs read: Markdown, JUnit and SARIF; no local paths."""

from __future__ import annotations

import json
from dataclasses import dataclass
from xml.etree import ElementTree as XML

from robvit.record import Finding, Record
from robvit.statistics import interval

ORDER = ("red", "amber", "green", "skipped")
# Terms of the catalogues that security reviews refer to.
ATLAS = {
    "white box": "AML.T0043.000 (Craft Adversarial Data: White-Box Optimization)",
    "black box": "AML.T0043.001 (Craft Adversarial Data: Black-Box Optimization)",
    "transfer": "AML.T0043.002 (Craft Adversarial Data: Black-Box Transfer)",
}
NIST = "evasion attack on a model that was trained before (NIST AI 100-2)"


@dataclass(frozen=True)
class Review:
    """An evaluation and a diagnosis of one model on the same kind of images, and what follows from both."""

    evaluation: Record
    diagnosis: Record
    model_sha256: str = ""

    @property
    def findings(self) -> list[Finding]:
        """Those of the doctor, worst first, after those about the figure itself."""
        return sorted([*self._own(), *self.diagnosis.findings], key=lambda one: ORDER.index(one.status))

    def _own(self) -> list[Finding]:
        found = []
        robust = self.evaluation.headline()
        if robust.share < 0.1:
            found.append(
                Finding(
                    "robust_accuracy",
                    "red",
                    f"{robust.share:.1%} of the images are still classified correctly under {robust.threat}",
                    title="The model is not robust at this budget",
                    remedy="harden it: robvit robustify --method lora, or train adversarially",
                )
            )
        if (chance := self.near_chance()) is not None:
            found.append(
                Finding(
                    "clean_accuracy",
                    "red",
                    f"clean accuracy {chance[0]:.1%}, chance is {chance[1]:.1%}",
                    title="Clean accuracy is near chance, so no figure means anything",
                    remedy="check normalisation, image size, channel order and the order of classes",
                )
            )
        return found

    def near_chance(self) -> tuple[float, float] | None:
        """Clean accuracy and chance, where twice chance cannot be ruled out; else None."""
        clean, classes = self.evaluation.clean(), len(set(self.evaluation.data["labels"]))
        if clean is None or classes < 2:
            return None
        _, high = interval(sum(clean.correct), len(clean.correct))
        return (clean.accuracy, 1 / classes) if high < 2 / classes else None

    @property
    def reds(self) -> list[Finding]:
        return [one for one in self.findings if one.status == "red"]

    @property
    def believable(self) -> str:
        """Whether the figure can be believed, in a sentence."""
        if self.evaluation.headline().share == 0:
            return "Yes: every success is an image that is kept and can be checked; it cannot be lower."
        amber = [one for one in self.diagnosis.findings if one.status == "amber"]
        if any(one.status == "red" for one in self.diagnosis.findings):
            return "No: a check found that such attacks are blind on this model; the figure is too high."
        if self.near_chance() is not None:
            return "No: the model hardly recognises clean images."
        if amber:
            return f"With care: {len(amber)} of the doctor's checks are amber."
        return "No check found a problem with the attacks. This is not evidence of robustness by itself."

    def to_paste(self) -> str:
        """What may be written of the model, with everything that a reader needs."""
        record, robust, clean = self.evaluation, self.evaluation.headline(), self.evaluation.clean()
        name = record.model.get("name", "the model")
        file = f" (SHA-256 of its file {self.model_sha256[:16]}...)" if self.model_sha256 else ""
        before = f", {clean.accuracy:.1%} without attack" if clean is not None else ""
        attacks = ", ".join(dict.fromkeys(t.attack for t in record.attacks()))
        reds = len(self.reds)
        return (
            f"{name}{file} classifies {robust.share:.1%} (95 % interval {robust.low:.1%} to "
            f"{robust.high:.1%}) of {len(record.still_correct())} images of "
            f"{record.data.get('spec') or 'its own data'} correctly under {attacks} within {robust.threat} "
            f"by an attacker who knows the model{before} ({record.protocol.get('name', 'own protocol')}, "
            f"robvit {record.versions.get('robvit', '')}; {reds} red findings)."
        )


def markdown(review: Review) -> str:
    """The verdict first, then findings, reds first, then the figures."""
    robust = review.evaluation.headline()
    lines = [
        f"# Review of {review.evaluation.model.get('name', 'a model')}",
        "",
        f"**Robust accuracy {robust.share:.1%}** (95 % interval {robust.low:.1%} to {robust.high:.1%}), "
        f"{robust.threat}, {len(review.evaluation.still_correct())} images.",
        "",
        f"**Can it be believed?** {review.believable}",
        "",
        "**You may write:**",
        "",
        f"> {review.to_paste()}",
        "",
        "## Findings",
        "",
    ]
    for one in review.findings:
        lines.append(f"- **{one.status}**: {one.title or one.check}. {one.evidence}")
        if one.remedy and one.status in ("red", "amber"):
            lines.append(f"  Remedy: {one.remedy}")
    lines += ["", "## Figures", "", "```", review.evaluation.table(), "```", ""]
    lines += [*(f"- {note}" for note in review.evaluation.notes), "", "## Terms", "", f"- {NIST}"]
    lines += [f"- MITRE ATLAS, {name}: {term}" for name, term in ATLAS.items()]
    return "\n".join(lines) + "\n"


def junit(review: Review) -> str:
    """A test case for each finding: red fails, skipped is skipped."""
    counts = {status: sum(one.status == status for one in review.findings) for status in ORDER}
    suite = XML.Element(
        "testsuite",
        name="robvit review",
        tests=str(len(review.findings)),
        failures=str(counts["red"]),
        skipped=str(counts["skipped"]),
    )
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
    """SARIF 2.1.0: a rule for each check, a result for each red or amber one."""
    levels = {"red": "error", "amber": "warning"}
    name = str(review.evaluation.model.get("name", "model"))
    rules = [
        {
            "id": one.check,
            "shortDescription": {"text": one.title or one.check},
            "help": {"text": one.remedy or "none"},
        }
        for one in review.findings
    ]
    results = [
        {
            "ruleId": one.check,
            "level": levels[one.status],
            "message": {"text": one.evidence},
            "locations": [{"logicalLocations": [{"name": name, "kind": "module"}]}],
        }
        for one in review.findings
        if one.status in levels
    ]
    driver = {"name": "robvit", "version": review.evaluation.versions.get("robvit", ""), "rules": rules}
    content = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(content, indent=2) + "\n"


def _plain(text: str) -> str:
    """Text that XML can hold: control characters are left out."""
    return "".join(c for c in text if c in "\t\n" or (c.isprintable()))
