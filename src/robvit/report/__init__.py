"""Records and images for people."""

from robvit.report.gallery import GalleryItem as GalleryItem
from robvit.report.html import write_report as write_report
