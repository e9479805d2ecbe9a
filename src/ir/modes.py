"""Stepping out of PyTorch's dispatch modes, for what must run on its own."""

from torch.utils._python_dispatch import _disable_current_modes

outside_all_modes = _disable_current_modes
"""A context in which no mode is active. Private: PyTorch has no public one."""
