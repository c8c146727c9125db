"""Images from anywhere as [0,1] tensors with labels or masks; nothing here normalises.

    images = robvit.data.open_data("sample", split="train", limit=100, size=224)
    x, y = images[0]           # (3 224 224) in [0,1] and a label
    x, y = images.tensors()    # everything at once: (100 3 224 224), (100,)

A dataset is one function in `catalog.py`, a corruption one in `corruptions.py`.
"""

from robvit.data.arrays import from_arrays, from_items
from robvit.data.catalog import DATASETS
from robvit.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from robvit.data.dataset import ImageDataset
from robvit.data.decode import read_image
from robvit.data.opening import SkippedImages, open_data
from robvit.decoding import ImageError
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
    "from_arrays",
    "from_items",
    "open_data",
    "read_image",
]
