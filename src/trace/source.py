"""Where a recorded call comes from: the user's line, and the module whose forward made it."""

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Mapping
from types import FrameType

import torch

from fulgurite.ir import Source

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STDLIB = os.path.dirname(os.path.abspath(contextlib.__file__)) + os.sep
_MODULE_CALL = torch.nn.Module._call_impl.__code__


@functools.cache
def is_users(file: str) -> bool:
    """Whether a code object's file is neither PyTorch's, nor ours, nor the standard library's."""
    stdlib = file.startswith(_STDLIB) and "-packages" not in file
    return not (file.startswith((_PACKAGE, _TORCH, "<frozen", "<fulgurite")) or stdlib)


@functools.cache
def is_library(file: str) -> bool:
    """Whether a file belongs to an installed package: code that is not expected to change while it is used."""
    return "-packages" in file or not is_users(file)


def warn(text: str) -> None:
    """Warn at the innermost line that is neither ours nor PyTorch's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, _TORCH)):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def whereabouts(modules: Mapping[int, str]) -> tuple[Source | None, str]:
    """The innermost frame of the user's program, and the path of the innermost running module in `modules`."""
    frame: FrameType | None = sys._getframe(1)
    source: Source | None = None
    path: str | None = None
    while frame is not None and (source is None or path is None):
        code = frame.f_code
        if source is None and is_users(code.co_filename):
            source = Source(code.co_filename, frame.f_lineno)
        if path is None and code is _MODULE_CALL:
            path = modules.get(id(frame.f_locals["self"]))
        frame = frame.f_back
    return source, path or ""
