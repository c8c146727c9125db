"""Studies of TORA-ViT (Li and Xu, CVPR 2023): every module of this package files its own."""

from importlib import import_module
from pkgutil import iter_modules

for _found in iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")
