# Each target works from a fresh clone: it makes .venv, installs what it needs once, and does its job.

# The first Python of at least 3.11, unless one is named: make test PYTHON=/opt/python3.12/bin/python3
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

VENV := .venv
BIN := $(VENV)/bin
# Without compiling all modules of all frameworks, of which few are ever imported: that would take minutes.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

# Tests start thousands of Python processes: what they import is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-long test-all test-v2 lint docs docs-site images bench studies clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@echo "make demo      three real models train side by side, about two minutes after installation"
	@echo "make test      the tests for every change; those of one room: make test ROOM=policies"
	@echo "make test-all  these, and clusters, containers, labs, faults and long trainings: what has to hold"
	@echo "make test-long what goes over that ground again with more workers, and takes an hour"
	@echo "make test-v2   isolation on a real cgroup v2 kernel (a small guest in QEMU)"
	@echo "make lint      ruff and mypy"
	@echo "make docs      run every code block of the README and of docs/"
	@echo "make docs-site the documentation as a site, under build/site"
	@echo "make images    the pictures of the README and of docs/web.md, from new runs of the demo"
	@echo "make bench     the benchmarks: tables here, JSON under build/bench/"
	@echo "make studies   the studies that come with Headgate, half an hour; their pages under docs/studies/"
	@echo "make clean     remove everything that make made"

demo: $(VENV)/demo.stamp
	@PATH="$(CURDIR)/$(BIN):$$PATH" headgate run examples/jobs.yaml
	@echo "Open the report in a browser; \`$(BIN)/headgate metrics\` shows the figures here."

# Tests run in three processes, see tests/conftest.py: they wait half of their time, for hubs, clusters and containers to
# start and to end. Those that are named run one after another. The slowest are printed.
PYTEST := $(BIN)/python -m pytest --durations 20 --durations-min 5
PARTS := $(if $(ROOM),tests/$(ROOM) -m "not long",--numprocesses 3 -m "not long and not slow")

test: $(VENV)/dev.stamp
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PYTEST) $(or $(TESTS),$(PARTS))

test-all:
	@$(MAKE) --no-print-directory test TESTS='--numprocesses 3 -m "not long"'

test-long: $(VENV)/dev.stamp
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PYTEST) --numprocesses 3 -m long
	@tests/v2/run $(CURDIR)/$(BIN)/python containers
	@$(BIN)/python tests/v2/service.py
	@$(BIN)/python tests/v2/service.py arbiter

test-v2: $(VENV)/pytest.stamp
	@tests/v2/run $(CURDIR)/$(BIN)/python

lint: $(VENV)/dev.stamp
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: $(VENV)/dev.stamp
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest tests/test_readme.py tests/test_docs.py

docs-site: $(VENV)/docs.stamp
	@$(BIN)/mkdocs build
	@echo "Open build/site/index.html in a browser."

images: $(VENV)/docs.stamp $(VENV)/demo.stamp
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python docs/images/record.py

bench: $(VENV)/dev.stamp
	@mkdir -p build/bench
	@set -e; for script in benchmarks/[!_]*.py; do \
	  echo "== $$script"; \
	  PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python $$script --json build/bench/$$(basename $$script .py).json; \
	done

# On a machine that nothing else uses: a study says where others disturbed it, and does these blocks again.
studies: $(VENV)/dev.stamp
	@set -e; for name in simultaneous isolation sparse spark; do \
	  PATH="$(CURDIR)/$(BIN):$$PATH" headgate study $$name; \
	  PATH="$(CURDIR)/$(BIN):$$PATH" headgate study show $$name --markdown > docs/studies/$$name.md; \
	done

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { \
	  echo "No Python of at least 3.11 found. Install one (Debian, Ubuntu: sudo apt-get install python3 python3-venv)," >&2; \
	  echo "or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Headgate, PyTorch and scikit-learn into $(VENV) (once; PyTorch is large) ..."
	@$(PIP) --editable '.[torch,demo]'
	@touch $@

# With BESIDES=,docs,web what builds the site is found and installed in the same go.
# tf_keras asks for the whole of TensorFlow, with what it takes to compile for GPUs; tensorflow-cpu has all that it uses.
# Of axe-playwright-python only the axe-core in it is used, in the browser that Selenium drives.
$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Headgate, all frameworks and what tests and checks need into $(VENV) (once) ..."
	@$(PIP) --editable '.[torch,jax,ray,docker,demo,explain,gpu,dev$(BESIDES)]'
	@$(PIP) --no-deps tf_keras axe-playwright-python
	@touch $(VENV)/demo.stamp $(if $(BESIDES),$(VENV)/docs.stamp) $@

$(VENV)/docs.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Headgate and what builds the site into $(VENV) (once) ..."
	@$(PIP) --editable '.[docs,web]'
	@touch $@

$(VENV)/pytest.stamp: constraints.txt | $(VENV)/bin/python
	@$(PIP) pytest psutil pydantic pyyaml
	@touch $@
