# `make` alone says what there is. Everything runs in .venv, which is made on first use and again only when
# pyproject.toml or constraints.txt changes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# Tests start hundreds of Pythons, and each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := .txtopo/demo
MADE := $(VENV)/.made
MINUTES ?= 10
RUNS := $(VENV)/.installed-to-run
INSTALLED := $(VENV)/.installed
INSTALLED_DOCS := $(VENV)/.installed-docs
INSTALLED_BENCH := $(VENV)/.installed-bench
SERVERS := $(VENV)/.servers
CLASSES := $(VENV)/spark-classes.jsa
# The same packages for every clone, so that a new release of one breaks no build unnoticed. Users of txtopo are not bound by them.
# An index of packages that does not answer is asked again, with growing pauses.
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --retries 10 --timeout 30 --constraint constraints.txt
OR_SAY := || { echo >&2 "  pip names the package above. To try again, type: make $(or $(MAKECMDGOALS),venv)"; exit 1; }

.PHONY: help venv java constraints servers more-servers demo demo-reset kafka-demo quick test kills guards thorough mutants soak lint types layers docs docs-refresh screenshots bench bench-quick ci

help: ## Say what there is
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: java $(INSTALLED) ## Make .venv with everything that running and developing needs

$(MADE):
	@stop() { printf >&2 '%s\n' "$$@"; exit 1; }; \
	command -v "$(PYTHON)" >/dev/null || stop "there is no $(PYTHON)" "  Install Python 3.11 or newer: apt-get install python3 python3-venv"; \
	"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  stop "$$("$(PYTHON)" --version) is too old; 3.11 or newer is needed" "  Install one and name it: make $(or $(MAKECMDGOALS),venv) PYTHON=python3.12"; \
	if ! "$(BIN)/python" -c 'import pip' 2>/dev/null; then \
	  "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	    stop "$(PYTHON) cannot make a virtual environment: its venv package is not installed" "  Type: apt-get install python3-venv"; \
	  echo "making $(VENV)"; \
	  rm -rf "$(VENV)"; \
	  "$(PYTHON)" -m venv "$(VENV)"; \
	fi
	@touch $@

# Only the packages that running needs, so that the demo waits for less. Nor are they compiled: Python
# compiles the modules that are imported, a tenth of all.
$(RUNS): pyproject.toml constraints.txt | $(MADE)
	@echo "installing txtopo and what running it needs into $(VENV): pyspark alone is some 400 MB, so the first time may take minutes"
	$(INSTALL) --no-compile --editable . $(OR_SAY)
	@touch $@

# It has what running needs, too: the demo after it installs nothing.
$(INSTALLED): pyproject.toml constraints.txt | $(MADE)
	@echo "installing what running and developing need into $(VENV); the first time this may take minutes"
	$(INSTALL) --quiet --editable '.[dev]' $(OR_SAY)
	@touch $(RUNS) $@

$(INSTALLED_DOCS): $(INSTALLED)
	$(INSTALL) --quiet --editable '.[docs]' $(OR_SAY)
	@touch $@

$(INSTALLED_BENCH): $(INSTALLED)
	$(INSTALL) --quiet --editable '.[bench]' $(OR_SAY)
	@touch $@

$(SERVERS): $(INSTALLED) tests/servers/fetch.py tests/servers/jars.py tests/servers/browser.py
	$(BIN)/python -m tests.servers.fetch
	$(BIN)/python -m tests.servers.jars
	$(BIN)/python -m tests.servers.browser
	@touch $@

# Which Java wrote it does not matter: another one goes on without it.
$(CLASSES): tests/quick_java.py | $(INSTALLED)
	$(BIN)/python -m tests.quick_java

constraints: | $(MADE) ## Take the newest packages that pyproject.toml allows into constraints.txt; then run make ci
	rm -rf $(VENV)/newest
	$(BIN)/python -m venv $(VENV)/newest
	$(VENV)/newest/bin/python -m pip install --quiet --disable-pip-version-check '.[dev,docs,bench]'
	{ echo "# The packages that make installs. Renewed by: make constraints"; \
	  $(VENV)/newest/bin/python -m pip freeze --disable-pip-version-check --exclude txtopo; } >$(VENV)/constraints.txt
	mv $(VENV)/constraints.txt constraints.txt
	rm -rf $(VENV)/newest

servers: $(SERVERS) ## Fetch the database servers, the Kafka broker and the browser that the tests start, into .venv

more-servers: java $(INSTALLED) ## Fetch what thorough tests need besides, into .venv: servers of objects by Go and npm, Delta's reader, promtool
	$(BIN)/python -m tests.servers.more

java: # Both Spark and the embedded ZooKeeper need it.
	@java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java; \
	said=$$("$$java" -version 2>&1) || said=; \
	version=$$(sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' <<<"$$said"); \
	if (( $${version:-0} < 17 )); then \
	  printf >&2 '%s\n' "Java 17 or newer is needed; $$java is $${version:+Java }$${version:-not there}" \
	    "  Type: apt-get install default-jre-headless; or set JAVA_HOME to the directory of a newer one"; \
	  exit 1; \
	fi

demo: java $(RUNS) ## Count every word of Python's own library, exactly once; interrupt it, type it again
	$(BIN)/txtopo demo

demo-reset: ## Forget what the demo has counted
	rm -rf $(DEMO)

kafka-demo: java $(INSTALLED) ## From topic to topic on a Kafka broker of its own, killed in the middle: each line is there once, and in order
	$(BIN)/python -m tests.servers.jars
	$(BIN)/python -m tests.kafka_demo

# Two processes, each with a Spark, a ZooKeeper and one server of each kind for all its tests; a file of tests stays in one of them.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

quick: java lint types layers ## Check what a contributor needs while working: ruff, mypy, imports, the tests without servers
	$(PYTEST) -m 'not thorough' tests/unit tests/property

test: java $(INSTALLED) $(SERVERS) $(CLASSES) ## Run the tests, with real Spark, ZooKeeper, PostgreSQL, MariaDB, Redis and Kafka; TXTOPO_NO_SKIPS=1 forbids skipping
	$(PYTEST) -m 'not fault and not thorough'

kills: java $(INSTALLED) $(SERVERS) $(CLASSES) ## Kill drivers, workers and servers at named points
	$(PYTEST) -m 'not thorough' tests/fault

guards: java $(INSTALLED) $(SERVERS) $(CLASSES) ## Remove each guard from a copy of the source; a test must notice
	$(BIN)/python -m tests.mutants.runner --one-per-guard

thorough: java $(INSTALLED) $(INSTALLED_DOCS) $(SERVERS) $(CLASSES) ## Run all that the gate leaves out, in hours: more backends and moments, schedules, mutants, the soak; ONLY=fault,soak for parts
	-$(BIN)/python -m tests.servers.more
	$(BIN)/python -m tests.suites thorough $(ONLY)

mutants: java $(INSTALLED) $(SERVERS) $(CLASSES) ## Break a copy of the source in hundreds of ways; a test must notice each
	$(BIN)/python -m tests.mutants.runner

soak: java $(INSTALLED) $(SERVERS) $(CLASSES) ## Kill, pause and fence at random for as long as you like: make soak MINUTES=10 (SEED=… to repeat one)
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

lint: $(INSTALLED) ## Look for mistakes in the source, and at its format (ruff)
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet || { echo "The format is not ruff's: type $(BIN)/ruff format"; exit 1; }

types: $(INSTALLED) ## Check the types (mypy --strict)
	$(BIN)/mypy

layers: $(INSTALLED) ## Check that imports only go down (import-linter)
	$(BIN)/lint-imports

docs: $(INSTALLED_DOCS) ## Build the documentation into docs/_build/html; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

docs-refresh: $(INSTALLED) ## Write the parts of the documentation that are made from the source
	$(BIN)/python docs/generated.py

screenshots: java $(INSTALLED) $(SERVERS) ## Take the pictures of the page, of a real run, for the documentation
	$(BIN)/python -m tests.processes.watched

bench: java $(INSTALLED_BENCH) $(SERVERS) ## Measure everything beside its peers, about 47 minutes on a quiet machine; writes docs/benchmarks.md
	$(BIN)/python -m bench.peers
	$(BIN)/python -m bench

bench-quick: java $(INSTALLED_BENCH) $(SERVERS) ## Measure most of it in a reduced form, under three minutes: ratios only, no targets; every result is checked
	$(BIN)/python -m bench --quick

ci: $(INSTALLED) ## Run the gate: all that must pass before a change goes in, in at most 20 minutes
	$(BIN)/python -m tests.suites gate
