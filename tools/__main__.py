"""The command `fulgurite`: `fulgurite bench ...` is `python -m fulgurite.tools.bench ...`, and so for each tool."""

from __future__ import annotations

import runpy
import sys

TOOLS = {
    "bench": "measure fulgurite against eager PyTorch",
    "draw": "draw the graph of a trace",
}


def main() -> None:
    """Run the tool that the first argument names, with the arguments after it."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in TOOLS:
        lines = [f"  {tool:<8}{purpose}" for tool, purpose in TOOLS.items()]
        sys.exit("\n".join(["usage: fulgurite TOOL [arguments]", "", *lines]))
    del sys.argv[1]
    runpy.run_module(f"fulgurite.tools.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
