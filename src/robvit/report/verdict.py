"""What follows from an evaluation and a diagnosis: the figure, whether to believe it, what may be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from robvit.evaluation.claims import CHANCE_REMEDY, judged_by_autoattack, knowledge_of, near_chance
from robvit.evaluation.doubts import TRAINED_ON
from robvit.record import Finding, Record, Row

ORDER = ("red", "amber", "green", "skipped")
EVASION = ("NIST AI 100-2 E2025", "NISTAML.022", "Evasion")
BLACK_BOX_EVASION = ("NIST AI 100-2 E2025", "NISTAML.025", "Black-box Evasion")
EVADE = ("MITRE ATLAS", "AML.T0015", "Evade AI Model")
# How images are made, by what the attacker has of the model.
CRAFT = {
    "white box": ("MITRE ATLAS", "AML.T0043.000", "Craft Adversarial Data: White-Box Optimization"),
    "black box": ("MITRE ATLAS", "AML.T0043.001", "Craft Adversarial Data: Black-Box Optimization"),
    "transfer": ("MITRE ATLAS", "AML.T0043.002", "Craft Adversarial Data: Black-Box Transfer"),
}


@dataclass(frozen=True)
class Review:
    """An evaluation and a diagnosis of one model on the same kind of images, and what follows from both.

    `own` are findings about the model itself, beside those of the doctor about the attacks.
    """

    evaluation: Record
    diagnosis: Record
    model_sha256: str = ""
    own: Sequence[Finding] = field(default_factory=tuple)

    @property
    def name(self) -> str:
        return str(self.evaluation.model.get("name", "the model"))

    @property
    def headline(self) -> Row:
        return self.evaluation.headline()

    @property
    def findings(self) -> list[Finding]:
        """All of them, worst first; what is said of the model itself comes before checks of the attacks."""
        known = {one.check for one in self.own}
        checks = [one for one in self.diagnosis.findings if one.check not in known]
        return sorted([*self.own, *self._chance(), *checks], key=lambda one: ORDER.index(one.status))

    def _chance(self) -> list[Finding]:
        chance, clean = near_chance(self.evaluation), self.evaluation.clean()
        if chance is None or clean is None:
            return []
        return [
            Finding(
                "clean_accuracy",
                "red",
                f"clean accuracy {clean.accuracy:.1%}, chance is {chance:.1%}",
                title="Clean accuracy is near chance, so no figure means anything",
                remedy=f"{CHANCE_REMEDY}.",
            )
        ]

    @property
    def reds(self) -> list[Finding]:
        return [one for one in self.findings if one.status == "red"]

    @property
    def knowledge(self) -> list[str]:
        """What attackers had, of "white box", "black box" and "transfer", in the order of CRAFT."""
        return [kind for kind in CRAFT if kind in {knowledge_of(t) for t in self.evaluation.attacks()}]

    @property
    def terms(self) -> list[tuple[str, str, str]]:
        """The attacks that were tried in the words of catalogues: catalogue, identifier, name."""
        only_outside = "white box" not in self.knowledge
        return [BLACK_BOX_EVASION if only_outside else EVASION, EVADE, *(CRAFT[k] for k in self.knowledge)]

    @property
    def believable(self) -> str:
        """Whether the figure can be believed, in a sentence or two."""
        checks = self.diagnosis.findings
        if self._chance() or any(one.check == "normalisation" and one.status == "red" for one in self.own):
            return "No: the model hardly recognises clean images, or not as it should; see the first finding."
        if self.headline.share == 0:
            return "Yes: every success is an image that is kept and can be checked, and it cannot be lower."
        if any(one.check == TRAINED_ON for one in self.own):
            return "No: the head was trained on images that it is judged on; every accuracy is too high."
        if any(one.status == "red" for one in checks):
            return "No: a check found that such attacks are blind on this model; the figure is too high."
        if "white box" not in self.knowledge:
            return (
                "As an upper bound only: no attacker had the model itself, so no white-box claim can be "
                "made. An attacker who has the model does better."
            )
        amber = sum(one.status == "amber" for one in self.findings)
        doubts = (
            f"With care: {amber} {'finding is' if amber == 1 else 'findings are'} amber." if amber else ""
        )
        if not judged_by_autoattack(self.evaluation):
            first_look = (
                "As a first look only: the attacks are shorter than AutoAttack's, and longer ones may leave "
                "less. A protocol whose name ends in -audited@1 gives a figure to quote."
            )
            return f"{first_look} {doubts}".rstrip()
        if doubts:
            return doubts
        return "No check found a problem with the attacks. This is not evidence of robustness by itself."

    def to_paste(self) -> str:
        """What may be written of the model, with everything that a reader needs."""
        record, robust, clean = self.evaluation, self.headline, self.evaluation.clean()
        file = f" (file SHA-256 {self.model_sha256[:16]}...)" if self.model_sha256 else ""
        before = f", and {clean.accuracy:.1%} without attack" if clean is not None else ""
        attacks = ", ".join(dict.fromkeys(t.name for t in record.attacks()))
        limits = (
            "" if "white box" in self.knowledge else " No claim is made about attackers who have the model."
        )
        if not limits and robust.share > 0 and not judged_by_autoattack(record):
            limits = " The attacks are shorter than AutoAttack's; longer ones may leave less."
        attacker = "has the model" if "white box" in self.knowledge else "sees its answers only"
        reds = len(self.reds)
        return (
            f"{self.name}{file} classifies {robust.share:.1%} (95 % interval {robust.low:.1%} to "
            f"{robust.high:.1%}) of {len(record.still_correct())} images of "
            f"{record.data.get('spec') or 'its own data'} correctly under {attacks} within {robust.threat} "
            f"by an attacker who {attacker}{before} (protocol {record.protocol.get('name', 'of our own')}, "
            f"robvit {record.versions.get('robvit', '')}; {reds} red finding{'s' * (reds != 1)}).{limits}"
        )
