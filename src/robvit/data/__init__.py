"""Pictures from anywhere as [0,1] tensors with labels or masks; nothing here normalises.

pictures = robvit.data.open_data("sample", split="train", limit=100, size=224)
x, y = pictures[0]
"""

from robvit.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from robvit.data.pictures import PictureError, read_picture
from robvit.data.sets import PictureSet, SkippedPictures
from robvit.data.sources import DATASETS, open_data
from robvit.errors import IGNORE

__all__ = [
    "CORRUPTIONS",
    "DATASETS",
    "IGNORE",
    "SEVERITIES",
    "PictureError",
    "PictureSet",
    "SkippedPictures",
    "corrupt",
    "open_data",
    "read_picture",
]
