"""Records and pictures for people."""

from robvit.report.gallery import Exhibit as Exhibit
from robvit.report.html import write_report as write_report
