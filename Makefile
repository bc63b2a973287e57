# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# The stamps are newer than what they were made from, so a second call is quick.
.PHONY: demo test lint format clean
.DELETE_ON_ERROR:

# On shared cores, threads that wait by spinning steal the time of those that work.
demo: $(VENV)/.core
	OMP_WAIT_POLICY=PASSIVE $(BIN)/acclimate demo $(ARGS)

# One thread a worker: the tests are small, and threads would only wait for each other.
test: lint
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest -n auto $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "acclimate needs Python 3.11 or newer, found " + sys.version.split()[0] + "; say make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.core

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build
