"""Where a recorded call comes from: the user's line, and the module whose forward made it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from types import FrameType

import torch

from fulgurite.ir import Source

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STDLIB = os.path.dirname(os.path.abspath(contextlib.__file__)) + os.sep
_MODULE_CALL = torch.nn.Module._call_impl.__code__
_users: dict[str, bool] = {}


def is_users(file: str) -> bool:
    """Whether a code object's file is neither PyTorch's, nor ours, nor the standard library's."""
    known = _users.get(file)
    if known is None:
        stdlib = file.startswith(_STDLIB) and "-packages" not in file
        known = not (file.startswith((_PACKAGE, _TORCH, "<frozen", "<fulgurite")) or stdlib)
        _users[file] = known
    return known


def whereabouts(modules: Mapping[int, str]) -> tuple[Source | None, str]:
    """The innermost frame of the user's program, and the path of the innermost running module in `modules`."""
    frame: FrameType | None = sys._getframe(1)
    source: Source | None = None
    while frame is not None:
        code = frame.f_code
        if source is None and is_users(code.co_filename):
            source = Source(code.co_filename, frame.f_lineno)
        if code is _MODULE_CALL:
            path = modules.get(id(frame.f_locals["self"]))
            if path is not None:
                return source or _torch_line(frame), path
        frame = frame.f_back
    return source, ""


def _torch_line(frame: FrameType) -> Source | None:
    """The user's line further out, for a call made inside one of PyTorch's own modules."""
    outer = frame.f_back
    while outer is not None:
        if is_users(outer.f_code.co_filename):
            return Source(outer.f_code.co_filename, outer.f_lineno)
        outer = outer.f_back
    return None
