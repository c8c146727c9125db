"""The checks, in the order in which they run; each file registers its own in CHECKS."""

from robvit.diagnosis.checks import model as model
from robvit.diagnosis.checks import pgd as pgd
from robvit.diagnosis.checks import white_box as white_box
from robvit.diagnosis.grading import CHECKS as CHECKS
