# `make help` lists the targets. All that is needed beforehand is make and Python 3.11 or newer.

PYTHON ?= python3
WORKERS ?= 3
DATA ?= data
ENVIRONMENT = $(PYTHON) tools/environment.py
BIN = .venv/bin
# What runs with the oldest releases that an extra allows: what the framework itself decides, not the whole lane again.
LANGGRAPH_CORE = $(addprefix tests/adapters/langgraph/test_,conformance.py deltas.py graphs.py keeping.py serializer.py writers.py) tests/adapters/langgraph_import/test_import.py
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

quick: ## before each commit, within a minute: every check, the unit tests, the contract on SQLite in memory
	@$(ENVIRONMENT) test >/dev/null
	@$(MAKE) --no-print-directory --jobs 2 .static .quick

.PHONY: .quick
.quick:
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "quick or not leg" tests/*.py tests/core tests/stores tests/contract/test_contract.py $(ARGS)

test: ## every check and every test, on both engines (ARGS="-k name" to narrow)
	@$(ENVIRONMENT) test >/dev/null
	@$(MAKE) --no-print-directory .static
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)
	@$(if $(ARGS),,$(MAKE) --no-print-directory adapters)

# Each lane has an environment of its own; NAME-oldest has the oldest release of the framework that its extra allows.
# The last argument is the number of workers: importing CrewAI takes as long as its tests, so a third worker costs more than it saves.
lane = @echo "$(1)" && PYTHONPATH=src "$$($(ENVIRONMENT) $(1))" -m pytest -n $(or $(4),$(WORKERS)) --dist $(or $(3),worksteal) $(2) $(ARGS)

adapters: ## the tests of the adapters, each in its framework's own environment
	$(call lane,langgraph,tests/adapters/langgraph tests/adapters/langgraph_import)
	$(call lane,langgraph-oldest,$(LANGGRAPH_CORE))
	$(call lane,crewai,tests/adapters/crewai,,2)
	$(call lane,crewai-oldest,tests/adapters/crewai,,2)
	$(call lane,kagent,tests/adapters/kagent,loadfile)
	$(call lane,a2a,tests/adapters/a2a)
	$(call lane,a2a-oldest,tests/adapters/a2a)
	$(call lane,kubernetes,tests/adapters/kubernetes)
	$(call lane,kubernetes-oldest,tests/adapters/kubernetes)
	@$(if $(ARGS),,$(PYTHON) tools/conformance/packaged.py --workers $(WORKERS))

conformance: ## a framework's own tests with our adapter, from a checkout: PATH_TO=folder; writes docs/conformance.md
	@$(if $(PATH_TO),,echo "make conformance PATH_TO=folder, a checkout of the framework"; exit 2)
	@$(PYTHON) tools/conformance "$(PATH_TO)" $(ARGS)

check: ## style, types, layers and tidiness, without the tests
	@$(ENVIRONMENT) test >/dev/null
	@$(MAKE) --no-print-directory .static
	@$(BIN)/python -m pytest -q -p no:cacheprovider tests/test_tidy.py

.PHONY: .static
.static:
	@echo "ruff check"    && $(BIN)/ruff check --quiet --output-format concise .
	@echo "ruff format"   && { $(BIN)/ruff format --quiet --check . || { echo "run \`make format\`"; exit 1; }; }
	@echo "mypy --strict" && $(BIN)/mypy --no-error-summary
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
