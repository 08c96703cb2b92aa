# make quickstart   trains a small model on a mesh of CPU devices
# make test         tests every behaviour, in a few minutes
# make test-all     runs these and the slow tests: many examples, processes, notebooks
# make test-orbax   runs the tests of checkpoints with the newest Orbax
# make test-gpu-compile  compiles the train step for H100s, with no GPU
# make test-emulator     executes the kernels in an emulator, and compiles more steps
# make check        checks format, lint and types
# make docs         builds the documentation site into build/site
#
# Each sets up its own virtual environment first. PYTHON chooses the interpreter.

PYTHON ?= python3
VENV ?= .venv
VENV_GPU ?= .venv-gpu
VENV_DOCS ?= .venv-docs
VENV_PLAIN ?= .venv-plain
PIP = -m pip --disable-pip-version-check install --quiet
WORKERS ?= 2
PYTEST = -m pytest -n $(WORKERS) --dist worksteal

.PHONY: quickstart test test-slow test-all test-orbax test-gpu-compile test-emulator check docs clean

quickstart: $(VENV)/.installed
	$(VENV)/bin/embark train configs/quickstart.yaml

test: $(VENV)/.installed-test
	$(VENV)/bin/python $(PYTEST) -m "not slow and not gpu_compile"

test-slow: $(VENV)/.installed-test
	$(VENV)/bin/python $(PYTEST) -m "slow and not gpu_compile" --durations=40

test-all: test test-slow

test-orbax: $(VENV_PLAIN)/.installed
	$(VENV_PLAIN)/bin/python $(PYTEST) -m "not slow and not gpu_compile" \
	  tests/checkpoint tests/run/test_initial.py tests/run/test_loading.py

test-gpu-compile: $(VENV_GPU)/.installed
	$(VENV_GPU)/bin/python $(PYTEST) -m "gpu_compile and not slow" \
	  tests/gpu_compile tests/kernels/emulator

test-emulator: $(VENV_GPU)/.installed
	$(VENV_GPU)/bin/python $(PYTEST) -m "gpu_compile and slow" --durations=10 \
	  tests/gpu_compile tests/kernels/emulator

check: $(VENV)/.installed-dev
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

docs: $(VENV_DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(VENV_DOCS)/bin/mkdocs build --strict --quiet -f docs/mkdocs.yml
	@echo "the site is in build/site/index.html"

clean:
	rm -rf $(VENV) $(VENV_GPU) $(VENV_DOCS) $(VENV_PLAIN)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "embark_jax needs Python 3.11 or newer, $(PYTHON) is older: set PYTHON"; \
	    exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	@echo "installing embark_jax into $(VENV); the first time takes a minute or two"
	$(VENV)/bin/python $(PIP) -e .
	@touch $@

$(VENV)/.installed-test $(VENV)/.installed-dev: $(VENV)/.installed-%: $(VENV)/.installed
	$(VENV)/bin/python $(PIP) -e '.[$*]'
	@touch $@

$(VENV_GPU)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV_GPU)
	$(VENV_GPU)/bin/python $(PIP) -e '.[gpu-compile,test]'
	@touch $@

$(VENV_PLAIN)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV_PLAIN)
	$(VENV_PLAIN)/bin/python $(PIP) -e '.[test-plain]'
	@touch $@

$(VENV_DOCS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV_DOCS)
	$(VENV_DOCS)/bin/python $(PIP) -e '.[docs]'
	@touch $@
