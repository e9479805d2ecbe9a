"""What the demo prints with: headings, a progress bar, an excerpt of a long text, a table."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from textwrap import indent

try:
    from rich.progress import track
except ImportError:  # rich comes with `pip install fulgurite[demo]`; without it the bar is a plain one

    def track(sequence: Sequence[int], description: str) -> Iterator[int]:  # type: ignore[misc]
        """Yield the items of `sequence` and draw on stderr how far we are."""
        width, total = 40, len(sequence)
        for done, item in enumerate(sequence, start=1):
            yield item
            bar = "#" * (width * done // total)
            print(f"\r{description} [{bar:<{width}}] {done}/{total}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)


__all__ = ["excerpt", "heading", "table", "track"]


def heading(text: str) -> None:
    """Print `text`, underlined, after an empty line."""
    print(f"\n{text}\n{'=' * len(text)}", flush=True)


def excerpt(text: str, head: int, tail: int, width: int = 160) -> str:
    """The first `head` and last `tail` lines of `text`, indented, each cut at `width` columns.

    >>> print(excerpt("a\\nb\\nc\\nd\\ne", head=2, tail=1))
        a
        b
        # ... 2 more lines ...
        e
    """
    lines = [line if len(line) <= width else line[: width - 1] + "…" for line in text.splitlines()]
    if len(lines) > head + tail:
        lines[head : len(lines) - tail] = [f"# ... {len(lines) - head - tail} more lines ..."]
    return indent("\n".join(lines), "    ")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out `rows` under `header`, the first column to the left and the others to the right.

    >>> print(table(["what", "ms"], [["a call", "1.5"]]))
    what     ms
    ------  ---
    a call  1.5
    """
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    return "\n".join(_row(cells, widths) for cells in [header, ["-" * width for width in widths], *rows])


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    return "  ".join([first, *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))])
