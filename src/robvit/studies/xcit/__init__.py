"""Studies of the thesis on adversarially training XCiT: every module of this package files its own."""

from importlib import import_module
from pkgutil import iter_modules

for _found in iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")
