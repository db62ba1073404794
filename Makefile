# Two commands matter: `make demo` and `make test`. Each does its own set-up first.

VENV     := .venv
BIN      := $(VENV)/bin
PORT     ?= 8501
# The interpreter that .venv is made from: the first of these that is Python 3.11 or newer.
PYTHON   ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
              $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
PYTEST   ?= $(BIN)/python -m pytest
# Processes that `make test` spreads the test files over.
WORKERS  ?= 2
# More words for pytest: `make unit ARGS='-k storage -x'`.
ARGS     ?=
SOURCES  := app profiler storage tests examples benchmarks docs

RUNTIME_STAMP := $(VENV)/.runtime-installed
DEV_STAMP     := $(VENV)/.dev-installed
TYPES_TREE    := build/types/vramscope

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# What is imported is compiled once and kept: see the install below, which compiles nothing.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-dev demo test coverage lint format types contracts unit browser examples benchmarks \
        nvme-check gpu-check wheels screenshots clean

help: ## Say what each command does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(RUNTIME_STAMP) ## Make .venv and install into it; nothing to do when that is up to date

setup-dev: $(DEV_STAMP)

demo: $(RUNTIME_STAMP) ## Train a small GPT and watch its memory in a browser (PORT=8501)
	@exec $(BIN)/vramscope demo --port $(PORT)

# Tests start many processes; one thread each keeps two cores from being fought over.
test unit browser: export OMP_NUM_THREADS ?= 1

# pytest comes last, so that its own summary is what one reads at the end.
test: lint types contracts ## Everything: lint, types, import contracts, all tests
	$(PYTEST) -n $(WORKERS) --dist loadfile $(ARGS)

coverage: $(DEV_STAMP) ## All tests, and which lines they run
	$(PYTEST) --cov --cov-report=term:skip-covered $(ARGS)

lint: $(DEV_STAMP) ## ruff: rules and formatting
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

format: $(DEV_STAMP) ## Let ruff repair what it can and lay out the code
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

# mypy follows no editable install, so it is shown the folders under the name they are imported by.
types: $(DEV_STAMP) ## mypy --strict on the package
	@mkdir -p $(TYPES_TREE)
	@for folder in app profiler storage; do ln -sfn "$(CURDIR)/$$folder" $(TYPES_TREE)/$$folder; done
	MYPYPATH=build/types $(BIN)/mypy -p vramscope

contracts: $(DEV_STAMP) ## import-linter: data flows one way
	$(BIN)/lint-imports

unit: $(DEV_STAMP) ## The tests that need no browser (ARGS='-k words')
	$(PYTEST) -m "not browser" $(ARGS)

browser: $(DEV_STAMP) ## The tests that drive a real Chromium
	$(PYTEST) -m browser $(ARGS)

examples: $(DEV_STAMP) ## Run every example, most of them on two processes
	@$(BIN)/python examples/run_all.py

benchmarks: $(RUNTIME_STAMP) ## Measure what the hook costs; writes benchmarks/results/
	$(BIN)/python benchmarks/overhead.py --write
	$(BIN)/python docs/fill_readme.py

nvme-check: $(DEV_STAMP) ## ZeRO-Infinity's files against the profiler; the first run compiles for 15 minutes
	$(BIN)/python benchmarks/nvme_check.py

# A machine with a GPU and no network cannot make .venv: there its own Python and wheels/ serve.
gpu-check: ## Measured against predicted on this machine's GPU; says so if there is none
	@if [ -x $(BIN)/python ] || ! ls wheels/*.whl >/dev/null 2>&1; \
	then $(MAKE) --no-print-directory setup && $(BIN)/python benchmarks/gpu_check.py; \
	else $(PYTHON) benchmarks/gpu_check.py --install; fi

wheels: $(RUNTIME_STAMP) ## Fill wheels/ with what gpu-check needs on a machine without network
	@$(BIN)/python benchmarks/fetch_wheels.py

screenshots: $(DEV_STAMP) ## Take the README's picture anew
	$(BIN)/python docs/take_screenshots.py

clean: ## Remove .venv and everything that was built; runs that were recorded stay
	rm -rf $(VENV) build dist *.egg-info .coverage htmlcov .mypy_cache .ruff_cache .pytest_cache \
	  .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "vramscope needs Python 3.11 or newer, and found none." \
	  "On Debian or Ubuntu: apt-get install python3 python3-venv" \
	  "(or name one: make setup PYTHON=/path/to/python3.12)." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "vramscope needs Python" \
	  "3.11 or newer; $(PYTHON) is older or cannot be run." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) lacks the venv module." \
	  "On Debian or Ubuntu: apt-get install python3-venv (or the package named after its version," \
	  "such as python3.12-venv)." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The pins come before the project itself: a bare `torch` must never be resolved. Nothing is
# compiled beforehand: Python compiles what is imported, a small part, and the wait is halved.
$(RUNTIME_STAMP): requirements.txt pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV) (the first time this takes some minutes) ..."
	@$(BIN)/python -m pip install --quiet --no-compile -r requirements.txt
	@$(BIN)/python -m pip install --quiet --no-compile --no-deps -e . 2>$(VENV)/editable.log || \
	  { cat $(VENV)/editable.log >&2; exit 1; }
	@touch $@

$(DEV_STAMP): $(RUNTIME_STAMP)
	@echo "Installing the development tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --no-compile -c requirements.txt -e ".[dev]" 2>$(VENV)/editable.log || \
	  { cat $(VENV)/editable.log >&2; exit 1; }
	@touch $@
