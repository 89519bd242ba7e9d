# Everyday commands. The first one that needs it builds .venv; later ones start at once.

VENV := .venv
BIN := $(VENV)/bin
# Two installations: for `make dev` the server and the client of README's program; for all other commands the
# developers' tools as well.
RUNS := $(VENV)/.runs
STAMP := $(VENV)/.installed
# More processes than cores: most tests wait for other processes as long as they compute.
TEST_PROCESSES ?= 5
FAST_TESTS := tests/unit tests/contract
LINTS := tests/architecture
QUICK := not exhaustive and (not framework or framework_ci)
CONSOLE_TYPES := $(VENV)/console-types
ARGS ?=
# The revision with which `make test-affected` compares the working tree.
BASE ?= HEAD
# If the environment forbids Python to keep compiled modules, each process compiles two thousand of them. That is more
# than half of the processor time of its start, and the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help dev test test-all test-affected test-fast lint check check-fast format console-types console-vendor screenshots openapi clients bench chaos fuzz long-conversation wheel clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# A developer's environment can run `dev` as well.
dev: $(if $(wildcard $(STAMP)),$(STAMP),$(RUNS)) ## Run everything in one process on port 8283 (ARGS="--port 9000")
	@exec $(BIN)/holdfast dev $(ARGS)

test: $(STAMP) ## Run the tests without those marked exhaustive, and without the lints (ARGS="-k cancel")
	@echo 'Running the tests in $(TEST_PROCESSES) processes: a line for each that fails; `make lint` has the lints, `make test-all` every case' >&2
	@$(BIN)/python -m pytest --processes $(TEST_PROCESSES) --ignore $(LINTS) -m '$(QUICK)' $(ARGS)

test-all: $(STAMP) ## Run every case of every test (ARGS="-k cancel", ARGS="--exhaustive 1/10" as CI does)
	@echo 'Running every test in $(TEST_PROCESSES) processes: a line for each that fails' >&2
	@$(BIN)/python -m pytest --processes $(TEST_PROCESSES) $(ARGS)

test-affected: $(STAMP) ## Run the tests that your change can break, by what they import (BASE=main, ARGS="-k cancel")
	@tests=$$($(BIN)/python -m tests.kit.project.affected $(BASE)); [ -z "$$tests" ] || \
	  $(BIN)/python -m pytest --processes $(TEST_PROCESSES) -m '$(QUICK)' $(ARGS) $$tests

test-fast: $(STAMP) ## Run the tests that need no service and no process of their own: units, contracts
	@$(BIN)/python -m pytest --processes 2 -m 'not services and not slow and not exhaustive' $(FAST_TESTS) $(ARGS)

lint: $(STAMP) ## Run the linter, the format check, the dead-code check, the rules of the source and documents, docs/openapi.json, the type checker
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/vulture
	@$(BIN)/vulture api cli shared worker bench tests
	@$(BIN)/python -m pytest -q $(LINTS)
	@$(BIN)/python -m pytest -q tests/contract/test_openapi_document.py
	@$(BIN)/pyright

check-fast: $(STAMP) ## Run the linters beside the fast tests, in two minutes: what to run while you work
	@$(MAKE) --no-print-directory -j2 lint test-fast

check: lint test ## Run the linters and the tests: what to run before you hand a change in

format: $(STAMP) ## Sort imports and format the code
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

console-types: $(CONSOLE_TYPES)/.installed ## Check the types of the console's JavaScript
	@$(CONSOLE_TYPES)/node_modules/.bin/tsc --project api/console/jsconfig.json

console-vendor: ## Fetch the console's libraries again (ARGS="preact@11.2.1" moves one to another version)
	@.ci/console-vendor $(ARGS)

screenshots: $(STAMP) ## Take the pictures of the console in docs/images, as its tests see it
	@mkdir -p docs/images
	@HOLDFAST_TEST_SCREENSHOTS=docs/images $(BIN)/python -m pytest tests/browser $(ARGS)

openapi: $(STAMP) ## Write docs/openapi.json anew, after a change to a route or a type in api/answers
	@$(BIN)/holdfast openapi > docs/openapi.json

clients: $(STAMP) ## Generate a TypeScript and a Python client from docs/openapi.json, and check that both compile
	@.ci/clients

bench: $(STAMP) ## Measure both set-ups (ARGS="--section first-token --only services"; ARGS="--help" lists all)
	@$(BIN)/python -m bench.run $(ARGS)

chaos: $(STAMP) ## Break a deployment for two minutes and check every promise (ARGS="--seed 7")
	@$(BIN)/python -m bench.chaos $(ARGS)

fuzz: $(STAMP) ## Send requests that no ordinary client sends, and check every answer (ARGS="--cases 10000 --minutes 30")
	@$(BIN)/python -m bench.fuzz $(ARGS)

long-conversation: $(STAMP) ## Talk for 2,000 turns while workers are killed, and check the memory (ARGS="--turns 200")
	@$(BIN)/python -m bench.long_conversation $(ARGS)

clean: ## Remove what these commands made; data of `make dev` stays in .holdfast
	@rm -rf $(VENV) .venv-contract build dist *.egg-info .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The type checker, and types for the console's untyped libraries. They are in .venv, which must exist first.
$(CONSOLE_TYPES)/.installed: .ci/console-types.json | $(STAMP)
	@mkdir -p $(CONSOLE_TYPES)
	@cp .ci/console-types.json $(CONSOLE_TYPES)/package.json
	@npm install --silent --no-audit --no-fund --prefix $(CONSOLE_TYPES)
	@touch $@

wheel: $(STAMP) ## Build the wheel and the source distribution, and the wheel of holdfast-agents, into dist/
	@rm -rf dist build
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' >/dev/null
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist packages/holdfast-agents
	@rm -rf build packages/holdfast-agents/build packages/holdfast-agents/*.egg-info
	@ls dist/*

$(RUNS): pyproject.toml setup.py constraints.txt
	@$(VENV_THERE)
	@echo "Installing what runs into $(VENV) with $$($(BIN)/python -V); this happens once" >&2
	@$(BIN)/python .ci/install -c constraints.txt -e '.[google]' letta-client
	@touch $@

$(STAMP): pyproject.toml setup.py constraints.txt
	@$(VENV_THERE)
	@echo "Installing the developers' tools into $(VENV) with $$($(BIN)/python -V); this happens once" >&2
	@$(BIN)/python .ci/install -c constraints.txt -e '.[dev]'
	@touch $@

# PYTHON=… chooses an interpreter. A name on the PATH may be a shim without an interpreter, so each name is tried.
define VENV_THERE
set -e; \
if ! $(BIN)/python -c pass 2>/dev/null; then \
  for name in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
    if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found="$$name"; break; fi; \
  done; \
  if [ -z "$$found" ]; then \
    echo "Holdfast needs Python 3.11 or newer. Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; \
    exit 1; \
  fi; \
  if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
    echo "$$found cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv" >&2; \
    exit 1; \
  fi; \
  rm -rf $(VENV); \
  "$$found" -m venv $(VENV); \
fi
endef
