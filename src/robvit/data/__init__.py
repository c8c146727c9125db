"""Images from anywhere as [0,1] tensors with labels or masks; nothing here normalises.

images = robvit.data.open_data("sample", split="train", limit=100, size=224)
x, y = images[0]
"""

from robvit.data.catalog import DATASETS, open_data
from robvit.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from robvit.data.dataset import ImageDataset, SkippedImages
from robvit.data.decode import ImageError, read_image
from robvit.errors import IGNORE

__all__ = [
    "CORRUPTIONS",
    "DATASETS",
    "IGNORE",
    "SEVERITIES",
    "ImageDataset",
    "ImageError",
    "SkippedImages",
    "corrupt",
    "open_data",
    "read_image",
]
