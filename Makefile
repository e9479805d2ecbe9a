# Every target sets up .venv by itself. What is installed is kept in stamp files, one for each set of
# extras, so that an install happens once and again when pyproject.toml or constraints.txt changes.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

export PYTHONUNBUFFERED := 1

.PHONY: help demo test lint format sweep bench venv clean

help:
	@echo "make demo    train a GPT with fulgurite and with eager, compare bits, print traces, draw a graph"
	@echo "make test    run all tests"
	@echo "make lint    ruff and mypy"
	@echo "make format  let ruff format and fix what it can"
	@echo "make sweep   run PyTorch's operator database through fulgurite (long)"
	@echo "make bench   measure fulgurite against eager"
	@echo "make venv    only set up .venv, with everything that developing needs"
	@echo "make clean   remove .venv and all that was generated"

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

test: $(VENV)/.test
	$(BIN)/python -m pytest tests

lint: $(VENV)/.dev .typecheck
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy examples

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sweep: $(VENV)/.test
	$(BIN)/python tests/sweep_op_db.py

bench: $(VENV)/.demo
	$(BIN)/python -m fulgurite.tools.bench

venv: $(VENV)/.dev

clean:
	rm -rf $(VENV) .typecheck demo_output build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -maxdepth 2 -name '*.egg-info' -type d -prune -exec rm -rf {} +

# mypy cannot follow the import hook of an editable install. It reads the packages through links that
# have the names they are imported by; made anew each time, so that no file is missing.
.PHONY: .typecheck
.typecheck:
	@rm -rf .typecheck && mkdir -p .typecheck/fulgurite
	@ln -s "$(CURDIR)"/src/* "$(CURDIR)"/tools .typecheck/fulgurite/

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.%: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing the packages of '$*' into $(VENV); PyTorch is large, so the first time takes a while"
	$(PIP) -e '.[$*]'
	@touch $@
