# Everything runs in a virtual environment of the checkout, .venv, made from pyproject.toml and made again when that changes.
# Needed on the machine: Python 3.11+, Java 17+ (Spark's JVM), make, and a package index. PYTHON and JAVA_HOME choose which.

PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := python -m pip --quiet --disable-pip-version-check
TOOLS := build/release-tools

ifneq ($(PYTHON),)
CANDIDATES := $(PYTHON)
else
CANDIDATES := python3 python3.13 python3.12 python3.11
endif

.DEFAULT_GOAL := help
.PHONY: help install java lock audit release lint format check docs man servers test-fast test test-all test-profile test-long test-cluster test-spark-cluster test-versions test-spark-versions test-postgres image test-deploy test-image test-slim test-page test-search-real test-elasticsearch test-kafka fuzz vendor soak demo demo-page page-pictures bench bench-quick bench-page endurance clean

help:
	@echo "make demo       a busy shop database copied, then replicated live, on servers that the demo starts itself (a minute)"
	@echo "make demo-page  the shop for as long as you want, with the page of 'pgsluice server' at an address that is printed"
	@echo "make test-fast  the tests that start no server and no process (a minute on two cores)"
	@echo "make test       every promise once, on real servers that the tests start (15 minutes on two cores)"
	@echo "make test-all   everything that runs on this machine: test, and all of the following tests (hours)"
	@echo "make test-long  tests that take minutes each, and property tests with many examples"
	@echo "make test-versions  each PostgreSQL version from 14 on as source and as target (several minutes)"
	@echo "make test-spark-versions  what runs on Spark, on the older version that is allowed, which it fetches into build (minutes)"
	@echo "make test-postgres  PostgreSQL's own tests of subscriptions and its regression suite, fetched from Debian, with groups (takes Perl; hours)"
	@echo "make test-cluster  leaders of three nats-servers killed under load (KILLS=30; replicator and worker a third as often)"
	@echo "make test-deploy  units, charts, manifests and the Dockerfile, with tools that it fetches into build/tools (minutes)"
	@echo "make image      the container images, with docker, podman or buildah (BASE_IMAGE, EXTRAS, IMAGE, REPLICATOR_IMAGE)"
	@echo "make test-image  these images, and the containers of docker/compose.yaml, whose processes are killed (takes root; half an hour)"
	@echo "make test-slim  sinks, snapshots, pipelines and notebooks with the packages and jars of the image alone (an hour)"
	@echo "make test-page  the server's page in a browser, which is fetched into build/browser (three minutes)"
	@echo "make page-pictures  renew docs/images/page-*.png"
	@echo "make test-search-real  the search sink on a real OpenSearch, whose jars it fetches into build/jars (takes a JDK; minutes)"
	@echo "make test-elasticsearch  the same on Elasticsearch 9.5 and 7.17, whose jars and Java it fetches into build (some twenty minutes)"
	@echo "make test-kafka  a real Kafka, whose jars it fetches into build/jars (minutes)"
	@echo "make fuzz       generated inputs for every reader, ten minutes for each target (over two hours; SECONDS=600)"
	@echo "make vendor     renew what the page takes from npm, as its lock file says"
	@echo "make test-spark-cluster  a Spark cluster in network namespaces, whose machines die (takes root; several minutes)"
	@echo "make soak       1,000 kills of every process under load, about an hour (SOAK_KILLS, KILL_SEED)"
	@echo "make check      format, lint, types, import contract, known vulnerabilities, and test-fast (a minute)"
	@echo "make audit      known vulnerabilities of the packages in requirements/"
	@echo "make lock       renew requirements/ after a change of pyproject.toml (UPGRADE=--upgrade takes the newest versions)"
	@echo "make release    sdist, wheel, bill of materials and checksums of a tag, into dist/ (TAG=v…; the same bytes from every clone)"
	@echo "make test-profile  make test, with wall and CPU time by folder, module, test, fixture, server start and sleep"
	@echo "make docs       build the site of docs/ into build/site, strictly: a broken link fails"
	@echo "make man        write a man page of every command into build/man"
	@echo "make servers    a source, a target and NATS, new and empty, for docs/tutorial.md; Ctrl-C ends them"
	@echo "make bench      every benchmark, on servers that it starts itself (use a machine that is otherwise idle)"
	@echo "make bench-quick  some of them at a small size, in under five minutes"
	@echo "make bench-page  renew docs/benchmarks.md from what the last 'make bench' measured"
	@echo "make endurance  memory and lag of a group over an hour of load (ENDURANCE_S=3600)"
	@echo "make format     format the code"
	@echo "make install    only make or renew the virtual environment $(VENV)"
	@echo "make clean      remove $(VENV) and all caches"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml requirements/build.txt requirements/dev.txt
	@for candidate in $(CANDIDATES); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found="$$candidate"; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "pgsluice needs Python 3.11 or later, and none of these is one: $(CANDIDATES). Install it, or name it: make PYTHON=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	echo "Installing into $(VENV) with $$found; the first time this takes a minute or two"; \
	"$$found" -m venv --clear $(VENV) || { echo "$$found could not make a virtual environment (Debian: install the package python3-venv)" >&2; exit 1; }
	@$(BIN)/$(PIP) install --require-hashes --requirement requirements/build.txt
	@$(BIN)/$(PIP) install --require-hashes --no-build-isolation --requirement requirements/dev.txt
	@$(BIN)/$(PIP) install --no-deps --no-build-isolation --editable .
	@$(BIN)/pgsluice spark-archive || echo "Spark will start without an archive of its classes, only slower" >&2
	@touch $@

# What 'make lock', 'make audit' and 'make release' run, apart from the program and its tests. It takes any environment as it is:
# to lock what pyproject.toml asks for now, nothing need be installed of what is locked.
$(BIN)/python:
	@$(MAKE) --no-print-directory install

$(TOOLS)/.installed: requirements/tools.txt | $(BIN)/python
	@$(BIN)/python -m venv --clear $(TOOLS)
	@$(TOOLS)/bin/$(PIP) install --require-hashes --requirement $<
	@touch $@

LOCK = $(TOOLS)/bin/uv pip compile --quiet --no-header --universal --python-version 3.11 --generate-hashes $(UPGRADE)
UPGRADE ?=
AUDIT ?=
VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)
TAG ?= v$(VERSION)

# Versions that are locked stay, unless pyproject.toml refuses them: UPGRADE=--upgrade takes the newest, --upgrade-package=NAME one.
lock: $(TOOLS)/.installed
	$(LOCK) pyproject.toml --extra dev --output-file requirements/dev.txt
	$(LOCK) pyproject.toml --extra kafka --constraint requirements/dev.txt --output-file requirements/image.txt
	$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires'])" \
	  | $(LOCK) - --constraint requirements/dev.txt --output-file requirements/build.txt
	$(LOCK) --group tools --output-file requirements/tools.txt

# For a release a package that could not be audited is a failure: AUDIT=--strict.
audit: $(TOOLS)/.installed
	@$(BIN)/python -m tools.audit $(TOOLS)/bin/pip-audit $(AUDIT)

# CONTRIBUTING.md has the steps before and after it.
release: AUDIT := --strict
release: $(INSTALLED) $(TOOLS)/.installed audit
	@$(BIN)/python -m tools.release $(TAG) dist/$(TAG) $(TOOLS)/bin/cyclonedx-py

# `java -version` says: openjdk version "17.0.15" 2025-04-15; before Java 9 it said "1.8.0_292".
java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=$$("$$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1); \
	if [ "$${version:-0}" -lt 17 ]; then \
	  echo "Spark needs Java 17 or later; '$$java -version' says version '$${version:-none}'. Install it (Debian: openjdk-17-jre-headless), or set JAVA_HOME" >&2; \
	  exit 1; \
	fi

lint: $(INSTALLED)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# The first ring needs no server, the second shows every promise once on real servers, the third is all that runs on one machine.
# More processes than cores: most tests wait for servers and JVMs. Each has some 1.5 GB at its peak.
SPREAD := --numprocesses 5 --dist loadfile --no-loadscope-reorder
# Tests that wait for no server need no more processes than there are cores.
SPREAD_FAST := --numprocesses logical --dist loadfile --no-loadscope-reorder
# Its three servers starve beside others: it has a target of its own.
CLUSTER := tests/end_to_end/test_cluster.py
KILLS ?= 30
# Most of the long tests run whole groups: three of them keep two cores busy.
SPREAD_LONG := --numprocesses 3 --dist loadfile --no-loadscope-reorder
APART := not long and not soak and not spark_cluster and not deploy and not image and not page and not search_real and not elasticsearch and not kafka and not postgres_suite
ORDINARY := -m "$(APART)" $(SPREAD)

test-fast: $(INSTALLED)
	$(BIN)/python -m pytest -m "not servers and $(APART)" $(SPREAD_FAST)

check: lint audit test-fast

test: $(INSTALLED) java
	$(BIN)/python -m pytest $(ORDINARY)

test-all: test test-long test-versions test-spark-versions test-postgres test-deploy test-image test-slim test-page test-search-real test-elasticsearch test-kafka test-cluster test-spark-cluster

test-profile: $(INSTALLED) java
	$(BIN)/python -m pytest -p tests.runs.costs --write-durations $(ORDINARY)

test-long: $(INSTALLED) java
	$(BIN)/python -m pytest -m "long and not search_real and not elasticsearch and not kafka" --timeout 7200 $(SPREAD_LONG) --ignore $(CLUSTER)
	$(BIN)/python -m pytest -m "hypothesis and not long and $(APART)" --hypothesis-profile many --timeout 7200 $(SPREAD)

soak: $(INSTALLED) java
	$(BIN)/python -m pytest -m soak -s

test-versions: $(INSTALLED) java
	$(BIN)/python -m pytest -m versions

# The older version of Spark that pyproject.toml allows, before everything else that is installed; the newer one has all other tests.
OLDER_SPARK := build/spark-4.2

$(OLDER_SPARK)/.installed: $(INSTALLED)
	@$(BIN)/python -m venv --clear $(OLDER_SPARK)
	@$(OLDER_SPARK)/bin/$(PIP) install 'pyspark==4.2.*'
	@$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(' + repr(sysconfig.get_path('purelib')) + ')')" \
	  > $$(echo $(OLDER_SPARK)/lib/python3.*/site-packages)/everything_else.pth
	@touch $@

test-spark-versions: $(OLDER_SPARK)/.installed java
	$(OLDER_SPARK)/bin/python -m pytest -m "$(APART)" $(SPREAD_LONG) tests/shared/spark tests/worker/test_own_spark.py \
	  tests/worker/data_source tests/replicator/pipelines/steps tests/end_to_end/test_postgres_to_postgres.py

test-postgres: $(INSTALLED) java
	@$(BIN)/python -c "from tests.postgres_suite.sources import VERSIONS, tests_of; [tests_of(version) for version in VERSIONS]"
	$(BIN)/python -m pytest -m postgres_suite -s

test-deploy: $(INSTALLED) $(TOOLS)/.installed java
	@sh tests/deploy/install_tools.sh build/tools $(BIN)/python
	$(BIN)/python -m pytest -m deploy

IMAGE ?= pgsluice:$(VERSION)
REPLICATOR_IMAGE ?= pgsluice-replicator:$(VERSION)

image:
	@sh docker/build.sh worker $(IMAGE)
	@sh docker/build.sh replicator $(REPLICATOR_IMAGE)

test-image: $(INSTALLED)
	$(BIN)/python -m pytest -m image -v

SLIM := build/slim
SLIM_TESTS := tests/worker tests/replicator tests/shared/spark tests/end_to_end

test-slim: $(INSTALLED) java
	@sh tests/image/slim_environment.sh $(VENV) $(SLIM)
	$(SLIM)/bin/python -m pytest $(SLIM_TESTS) $(ORDINARY)

SECONDS ?= 600

fuzz: $(INSTALLED)
	@sh tests/fuzz/install_atheris.sh build/fuzz/packages $(BIN)/python
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

test-page: $(INSTALLED) java
	@sh tests/console/server/page/install_browser.sh build/browser
	$(BIN)/python -m pytest -m page

test-search-real: $(INSTALLED) java
	@$(BIN)/python -c "from tests.servers.maven import server_jars; server_jars('opensearch')"
	$(BIN)/python -m pytest -m search_real --timeout 7200

test-elasticsearch: $(INSTALLED) java
	@$(BIN)/python -c "from tests.servers.elasticsearch import fetch; fetch()"
	$(BIN)/python -m pytest -m elasticsearch --timeout 7200

test-kafka: $(INSTALLED) java
	@$(BIN)/python -c "from tests.servers.maven import server_jars; server_jars('kafka')"
	$(BIN)/python -m pytest -m kafka

page-pictures: $(INSTALLED) java
	@sh tests/console/server/page/install_browser.sh build/browser
	@$(BIN)/python -m tests.console.server.page.pictures

vendor: $(INSTALLED)
	@$(BIN)/python -m tests.console.server.page.vendored

test-cluster: $(INSTALLED) java
	CLUSTER_LEADER_KILLS=$(KILLS) $(BIN)/python -m pytest $(CLUSTER) -m long --timeout 7200 -s

test-spark-cluster: $(INSTALLED) java
	$(BIN)/python -m pytest -m spark_cluster -v

docs: $(INSTALLED)
	$(BIN)/mkdocs build --strict --quiet

man: $(INSTALLED)
	$(BIN)/python docs/man_pages.py build/man

servers: $(INSTALLED)
	@$(BIN)/python -m tests.servers

demo: $(INSTALLED) java
	@$(BIN)/python -m benchmarks.demo

demo-page: $(INSTALLED) java
	@$(BIN)/python -m benchmarks.demo.page

BENCH_RESULTS := benchmarks/results/bench.json

bench: $(INSTALLED) java
	@$(BIN)/python -m benchmarks.run --repeat 3 --json $(BENCH_RESULTS)
	@$(BIN)/python -m benchmarks.page $(BENCH_RESULTS)

bench-quick: $(INSTALLED) java
	@$(BIN)/python -m benchmarks.run backlog tpcb updates initial_copy latency cold_start \
	  --rows 100000 --commits-per-s 1000 --seconds 5 --json benchmarks/results/quick.json

bench-page: $(INSTALLED)
	@$(BIN)/python -m benchmarks.page $(BENCH_RESULTS)

ENDURANCE_S ?= 3600

endurance: $(INSTALLED) java
	@$(BIN)/python -m benchmarks.run endurance --seconds $(ENDURANCE_S) --json benchmarks/results/endurance.json

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
