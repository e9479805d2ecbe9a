"""The examples in docstrings run, on the package as it is imported."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import fulgurite

MODULES = ["fulgurite", *(module.name for module in pkgutil.walk_packages(fulgurite.__path__, "fulgurite."))]


@pytest.mark.parametrize("name", [name for name in MODULES if "__main__" not in name])
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
