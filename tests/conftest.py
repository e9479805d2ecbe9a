"""Set-up for all tests: nothing is downloaded, one thread, and the examples can be imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import torch  # after the environment is set

torch.set_num_threads(1)
