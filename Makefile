# Every target works from a fresh clone: it needs make and Python 3.11 or later, and sets up .venv by itself.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2
# A worker keeps to one half of the tests, and so to the fits that tests of a file share, until it runs out of them.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo reproduce bench bench-accuracy tables test test-fast test-nightly test-faults soak fuzz lint docs dist clean

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

demo: $(STAMP) ## from a CSV file to a report, on a real table, in under three minutes; writes to demo/
	$(BIN)/python -m experiments demo --out demo

# ARGS are the options of the command: make reproduce NAME=gas10k ARGS="--simulated --quick --jobs 2".
reproduce: $(STAMP) ## repeat an experiment of the paper, NAME=abalone, gas10k, gas500k or gas4m; writes to runs/
	$(BIN)/python -m experiments reproduce $(or $(NAME),abalone) $(ARGS)

bench: $(STAMP) ## compare with other libraries; writes to runs/; make bench ARGS="--list" shows the plan
	$(BIN)/python -m experiments bench $(ARGS)

bench-accuracy: $(STAMP) ## run what is missing of the published accuracy benchmark; makes the tables
	$(BIN)/python -m experiments accuracy --results experiments/results $(ARGS)
	$(BIN)/python -m experiments tables

tables: $(STAMP) ## make the published figures and the page of tables from the results in experiments/results
	$(BIN)/python -m experiments tables

# One thread per worker: the workers would otherwise compete for the cores.
test: $(STAMP) ## run all tests that every change must pass
	$(PYTEST)

test-fast: $(STAMP) ## run the quick tests, in under 90 seconds on two cores
	$(PYTEST) -m "not slow"

test-nightly: $(STAMP) ## run slow tests with more seeds and more cases than make test
	$(PYTEST) -m nightly

test-faults: $(STAMP) ## disturb the commands in more than 300 ways; a run of its own, under ten minutes
	$(PYTEST) tests/faults

# Nightly; make soak PROBLEMS=500 for fewer.
soak: $(STAMP) ## check 10,000 random small problems on all cores; failures go to runs/soak.jsonl
	$(BIN)/python -m experiments soak --problems $(or $(PROBLEMS),10000) $(ARGS)

fuzz: $(STAMP) ## read mutated model files, checkpoints and tables for SECONDS=1800; failures go to runs/fuzz
	$(BIN)/python -m experiments fuzz --seconds $(or $(SECONDS),1800) $(ARGS)

lint: $(STAMP) ## check style, formatting, types, the layers of imports, and which stored results are stale
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_results.py

# From scratch, so that outputs in the pages are those of this source and no page of a removed name stays. Without the
# notebooks: make docs ARGS="-D nb_execution_mode=off".
docs: $(STAMP) ## execute the tutorials and build the documentation into docs/_build/html, warnings are errors
	rm -rf docs/_build docs/api
	$(BIN)/python -m sphinx -W --keep-going -b html $(ARGS) docs docs/_build/html

dist: $(STAMP) ## build wheel and source archive into dist/, and try the wheel in an empty environment
	$(BIN)/python tools/check_dist.py

clean: ## remove .venv and everything the other targets made
	rm -rf $(VENV) demo docs/_build docs/api build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples experiments tools docs -name __pycache__ -type d -prune -exec rm -rf {} +
