"""What the README shows and what `make demo` runs works as it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_readme_quick_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert (tmp_path / "model.html").exists()


@pytest.mark.parametrize("dropout", ["0", "0.1"])
def test_demo_finds_equal_bits(tmp_path: Path, dropout: str) -> None:
    small = ["--layers=2", "--width=32", "--block=16", "--batch=2", "--steps=5", "--rounds=2"]
    command = [sys.executable, ROOT / "examples" / "demo.py", *small, f"--dropout={dropout}", f"--out={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 5 losses bitwise equal: True" in done.stdout
    assert (tmp_path / "inference.html").exists()
