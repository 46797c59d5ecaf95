# Two commands to start with: `make demo` and `make test`. Everything else is listed by `make help`.
#
#   TORCH=2.12.0   another supported torch for a fresh environment
#   SETUP=0        install nothing; use PYTHON as it is (a machine without network): make test SETUP=0 PYTHON=python3
#   JOBS=4         test processes

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

SETUP ?= 1
TORCH ?= 2.13.0
BASE_PYTHON ?= python3
VENV := .venv

ifeq ($(SETUP),1)
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
else
PYTHON ?= python3
READY :=
endif

CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
JOBS ?= $(shell echo $$(( $(CORES) < 8 ? $(CORES) : 8 )))
# One code cache for all test processes and runs: the second run compiles nothing.
export TORCHINDUCTOR_CACHE_DIR ?= $(CURDIR)/.inductor_cache
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

# Without pytest-xdist (SETUP=0) the tests run one after another.
SPREAD = $$($(PYTHON) -c 'import xdist' 2>/dev/null && echo "-n $(JOBS) --dist worksteal" || true)
PYTEST = $(PYTHON) -m pytest $(SPREAD)

.PHONY: help setup demo test test-full lint format docs bench check

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

# torch goes first and alone, so that the package index decides which build it is and the rest finds it satisfied.
$(VENV)/.ready: pyproject.toml
	test -x $(VENV)/bin/python || $(BASE_PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet torch==$(TORCH)
	$(VENV)/bin/python -m pip install --quiet -e '.[test]'
	touch $@

setup: $(READY)  ## Make the environment in .venv, or reuse it

demo: $(READY)  ## Compile a small language model and show what happened
	$(PYTHON) -m benchmarks.demo

test: $(READY)  ## All tests but the slow sweeps
	$(PYTEST) -m 'not full' $(ARGS)

test-full: $(READY)  ## All tests
	$(PYTEST) $(ARGS)

lint: $(READY)  ## Style, formatting and types
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m pyright
	$(PYTHON) -m pyright -p pyright.strict.json

format: $(READY)  ## Let ruff mend what it can
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

docs: $(READY)  ## Write the generated reference pages again
	$(PYTHON) -m docs.generate

bench: $(READY)  ## Measure against eager and Inductor on this CPU
	$(PYTHON) -m benchmarks cpu

check: lint test  ## What CI runs
