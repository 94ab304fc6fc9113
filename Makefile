# Everything runs from .venv, which `setup` makes; the stamp holds as long as pyproject.toml and constraints.txt are older.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
STAMP := .venv/.setup-done

# One thread per process: tests and engines bring their own parallelism.
export OMP_NUM_THREADS := 1

.PHONY: help setup test lint demo bench clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

setup: $(STAMP) ## make .venv with the pinned versions

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed; name one with make PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,realm,hf,dev]'
	@touch $@

lint: setup ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

test: lint ## lint, then all tests
	$(BIN)/pytest -n 2

demo: setup ## train a character-level GPT on Realm, on two logical devices, and compare with one
	$(BIN)/maniple train gpt2 --strategy "dp=2" --steps 50 --compare

# The scripts rewrite the tables of README.md and docs/, and docs/pictures; `git diff` then shows what changed.
bench: setup ## measure what README and docs show: results, plans, communication, memory, coverage (about an hour)
	$(BIN)/python benchmarks/communication.py
	$(BIN)/python benchmarks/compile.py
	$(BIN)/python benchmarks/check_table.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/coverage.py
	$(BIN)/python benchmarks/train.py
	$(BIN)/python benchmarks/trace_picture.py
	$(BIN)/python benchmarks/memory.py

clean: ## remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build
