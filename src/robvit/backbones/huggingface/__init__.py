"""Vision networks from folders of transformers' and into them; transformers itself is not needed."""

from robvit.backbones.huggingface.reading import Opened, open_transformers
from robvit.backbones.huggingface.writing import loading_line, to_transformers, write_transformers

__all__ = ["Opened", "loading_line", "open_transformers", "to_transformers", "write_transformers"]
