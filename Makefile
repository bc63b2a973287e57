# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt

# One thread per worker: the tests are small, and on shared cores, threads that wait by spinning
# take time from those that work. Bytecode is kept: many tests start Python anew.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest -n auto

# The stamps are newer than what they were made from, so a second call is quick.
.PHONY: demo check test test-matrix fuzz docs dist lint format clean
.DELETE_ON_ERROR:

demo: $(VENV)/.core
	@echo "acclimate demo: adapts the built-in model to six kinds of shifted images."
	@OMP_WAIT_POLICY=PASSIVE $(BIN)/acclimate demo $(ARGS)
ifeq ($(strip $(ARGS)),)
	@echo
	@echo "A hard stream: the images of a class come one after the other."
	@OMP_WAIT_POLICY=PASSIVE $(BIN)/acclimate demo --order sorted --methods source,norm,tent,steady \
	  --corruptions gaussian_noise,contrast --images 400 --batch-size 40 --out report-sorted.html
endif

# Before every commit.
check: lint
	@echo "Running the fast tests. Everything: make test"
	@$(PYTEST) -m "not slow" $(ARGS)

test: lint
	@echo "Running all tests. Only the fast ones: make check"
	@$(PYTEST) $(ARGS)

# All tests as other processors would run them. Takes five times as long as `make test`.
test-matrix: $(VENV)/.dev
	@$(BIN)/python tests/matrix.py $(ARGS)

# 10,000 damaged and altered files of each kind: ARGS="--n 1000 --seed 1" for fewer.
fuzz: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/fuzz.py $(ARGS)

# The documentation site, in build/site. It needs the extra docs, which the tests do without.
docs: $(VENV)/.docs
	@echo "Building the site. Open build/site/index.html; it needs no server and no network."
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet $(ARGS)

# The wheel and the source distribution, in dist/.
dist: $(VENV)/bin/python
	@$(PIP) build twine
	@rm -rf dist
	@$(BIN)/python -m build
	@$(BIN)/twine check --strict dist/*

lint: $(VENV)/.dev
	@echo "Checking format, style, types and import contracts."
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports > $(VENV)/lint-imports.log || { cat $(VENV)/lint-imports.log; exit 1; }

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "acclimate needs Python 3.11 or newer, found " + sys.version.split()[0] + ". Run: make PYTHON=python3.11")'
	@echo "Creating a virtual environment in $(VENV)."
	@$(PYTHON) -m venv $(VENV)

# Two -q: pip prints errors, but no warnings, which can look like errors.
$(VENV)/.core: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing acclimate and torch into $(VENV). This takes about a minute, once."
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing acclimate, its extras and the test tools into $(VENV). This takes one to three minutes, once."
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.core

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml constraints.txt
	@$(PIP) -e '.[docs]'
	@touch $@ $(VENV)/.core

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build
