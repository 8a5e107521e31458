# Needs make and Python 3.11 or newer. Everything is installed into .venv and nowhere else.

VENV   ?= .venv
PYTHON ?=
JOBS   ?= auto
ARGS   ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet

# Each process takes a run of files, whose tests share what they prepare; who is done early helps.
SPREAD := -n $(JOBS) --dist worksteal

# Whatever the environment says, what is compiled is kept: tests start an interpreter very often.
export PYTHONDONTWRITEBYTECODE :=

# What can be checked: a folder that is there.
CODE := $(wildcard src tests bench tools)

.DEFAULT_GOAL := help
.PHONY: help run test check format bench crash clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: $(VENV)/.installed ## install what running needs, then show that the promise holds on this disk
	$(BIN)/holdfast prove $(ARGS)

test: $(VENV)/.installed-dev ## run all tests but the long ones (ARGS="-k name", JOBS=4)
	$(BIN)/python -m pytest $(SPREAD) $(ARGS)

check: $(VENV)/.installed-dev ## formatting, lint, types, import rules, and the snippets of the docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/docs

format: $(VENV)/.installed-dev ## format the code and mend what can be mended
	$(BIN)/ruff check --fix-only --exit-zero --quiet .
	$(BIN)/ruff format .

bench: $(VENV)/.installed ## measure, as ratios to the bare engine
	$(BIN)/python -m bench $(ARGS)

crash: $(VENV)/.installed-dev ## the crash tests, complete, and every other long test
	$(BIN)/python -m pytest $(SPREAD) -m "crash or long" --hypothesis-profile=long --timeout=3600 $(ARGS)

clean: ## remove .venv, caches and build results
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than pyproject.toml once what that file asks for is installed.
$(VENV)/.installed: pyproject.toml | $(BIN)/pip
	$(PIP) install --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/pip
	$(PIP) install --editable '.[dev]'
	@touch $@ $(VENV)/.installed

# An environment that was there already may be one without pip.
$(BIN)/pip: | $(BIN)/python
	@test -x $@ || $(BIN)/python -m ensurepip --default-pip

# The first Python that is new enough and can make environments. PYTHON=… asks for a certain one.
$(BIN)/python:
	@for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python); do \
		if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "making $(VENV) with $$($$python --version)"; \
			exec $$python -m venv --clear $(VENV); \
		fi; \
	done; \
	echo "Python 3.11 or newer with its venv module is needed, and $(or $(PYTHON),python3) is not that." >&2; \
	echo "Install one, or name it: make PYTHON=/path/to/python3" >&2; \
	exit 1
