"""Command lines: `python -m fulgurite.tools.bench` measures, `python -m fulgurite.tools.draw` draws."""
