"""Studies of adaptive attention scaling (Jain and Dutta, CVPR 2024): every module files its own."""

from importlib import import_module
from pkgutil import iter_modules

for _found in iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")
