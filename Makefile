# Everything that a developer of Weir runs. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

BIN := .venv/bin
CODE := src tests examples scripts $(wildcard benchmarks)

# How long `make soak` kills.
SOAK_MINUTES ?= 120

# How many seeds `make sim` runs.
SIM_SEEDS ?= 20000

.PHONY: help setup lint test test-fast test-slow demo sim bench soak lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 14

setup: ## make .venv with all dependencies, and install Java 17 where there is none (as root)
	@scripts/setup.sh

lint: setup ## ruff and mypy --strict
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy --strict

test: lint ## lint, then all but the slow tests, in two processes: what continuous integration runs
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-fast: setup ## only the tests that start no JVM and kill no process: seconds
	$(BIN)/pytest -m "not spark and not kill and not slow"

test-slow: setup ## the tests that make test leaves out, with 200 random kills of stops: over an hour
	$(BIN)/pytest -m slow

demo: setup ## kill a running job three times and prove that no row is lost or doubled
	$(BIN)/weir demo --kill 3

sim: setup ## SIM_SEEDS runs of the simulator: minutes
	$(BIN)/weir sim --seeds $(SIM_SEEDS)

bench: setup ## Weir against plain Structured Streaming, starts, memory, backpressure, stops, incremental checkpoints: two hours
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.graph
	$(BIN)/python -m benchmarks.backpressure
	$(BIN)/python -m benchmarks.stopping
	$(BIN)/python -m benchmarks.coordinator
	$(BIN)/python -m benchmarks.incremental
	$(BIN)/python -m benchmarks.process
	$(BIN)/python -m benchmarks.file_source
	$(BIN)/python -m benchmarks.start
	$(BIN)/python -m benchmarks.memory

soak: setup ## kill one job in every way there is for SOAK_MINUTES, then count each row; fills a disk if it is root
	$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES)

lock: setup ## resolve pyproject.toml anew into requirements.lock, as versions only
	$(BIN)/python scripts/lock.py

clean: ## remove what builds, tests and demos left behind; keeps .venv
	rm -rf build dist .weir spark-warehouse metastore_db derby.log .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
