"""The figures, a file each; a file's name is what people type.

To add one, write a file with a function `(subject) -> Figure` under `@figure(title=, caption=, order=)`. What
it shows should come from functions on models and tensors beside it. A figure that the subject lacks something
for raises `Unsupported` and says which option brings it.
"""

from pkgutil import iter_modules

# Known without importing the files, which need torch.
NAMES = tuple(sorted(module.name for module in iter_modules(__path__)))
