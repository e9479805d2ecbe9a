"""Small programs, each of one requirement, judged by `test_programs.py`; importing this package defines them all."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
