"""The pages in docs/ that show programs run as they are written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"```python( gpu)?\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", ["custom-ops.md"])
def test_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page}
    for gpu, block in BLOCK.findall((DOCS / page).read_text()):
        if not gpu:
            exec(compile(block, page, "exec"), names)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton kernels run on a GPU")
def test_triton(tmp_path: Path) -> None:
    names: dict[str, Any] = {"torch": torch, "fg": __import__("fulgurite"), "__name__": "docs"}
    blocks = [block for gpu, block in BLOCK.findall((DOCS / "custom-ops.md").read_text()) if gpu]
    assert blocks
    source = tmp_path / "page.py"
    source.write_text("\n".join(["import torch", "import fulgurite as fg", *blocks]))
    exec(compile(source.read_text(), str(source), "exec"), names)
