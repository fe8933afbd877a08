# One target a task; `make` alone lists them. ARGS=... is passed on to the program that a target runs.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
ARGS ?=
# Tests that run side by side: more than two cores have, since many of them wait.
WORKERS ?= 6
# A test that fails in `make test` runs once more, and is told of at the end if it passes then; 0: it has failed.
RERUNS ?= 1
BIN := .venv/bin
# At a terminal it shows what it fetches.
PIP := $(BIN)/python -m pip --disable-pip-version-check $(shell [ -t 2 ] || echo --quiet)
RUN_READY := .venv/.ready-to-run
SERVERS_READY := .venv/.ready-for-servers
COMPILE_READY := .venv/.ready-to-compile
COMPILED_ONCE := .venv/.compiled-once
TEST_READY := .venv/.ready-to-test
# Distributions of their own that every installation has.
PACKAGES := bench client migrate
# What is built of its source while it is installed is not packed small, to be unpacked at once.
export DIST_EXTRA_CONFIG := $(CURDIR)/requirements/wheels.cfg
# Compiled once: a Python that may not keep what it has compiled takes three times as long to load the tests.
unexport PYTHONDONTWRITEBYTECODE
JAR_LISTS := $(wildcard src/embermq/pipeline/*_jars.txt)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: $(RUN_READY) ## Make .venv with the program in it: .venv/bin/embermq, compiled where there is a C compiler
	@$(COMPILE_WHERE_POSSIBLE)

.PHONY: servers
servers: $(SERVERS_READY) ## Add what Redis, PostgreSQL, MySQL and Kafka stores need to .venv

.PHONY: compile
compile: $(COMPILE_READY) ## The part of `install` that compiles the hot path with mypyc, however long it takes
	@$(BIN)/python scripts/compile

.PHONY: run
run: $(RUN_READY) | $(COMPILED_ONCE) ## Install if needed and run the broker (ARGS='--set log.durability=os')
	@exec $(BIN)/embermq run $(ARGS)

# Of what is installed the tests load a third, and Python compiles that.
test: export LEFT_UNCOMPILED := --no-compile
.PHONY: test
test: ## All checks and tests (ARGS='-k retained', WORKERS=0 for one at a time), with all they need
	@$(MAKE) --no-print-directory --jobs=4 CLIENTS=clients foreign-clients kafka-jars spark-classes compiled-tests
	@exec $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --reruns $(RERUNS) $(ARGS)

# What the tests need, each after what itself needs, so that they are fetched and made side by side.
.PHONY: debian-packages foreign-clients kafka-jars spark-classes compiled-tests
debian-packages:
	@scripts/debian-packages $(CLIENTS)

foreign-clients: debian-packages
	@scripts/foreign-clients

kafka-jars: debian-packages $(TEST_READY)
	@$(BIN)/python scripts/kafka

spark-classes: debian-packages $(RUN_READY)
	@# Compiled now: Spark gives its workers in Python ten seconds to begin.
	@$(BIN)/python -c "import pyspark.worker, pyspark.daemon, pyspark.sql.streaming, pandas, pyarrow"
	@$(BIN)/python scripts/spark-classes

# Once, instead of by each worker of the first run at the same time.
compiled-tests: $(TEST_READY)
	@ls tests/__pycache__/conftest*-pytest-*.pyc >/dev/null 2>&1 || $(BIN)/python -m pytest --collect-only -qq >/dev/null

.PHONY: test-compiled
test-compiled: compile $(TEST_READY) ## Unit and conformance tests with the hot path compiled; `make test` runs the source
	@exec env EMBER_COMPILED=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(or $(ARGS),tests/unit tests/conformance)

.PHONY: conformance-nodes
conformance-nodes: $(TEST_READY) ## Conformance tests through two nodes of a cluster, each client of a test at the next one in turn
	@scripts/debian-packages
	@$(BIN)/python scripts/kafka
	@exec $(BIN)/python -m pytest tests/conformance --two-nodes -n 0 -q $(ARGS)

.PHONY: check
check: lint types contracts ## Lint, types, import contracts and unit tests, in about two minutes
	@$(BIN)/python -m pytest tests/unit $(ARGS)

.PHONY: lint
lint: $(TEST_READY) ## Ruff, the house rules of scripts/tidy, and that the generated docs are current
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python scripts/tidy
	@$(BIN)/python scripts/configuration-page --check
	@$(BIN)/python scripts/conformance-page --check
	@$(BIN)/python scripts/rpc-messages --check

.PHONY: format
format: $(TEST_READY) ## Rewrite the source in the one format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: types
types: $(TEST_READY) ## Strict mypy over source and tests
	@$(BIN)/mypy

.PHONY: contracts
contracts: $(TEST_READY) ## Who may import whom (.importlinter)
	@$(BIN)/lint-imports
	@$(BIN)/lint-imports --config bench/.importlinter
	@$(BIN)/lint-imports --config migrate/.importlinter

.PHONY: bench
bench: $(RUN_READY) ## EmberMQ beside Mosquitto in one run (MOSQUITTO=PROGRAM, else Debian's; RUMQTTD=PROGRAM)
	@$(if $(MOSQUITTO),:,scripts/debian-packages mosquitto)
	@exec $(BIN)/python -m benchmarks.run $(ARGS)

.PHONY: bench-against
bench-against: $(RUN_READY) ## This tree in turns with the commit REV (ARGS='--work qos1 --rounds-loopback 2')
	@exec $(BIN)/python -m benchmarks.against $(or $(REV),HEAD) $(ARGS)

.PHONY: kafka
kafka: $(TEST_READY) ## One Kafka on loopback until Ctrl-C (ARGS='--port 9092 --data FOLDER')
	@exec $(BIN)/python scripts/kafka run $(ARGS)

.PHONY: demo
demo: $(TEST_READY) ## A vehicle fleet and one application, counted to the last message
	@exec $(BIN)/python examples/fleet/demo.py $(ARGS)

.PHONY: cluster-demo
cluster-demo: $(TEST_READY) ## etcd, Redis, Kafka and three brokers, of which one is killed under load: all is counted
	@scripts/debian-packages cluster
	@$(BIN)/python scripts/kafka
	@exec $(BIN)/python examples/cluster/demo.py $(ARGS)

.PHONY: faults
faults: ## Kills, full disks and torn files, 20 rounds each (SEED=N as a run has printed it)
	@$(MAKE) --no-print-directory --jobs=4 kafka-jars spark-classes
	@exec env FAULT_ROUNDS=20 $(BIN)/python -m pytest -m "faults or in_faults or long_rounds" \
		--timeout=1800 -o faulthandler_timeout=0 $(ARGS)

.PHONY: outages
outages: $(TEST_READY) ## Redis away for ten minutes at 5,000 messages a second (OUTAGE_S=60 for one), with figures
	@scripts/debian-packages
	@$(BIN)/python scripts/kafka
	@exec env FAULT_ROUNDS=1 OUTAGE_S=$(or $(OUTAGE_S),600) $(BIN)/python -m pytest tests/faults/test_redis_outage.py -k long \
		-n 0 -rP --timeout=14400 -o faulthandler_timeout=0 $(ARGS)

.PHONY: perf
perf: ## Every figure that is promised, one after the other; leave the machine to it
	@$(MAKE) --no-print-directory kafka-jars
	@exec env PERF=1 $(BIN)/python -m pytest -rP $(ARGS)

.PHONY: simulate
simulate: $(TEST_READY) ## Brokers in a simulated world, from as many seeds as one likes (SEEDS=2000 FIRST=1)
	@exec $(BIN)/python -m pytest tests/simulation/test_seeds.py --seeds=$(or $(SEEDS),2000) \
		--cluster-seeds=$(or $(SEEDS),2000) --first-seed=$(or $(FIRST),1) -n auto -q $(ARGS)

.PHONY: fuzz
fuzz: $(TEST_READY) ## 1,000,000 mutated packets (ARGS='--fuzz-seed 2'), and property tests with many more cases
	@exec $(BIN)/python -m pytest tests/hostile/test_fuzz.py tests/property --fuzz-packets=1000000 \
		--hypothesis-profile=fuzz --timeout=1800 -o faulthandler_timeout=0 -rP $(ARGS)

.PHONY: dashboard
dashboard: ## Build the page at / of its sources in dashboard/, with Node.js
	@scripts/dashboard

.PHONY: docs
docs: $(TEST_READY) ## The documentation as a site in build/docs/site (ARGS='--serve 8000')
	@exec $(BIN)/python scripts/site $(ARGS)

.PHONY: release-check
release-check: $(TEST_READY) ## Build the distributions, install them into a fresh environment and a container, publish a message
	@exec $(BIN)/python scripts/release-check $(ARGS)

.PHONY: promises
promises: $(TEST_READY) ## Promises of docs/guarantees that no test names
	@$(BIN)/python scripts/promises $(ARGS)

.PHONY: lock
lock: $(TEST_READY) ## Write requirements/*.txt from pyproject.toml (LOCK_ARGS=--upgrade)
	@scripts/lock

.PHONY: clean
clean: ## Remove .venv, caches and build results; never a data directory
	@rm -rf .venv build dist src/embermq/_compiled{,.new,.old} {bench,client,migrate}/{build,dist} .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find src bench client migrate tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@PYTHON='$(PYTHON)' scripts/make-venv

# The lock holds every package, so pip resolves nothing; the program itself is installed in place.
# Nothing is built in isolation, since that would fetch build tools that have no hash in the lock.
$(RUN_READY): requirements/build.txt requirements/run.txt pyproject.toml $(PACKAGES:%=%/pyproject.toml) $(JAR_LISTS) | $(BIN)/python
	@echo "Installing what EmberMQ runs on into .venv (1 GB; quick from now on)"
	@$(PIP) install $(LEFT_UNCOMPILED) --require-hashes --no-deps --requirement requirements/build.txt
	@$(PIP) install $(LEFT_UNCOMPILED) --require-hashes --no-deps --no-build-isolation --requirement requirements/run.txt
	@$(PIP) install --no-deps --no-build-isolation --editable . $(PACKAGES:%=--editable %)
	@$(BIN)/embermq pipeline fetch-jars
	@touch $@

$(SERVERS_READY): requirements/servers.txt $(RUN_READY)
	@$(PIP) install --require-hashes --no-deps --no-build-isolation --requirement requirements/servers.txt
	@touch $@

# The program runs without, so what keeps it from being compiled is told and is no failure.
COMPILE_WHERE_POSSIBLE = ! $(BIN)/python scripts/compile --possible \
	|| { $(MAKE) --no-print-directory --silent $(COMPILE_READY) && $(BIN)/python scripts/compile --limit-s 180; } \
	|| echo "EmberMQ is installed, and its source runs."; touch $(COMPILED_ONCE)

# By the first `make run`: who changes the source would wait for it each time. The broker tells when it is older than the source.
$(COMPILED_ONCE): | $(RUN_READY)
	@$(COMPILE_WHERE_POSSIBLE)

$(COMPILE_READY): requirements/compile.txt $(RUN_READY)
	@$(PIP) install --require-hashes --no-deps --no-build-isolation --requirement requirements/compile.txt
	@touch $@

$(TEST_READY): requirements/test.txt client/pyproject.toml $(JAR_LISTS) $(RUN_READY)
	@echo "Installing what the tests need into .venv"
	@$(BIN)/embermq pipeline fetch-jars --set pipeline.lake_dir=s3a://tests/lake & \
	$(PIP) install $(LEFT_UNCOMPILED) --require-hashes --no-deps --no-build-isolation --requirement requirements/test.txt; \
	wait $$!
	@touch $@
