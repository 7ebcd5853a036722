# Everything a newcomer needs is `make demo` and `make test`; each makes .venv first if it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint format bench test-real test-long real-env screenshot clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[web,report]" --group dev
	touch $@

demo: $(VENV)/.installed
	$(BIN)/vtop demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The real vLLM for CPU: an environment of 4 GB in .real, made once.
real-env:
	$(PYTHON) tests/real/make_env.py --router .real

test-real: $(VENV)/.installed real-env
	VTOP_REAL_ENV=$(CURDIR)/.real $(BIN)/python -m pytest tests/real -m "real and not long"

test-long: $(VENV)/.installed real-env
	VTOP_REAL_ENV=$(CURDIR)/.real $(BIN)/python -m pytest -m "long or real"

screenshot: $(VENV)/.installed
	$(BIN)/python tests/make_screenshot.py

bench: $(VENV)/.installed
	$(BIN)/python -m tests.bench

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
