# Everything a person types here; `make` alone lists it. Works with GNU make 3.81 and any POSIX shell.
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

VENV := .venv
PY := $(VENV)/bin/python
SPILLWAY := $(VENV)/bin/spillway
# Written last, so that whatever was interrupted is done again; `building` marks an environment that is half made.
STAMP := $(VENV)/.setup-stamp
BUILDING := $(VENV)/.building
PIP := $(PY) -m pip --disable-pip-version-check --quiet
# The run that REPORT.md is made from, and its folder: make report RUN=latest RUNS=bench-runs
RUN ?= reference
RUNS ?= report
# A Python of your choice: make setup PYTHON=/path/to/python3.12
PYTHON ?=
PYTEST_FLAGS ?=
# Tests wait more than they compute: this many processes at once, each with servers of its own.
TEST_PROCESSES ?= 3

# Sets `want`: what the environment must have been made of, and where (its scripts hold absolute paths).
WANT = want="$$(cat requirements.lock pyproject.toml | cksum) $$(pwd -P)"

# Sets `found` to the first Python that is new enough and can make environments, or leaves with 3 and says why.
define FIND_PYTHON
found=; bare=; \
for name in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	if "$$name" -c 'import ensurepip, venv' >/dev/null 2>&1; then found="$$name"; break; fi; \
	bare="$$name"; \
done; \
if [ -z "$$found" ] && [ -n "$$bare" ]; then \
	echo "setup: $$bare cannot make virtual environments (no ensurepip)." >&2; \
	echo "setup: on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 3; \
elif [ -z "$$found" ]; then \
	echo "setup: no Python 3.11 or newer on PATH. Install one, or name it: make setup PYTHON=/path/to/python3" >&2; \
	exit 3; \
fi
endef

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' Makefile

.PHONY: setup
setup: venv ## The environment (.venv) and the servers; a second run is instant
	@$(PY) -m stack.rabbit_fetch

.PHONY: venv
venv:
	@$(WANT); \
	[ "$$(cat $(STAMP) 2>/dev/null)" = "$$want" ] && $(PY) -c '' 2>/dev/null && exit 0; \
	here="$$(cut -d ' ' -f 3- $(STAMP) 2>/dev/null)"; \
	if [ -e $(BUILDING) ] || ! $(PY) -c 'import pip' 2>/dev/null || [ "$${here:-$$(pwd -P)}" != "$$(pwd -P)" ]; then \
		$(FIND_PYTHON); \
		echo "setup: new environment from $$found ($$("$$found" -V 2>&1))" >&2; \
		rm -rf $(VENV) && mkdir $(VENV) && : >$(BUILDING) && "$$found" -m venv $(VENV) || exit 3; \
	fi; \
	: >$(BUILDING) && rm -f $(STAMP) && \
	echo "setup: installing the locked packages (a minute or two the first time)" >&2 && \
	$(PIP) install --no-compile --no-deps --require-hashes -r requirements.lock && \
	{ $(PY) -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || :; } && \
	$(PIP) install --no-deps --no-build-isolation --no-index --editable . && \
	$(PIP) check >&2 && \
	printf '%s' "$$want" >$(STAMP) && rm -f $(BUILDING)

.PHONY: check
check: check-std venv ## Format, lint, types, import directions, unit and repository tests (under a minute, no server)
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/ruff check --quiet .
	$(VENV)/bin/lint-imports --no-logo
	@echo "mypy, beside the tests"; $(PY) -m mypy >$(VENV)/.mypy-says 2>&1 & types=$$!; \
	$(PY) -m pytest -m "not long" -n 2 $(PYTEST_FLAGS) tests/unit tests/repo; tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/.mypy-says; [ $$tests -eq 0 ] && [ $$types -eq 0 ]

.PHONY: check-std
check-std: ## The part of check that needs nothing but Python 3.9
	@$(or $(PYTHON),python3) -m tests.repo.tidy

.PHONY: test
# Only where it is given to make: a URL that happens to be in the environment means something else.
ifeq ($(origin URL),command line)
test:
	@$(or $(PYTHON),python3) -m tests.smoke $(URL)
else
test: setup ## All tests but the long ones, on real servers (at most 20 minutes); URL=… is the smoke of any instance
	$(PY) -m pytest -m "not long and not alone" -n $(TEST_PROCESSES) --dist loadfile $(PYTEST_FLAGS)
	$(PY) -m pytest -m "alone and not long" $(PYTEST_FLAGS)
endif

.PHONY: validate
validate: ## The contract's documents against their schemas: PYTHON=… with requirements-dev.txt, 3.9 or newer
	@$(or $(PYTHON),$(wildcard $(PY)),python3) -m tests.contract.validate

.PHONY: test-long
test-long: setup ## The long tests: long waits and long faults (at most 75 minutes)
	$(PY) -m pytest -m long $(PYTEST_FLAGS)

.PHONY: bench
bench: setup ## The quick sweep under overload, with its report (at most 15 minutes)
	$(SPILLWAY) bench run --quick

.PHONY: bench-full
bench-full: setup ## The reference sweep behind REPORT.md; an interrupted one goes on
	$(SPILLWAY) bench run --plan full

.PHONY: report
report: setup ## REPORT.md anew from the committed reference run (RUNS=bench-runs RUN=latest: from yours)
	$(SPILLWAY) bench report $(RUN) --runs $(RUNS) --into REPORT.md

.PHONY: demo
demo: setup ## Failures to watch; demo-NAME is one: worker-away broker-restart crash-after-commit crash-before-ack lease-expiry failed-and-replayed
	$(SPILLWAY) demo all

demo-%: setup
	$(SPILLWAY) demo $*

.PHONY: up
up: setup ## The local stack, in the background
	$(SPILLWAY) up --detach

.PHONY: down
down: venv ## Stop the local stack; its data stay
	$(SPILLWAY) down

.PHONY: try-compose
try-compose: setup ## Dockerfile and compose.yaml from nothing to finished uploads (needs root or a Docker engine)
	$(PY) -m deploy.try_compose

.PHONY: docs
docs: venv ## Render what is generated of ARCHITECTURE.md and contracts/
	$(PY) -m stack.docs --write
	$(PY) -m stack.contract --write

.PHONY: lock
lock: venv ## Resolve pyproject.toml into requirements.lock and its core for the container image (needs uv)
	@uv="$$(command -v uv || command -v $(VENV)/bin/uv)" || \
	{ echo "lock: uv is neither on PATH nor in $(VENV): $(PY) -m pip install uv" >&2; exit 3; }; \
	"$$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--all-extras pyproject.toml -o requirements.lock && \
	"$$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--constraint requirements.lock pyproject.toml -o requirements-core.lock && \
	"$$uv" pip compile --quiet --universal --python-version 3.9 --generate-hashes --no-emit-index-url \
		--group validate -o requirements-dev.txt && \
	"$$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--constraint requirements.lock --group image -o deploy/requirements-build.lock

.PHONY: clean
clean: ## Remove the environment and every cache; data and bench runs stay
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
