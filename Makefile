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
# A test that hangs shows where after 15 minutes and fails, instead of taking all others with it.
WATCH := -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true
else
PYTHON ?= python3
READY :=
endif

CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
JOBS ?= $(shell echo $$(( $(CORES) < 8 ? $(CORES) : 8 )))
# One code cache for all test processes and runs: the second run compiles nothing.
export TORCHINDUCTOR_CACHE_DIR ?= $(CURDIR)/.inductor_cache
# Compiled Python is kept, even where the environment says not to: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

# Without pytest-xdist (SETUP=0) the tests run one after another.
SPREAD = $$($(PYTHON) -c 'import xdist' 2>/dev/null && echo "-n $(JOBS) --dist worksteal" || true)
PYTEST = $(PYTHON) -m pytest $(SPREAD)
# torch's types are found through the interpreter it is installed for. The first use fetches pyright itself.
PYRIGHT = $(PYTHON) -m pyright --pythonpath "$$($(PYTHON) -c 'import sys; print(sys.executable)')"

.PHONY: help setup sim demo test test-full coverage style lint format docs bench check torchair install_torchair generate_ge_raw_custom_ops

help:  ## List the targets
	@grep -hE '^[a-z_-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 28

# torch goes first and alone, so that the package index decides which build it is and the rest finds it satisfied.
$(VENV)/.ready: pyproject.toml
	test -x $(VENV)/bin/python || $(BASE_PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet torch==$(TORCH)
	$(VENV)/bin/python -m pip install --quiet -e '.[test]'
	$(VENV)/bin/python -m compileall -q torchair  # pip does that for what it copies
	touch $@

setup: $(READY)  ## Make the environment in .venv, or reuse it

sim: $(READY)  ## Install torch_npu_sim into the environment: `import torch_npu` brings a simulated device
	$(PYTHON) -c 'from torchair.sim.install import refuse_plugin; refuse_plugin()'
	$(PYTHON) -m pip install --quiet --no-deps --no-build-isolation -e packages/torch_npu_sim

demo: $(READY)  ## Three models in both modes, against eager and stock torch.compile
	$(PYTHON) -m benchmarks.demo

test: $(READY)  ## All tests but the slow sweeps
	$(PYTEST) -m 'not full' $(WATCH) $(ARGS)

test-full: $(READY)  ## All tests
	$(PYTEST) $(ARGS)

coverage: $(READY)  ## Which lines the tests run: a report in output/coverage
	@$(PYTHON) -c 'import coverage' 2>/dev/null || { echo "coverage is missing: $(PYTHON) -m pip install coverage"; exit 1; }
	$(PYTHON) -m coverage run --source=torchair --data-file=output/.coverage -m pytest -m 'not full' $(ARGS)
	$(PYTHON) -m coverage report --data-file=output/.coverage --skip-covered
	$(PYTHON) -m coverage html --data-file=output/.coverage --directory=output/coverage

torchair: $(READY)  ## Build output/torchair-<version>-py3-none-any.whl
	PYTHON="$(PYTHON)" bash build.sh -c

install_torchair: $(READY)  ## Build it, and install it
	PYTHON="$(PYTHON)" bash build.sh -i

style: $(READY)  ## Style and formatting
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

lint: style  ## Style, formatting, spelling and types (pyright is fetched on first use)
	$(PYTHON) -m codespell_lib torchair docs tests
	$(PYRIGHT)
	$(PYRIGHT) -p pyright.strict.json

format: $(READY)  ## Let ruff mend what it can
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

docs: $(READY)  ## Write the generated reference pages anew
	$(PYTHON) -m docs.generate

generate_ge_raw_custom_ops: $(READY)  ## Write builders of the ops in codegen/custom_op/custom_reg_op.h anew
	$(PYTHON) -m torchair codegen codegen/custom_op/custom_reg_op.h -o codegen/custom_op/auto_generated_ge_raw_custom_ops.py

bench: $(READY)  ## Measure against eager and Inductor on this CPU
	$(PYTHON) -m benchmarks cpu

check: test lint  ## Everything before a merge: tests, style, types
