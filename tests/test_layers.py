"""The shape of the code: imports point one way, none hides in a function, and files stay short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SRC = sorted((ROOT / "src").rglob("*.py"))
TOOLS = sorted((ROOT / "tools").rglob("*.py"))
MAY_IMPORT = {
    "ir": {"ir"},
    "trace": {"trace", "ir"},
    "transforms": {"transforms", "trace", "ir"},
    "executors": {"executors", "ir"},
    "top": {"top", "transforms", "executors", "trace", "ir"},
    "tools": {"tools", "top", "transforms", "executors", "trace", "ir"},
}


def layer(path: Path) -> str:
    """The layer that a file belongs to; what lies in src/ itself (jit, custom_op) is "top"."""
    parts = path.relative_to(ROOT).parts
    return "tools" if parts[0] == "tools" else parts[1] if len(parts) == 3 else "top"


def imports(tree: ast.AST) -> Iterator[str]:
    """The dotted name of each module that `tree` imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write imports from the root, fulgurite"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", SRC + TOOLS, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    names = [name.split(".") for name in imports(ast.parse(path.read_text())) if name.startswith("fulgurite")]
    used = {name[1] if name[1:] and name[1] in MAY_IMPORT else "top" for name in names}
    assert used <= MAY_IMPORT[layer(path)], f"{layer(path)} must not import {used - MAY_IMPORT[layer(path)]}"


@pytest.mark.parametrize("path", SRC, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_import_inside_a_function(path: Path) -> None:
    functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    hidden = [f"{function.name}: {name}" for function in functions for name in imports(function)]
    assert not hidden


def test_files_stay_short() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in SRC}
    assert {str(path): count for path, count in lines.items() if count > 400} == {}
    assert sum(lines.values()) < 8000
