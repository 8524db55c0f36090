# Every target makes its own .venv; all it needs is Python 3.11+, pip and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check format verify docs bench

.venv/ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "setting up .venv (once)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

.venv/bench-ready: .venv/ready
	@echo "installing the libraries to compare with (once)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev,bench]"
	@touch $@

demo: .venv/ready
	$(BIN)/onceonly demo

test: .venv/ready
	$(BIN)/pytest

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

verify: .venv/ready
	$(BIN)/onceonly verify

docs: .venv/ready
	$(BIN)/python docs/generate.py

bench: .venv/bench-ready
	$(BIN)/python -m benchmarks --write
