# Everything that a developer of Weir runs. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

BIN := .venv/bin
CODE := src tests examples scripts benchmarks

# How long `make soak` kills.
SOAK_MINUTES ?= 120

# The release of Spark on which `make test-spark` runs.
SPARK ?= 4.1

# How many seeds `make sim` runs.
SIM_SEEDS ?= 20000

.PHONY: help setup packages lint test house test-fast test-slow test-flink test-kafka test-cluster test-kubernetes test-spark test-image demo first-minutes docs sim bench soak screenshots lock clean

# Hundreds of processes of a test run would each compile all that they import.
unexport PYTHONDONTWRITEBYTECODE

help: ## list targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 14

setup: ## create .venv with all dependencies; as root, also install Java 17 if missing
	@scripts/setup.sh

# Without compiling packages, since tests compile what they import, and without a class archive: it
# takes longer than a test run gains by it. Tests use one that is there.
packages:
	@scripts/setup.sh packages

lint: packages ## ruff and mypy --strict
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy --strict

# One process more than this one may use cores, since a test often waits; five take some 12 GB.
TEST_PROCESSES ?= $(shell cores=$$(nproc); echo $$((cores < 4 ? cores + 1 : 5)))

# Each process takes file by file, in the order of tests/conftest.py.
test: lint ## lint, and all but the slow tests, as in CI
	$(BIN)/pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

house: packages ## report the size and shape of the source tree
	@$(BIN)/python -m scripts.house

test-fast: setup ## only tests without a JVM or killed processes: seconds
	$(BIN)/pytest -m "not spark and not kill and not slow and not flink and not kafka and not cluster and not kubernetes"

test-slow: setup ## the slow tests, including 200 stops with a random kill: over an hour
	$(BIN)/pytest -m "slow and not kafka and not cluster"

test-flink: setup ## fetch Flink (330 MB) and run its own command line and dashboard against jobs: minutes
	$(BIN)/python -m tests.flink.distribution
	$(BIN)/pytest -m flink

test-kafka: packages ## fetch a Kafka broker (64 MB, with Maven) and test what reads and writes topics: minutes
	$(BIN)/python -m tests.kafka.jars
	$(BIN)/pytest -m "kafka and not slow"

test-cluster: packages ## fetch a small Hadoop cluster (105 MB) and a client of S3 (700 MB) with Maven, build an S3 server with Go, and test jobs on HDFS, YARN, S3 and several hosts: half an hour
	$(BIN)/python -m tests.cluster.jars
	$(BIN)/python -m tests.cluster.s3.needed
	$(BIN)/pytest -m "cluster and not slow"

# However the target ends, nothing goes on: a kill leaves empty directories, which the next run deletes.
test-kubernetes: packages ## as root, build Kubernetes with Go (half an hour, once), run a node of it, and delete the pods of jobs there: half an hour
	$(BIN)/python -m tests.kubernetes.needed
	$(BIN)/pytest -m kubernetes -s

# Of tests without a JVM nothing depends on the release.
test-spark: packages ## run the tests that use Spark on release SPARK, such as 4.1, in an environment of its own: a quarter of an hour
	python=$$(scripts/setup_spark.sh $(SPARK)) && \
	$$python -m pytest -m "spark and not slow and not flink and not kafka and not cluster" -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

test-image: packages ## build the image for Kubernetes with buildah, as root, and start Weir and an executor in it: minutes
	scripts/test_image.sh

demo: ## kill a running job three times; prove that no row is lost or duplicated
	@scripts/setup.sh demo
	$(BIN)/weir demo --kill 3

first-minutes: packages ## measure how long a new user needs to a job that was killed: at most two minutes
	$(BIN)/python -m scripts.first_minutes

docs: packages ## build the documentation site into build/site, and check its links
	$(BIN)/python -m scripts.docs_site

sim: setup ## run the simulator with SIM_SEEDS seeds: minutes
	$(BIN)/weir sim --seeds $(SIM_SEEDS)

# A benchmark whose target is missed does not keep the others from running.
BENCHMARKS := overhead graph backpressure stopping coordinator incremental process keys file_source start memory workers rest file_sizes sinks kafka adoption

bench: setup ## benchmark Weir against plain Structured Streaming, and its startup, memory, backpressure, stops and incremental checkpoints: two hours
	@missed=; for one in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$one || missed="$$missed $$one"; done; \
	if [ -n "$$missed" ]; then echo "missed a target:$$missed" >&2; exit 1; fi

soak: setup ## kill one job in every way for SOAK_MINUTES, then check every row; as root, also fills a disk
	$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES)

screenshots: setup ## take screenshots of the web page, and make the pictures that docs/ shows
	$(BIN)/python -m scripts.screenshots
	$(BIN)/python -m scripts.pictures

lock: setup ## resolve pyproject.toml again into requirements.lock, versions only
	$(BIN)/python scripts/lock.py

clean: ## remove files left by builds, tests and demos; keeps .venv
	rm -rf build dist .weir spark-warehouse metastore_db derby.log .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
