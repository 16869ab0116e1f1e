# Every target works from a fresh clone: it needs make and Python 3.11 or later, and sets up .venv by itself.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench bench-accuracy docs clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with the package and all development tools, at pinned versions

# Runs again only when the requirements or their pins change. The build back end is pinned like the rest,
# so the editable install uses it from .venv instead of fetching one of its own.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt pip hatchling
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable . --group dev
	@touch $@

demo: $(STAMP) ## compare the models on real and simulated data; writes demo/report.html
	$(BIN)/python examples/demo.py --out demo

# One thread per worker: the workers would otherwise compete for the cores.
test: $(STAMP) ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

lint: $(STAMP) ## check style, formatting and types
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

bench: $(STAMP) ## run the benchmarks
	$(BIN)/python benchmarks/run.py

# Continues where it stopped. ARGS are the options of benchmarks/accuracy.py: make bench-accuracy ARGS="--list".
bench-accuracy: $(STAMP) ## run what is missing of the accuracy benchmark; writes its tables and figure
	$(BIN)/python benchmarks/accuracy.py $(ARGS)

docs: $(STAMP) ## build the documentation into docs/_build, warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build

clean: ## remove .venv and everything the other targets made
	rm -rf $(VENV) demo docs/_build build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests examples benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
