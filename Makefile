# `make help` lists the targets. All that is needed beforehand is make and Python 3.11 or newer.

PYTHON ?= python3
WORKERS ?= 3
DATA ?= data
ENVIRONMENT = $(PYTHON) tools/environment.py
BIN = .venv/bin
# What runs with the oldest releases that an extra allows: what the framework itself decides, not the whole lane again.
LANGGRAPH_CORE = $(addprefix tests/adapters/langgraph/test_,conformance.py deltas.py graphs.py keeping.py serializer.py writers.py) tests/adapters/langgraph_import/test_import.py
CREWAI_CORE = $(addprefix tests/adapters/crewai/test_,flows.py memories.py provider.py)
A2A_CORE = $(addprefix tests/adapters/a2a/test_,server.py stores.py)
# The longest first, so that none of them runs alone at the end.
LANES = langgraph crewai kagent langgraph-oldest crewai-oldest a2a a2a-oldest kubernetes kubernetes-oldest
# A plugin that takes a second to import, which the tests of the OpenAPI document do without.
PYTEST = $(BIN)/python -m pytest -p no:schemathesis
# Hundreds of processes are started by the tests; none of them should compile the same files again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run migrate quick test adapters conformance check format bench soak reference docs lock clean

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## start the server on an embedded database in ./data (DATA=folder for another)
	@$(ENVIRONMENT) run >/dev/null
	@exec $(BIN)/holdfast serve --data-dir $(DATA)

migrate: ## bring the schema of a database up to date: DATABASE=postgresql://user@host/name, or a SQLite file
	@$(if $(DATABASE),,echo "make migrate DATABASE=postgresql://user@host/name (or a SQLite file) says which database"; exit 2)
	@$(ENVIRONMENT) run >/dev/null
	@exec $(BIN)/holdfast migrate up --database "$(DATABASE)"

quick: ## before each commit, within a minute: every check, the unit tests without a server, the contract on SQLite in memory
	@$(ENVIRONMENT) test >/dev/null
	@$(MAKE) --no-print-directory --jobs 2 .static .quick

.PHONY: .quick
.quick:
	@$(PYTEST) -q -n 2 --dist worksteal -m "quick or not leg and not server" tests/*.py tests/core tests/stores tests/contract/test_contract.py $(ARGS)

test: ## every check and every test, on both engines (ARGS="-k name" to narrow)
	@$(ENVIRONMENT) test >/dev/null
	@$(MAKE) --no-print-directory --jobs 2 .static
	@$(PYTEST) -n $(WORKERS) --dist worksteal $(ARGS)
	@$(if $(ARGS),,$(MAKE) --no-print-directory adapters)

adapters: ## the tests of the adapters, each in its framework's own environment
	@$(MAKE) --no-print-directory --jobs 2 $(if $(ARGS),,.packaged) $(addprefix .lane-,$(LANES))

# Each lane has an environment of its own; NAME-oldest has the oldest release of the framework that its extra allows. Importing a
# framework takes as long as its tests, so two lanes run side by side with one process each, and print when they have ended.
lane = @said="$$(PYTHONPATH=src "$$($(ENVIRONMENT) $(1))" -m pytest $(2) $(ARGS) 2>&1)"; status=$$?; printf '%s\n%s\n' "$(1)" "$$said"; exit $$status

.PHONY: .packaged $(addprefix .lane-,$(LANES))
.lane-langgraph:
	$(call lane,langgraph,tests/adapters/langgraph tests/adapters/langgraph_import)
.lane-langgraph-oldest:
	$(call lane,langgraph-oldest,$(LANGGRAPH_CORE))
.lane-crewai:
	$(call lane,crewai,tests/adapters/crewai)
.lane-crewai-oldest:
	$(call lane,crewai-oldest,$(CREWAI_CORE))
.lane-kagent:
	$(call lane,kagent,-n 2 --dist loadfile tests/adapters/kagent)
.lane-a2a:
	$(call lane,a2a,tests/adapters/a2a)
.lane-a2a-oldest:
	$(call lane,a2a-oldest,$(A2A_CORE))
.lane-kubernetes:
	$(call lane,kubernetes,tests/adapters/kubernetes)
.lane-kubernetes-oldest:
	$(call lane,kubernetes-oldest,tests/adapters/kubernetes)

.packaged:
	@$(PYTHON) tools/conformance/packaged.py --workers 2

conformance: ## a framework's own tests with our adapter, from a checkout: PATH_TO=folder; writes docs/conformance.md
	@$(if $(PATH_TO),,echo "make conformance PATH_TO=folder, a checkout of the framework"; exit 2)
	@$(PYTHON) tools/conformance "$(PATH_TO)" $(ARGS)

check: ## style, types, layers and tidiness, without the tests
	@$(ENVIRONMENT) test >/dev/null
	@$(MAKE) --no-print-directory --jobs 2 .static
	@$(PYTEST) -q -p no:cacheprovider tests/test_tidy.py

.PHONY: .static .types .style
.static: .types .style

.types:
	@echo "mypy --strict" && $(BIN)/mypy --no-error-summary

.style:
	@echo "ruff check"    && $(BIN)/ruff check --quiet --output-format concise .
	@echo "ruff format"   && { $(BIN)/ruff format --quiet --check . || { echo "run \`make format\`"; exit 1; }; }
	@echo "lint-imports"  && { said="$$($(BIN)/lint-imports --no-logo 2>&1)" || { echo "$$said"; exit 1; }; }
	@echo "prose, per 1,000 lines:" && $(BIN)/python -m tests.prose src

format: ## put the source into its standard form
	@$(ENVIRONMENT) test >/dev/null
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format .

bench: ## every contender in one run; writes docs/benchmarks.md (ARGS="--quick" for a short one)
	@HOLDFAST_ADK_PYTHON="$$($(ENVIRONMENT) bench-adk)" PYTHONPATH=src:. "$$($(ENVIRONMENT) bench)" -m bench $(ARGS)

soak: ## the deep runs: long simulations, many kills, many seeds
	@$(ENVIRONMENT) test >/dev/null
	@HOLDFAST_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS) --timeout 0 -m soak tests $(ARGS)

reference: ## write docs/reference/http-api.md from the server's own document
	@$(ENVIRONMENT) test >/dev/null
	@$(BIN)/python tools/api_reference.py

docs: ## try every snippet of the documentation
	@$(ENVIRONMENT) test >/dev/null
	@$(BIN)/python -m pytest tests/docs $(ARGS)

lock: ## write the lock files anew, from pyproject.toml and requirements/*.in (UPGRADE=--upgrade for newer versions)
	@$(ENVIRONMENT) test >/dev/null
	@BIN=$(BIN) sh tools/lock.sh $(UPGRADE)

clean: ## remove what make has made, except the data
	rm -rf .venv .venv.lock dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
