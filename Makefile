# One command per task. `make` lists them; CONTRIBUTING.md says more.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

STAMP := .venv/.stamp
BIN := .venv/bin
# A service that cannot be started leaves its variable unset: tests/conftest.py decides what that means.
SERVICES := eval "$$(scripts/services up)"
TYPED := src scripts/services scripts/serving $(wildcard tests/typing)
PG ?= 15
MINUTES ?= 10
CASES := kills freezes overlap outage handlers failing-key drop delay half-close stop leader full-disk clock slot server \
	promote

.PHONY: help env demo test models lint types imports check bench bench-peers prove soak services services-down lock clean

help: ## list the tasks
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

env: $(STAMP) ## make .venv from requirements.lock (instant when nothing changed)

$(STAMP): requirements.lock pyproject.toml
	@scripts/environment

demo: $(STAMP) ## run the marketplace under kills and audit it
	@$(BIN)/bothends demo $(ARGS)

test: $(STAMP) ## start the services, check style, types and imports, run every test (ARGS="-k name")
	@$(SERVICES)
	$(MAKE) check
	$(BIN)/pytest -q -n 2 $(ARGS)

models: $(STAMP) ## let hypothesis look for histories of several relays and workers, new ones each time (about 15 minutes)
	@$(SERVICES)
	HYPOTHESIS_PROFILE=long $(BIN)/pytest -q -n 2 --timeout=3600 tests/models/test_models.py $(ARGS)

check: lint types imports ## style, types and imports, without tests

lint: $(STAMP) ## ruff
	@$(BIN)/ruff check .

types: $(STAMP) ## mypy, strict
	@$(BIN)/mypy $(TYPED)

imports: $(STAMP) ## who may import whom
	@$(BIN)/lint-imports --no-logo

bench: $(STAMP) ## measure peers, limits and ours in one run; JSON and plots in bench/results
	@$(SERVICES)
	$(BIN)/python -m bench $(ARGS)

bench-%: $(STAMP) ## the bench of that name alone, bench-relay say (see docs/benchmarks.md) [ARGS="--quick"]
	@$(SERVICES)
	$(BIN)/python -m bench $* $(ARGS)

bench-peers: $(STAMP) ## ours beside its peers, which are fetched once into ~/.cache [ARGS="--only ours-poll,debezium"]
	@$(SERVICES)
	$(BIN)/python -m bench peers $(ARGS)

prove: $(STAMP) ## one process test, one JSON line: CASE=kills (without CASE: lists them) [PG=15|18] [SOURCE=message]
	@[[ " $(CASES) " == *" $(CASE) "* && -n "$(CASE)" ]] || { echo "make prove CASE=one of: $(CASES)" >&2; exit 2; }
	$(SERVICES)
	$(BIN)/python -m tests.acceptance.prove $(CASE) --pg $(PG) $(if $(SOURCE),--source $(SOURCE)) $(ARGS)

soak: $(STAMP) ## faults drawn from a seed under load, then the audit: MINUTES=10 [SEED=N] [PG=15|18]
	@$(SERVICES)
	seconds=$$(awk 'BEGIN { print $(MINUTES) * 60 }')
	$(BIN)/python -m tests.acceptance.prove soak --pg $(PG) --seconds "$$seconds" $(if $(SEED),--seed $(SEED)) $(ARGS)

services: $(STAMP) ## start PostgreSQL 15 and 18 and Kafka, print their URLs
	@scripts/services up

services-down: ## stop them
	@scripts/services down

lock: ## resolve all dependencies anew into requirements.lock
	@scripts/lock

clean: ## remove what can be made again (not the services' data: scripts/services down --wipe)
	@rm -rf .venv .env.* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.ONESHELL:
