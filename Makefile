# froude: `make help` lists the targets.
SHELL  := /bin/sh
VENV   := .venv
BIN    := $(VENV)/bin
# Of 19,000 modules some 4,000 are ever imported: pip compiles none, and two first imports those (WARM, below).
PIP    := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check --constraint constraints.txt
WARM   := $(BIN)/python -c 'from concurrent.futures import ProcessPoolExecutor as P; list(P(2).map(exec, [ \
	"import ray.train.torch", "import froude.quickstart.whole, froude.launch.tuning, froude.launch.worker"]))'
# Many containers set this; then each of a cluster's 40 processes would compile all it imports, every time.
export PYTHONDONTWRITEBYTECODE :=
SEED   ?= 0
RUN    ?= runs/quickstart

# Seconds since the epoch when make started: what passes before a command starts is installation.
STARTED := $(shell date +%s)

# A Python counts if it is >= 3.11 and can build a virtual environment.
USABLE  := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON  ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	if "$$p" -c '$(USABLE)' >/dev/null 2>&1; then echo "$$p"; break; fi; done)

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test check types unit bench campaign clean
.DELETE_ON_ERROR:

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20
	@echo "  variables: SEED=$(SEED) RUN=$(RUN) PYTHON=$(PYTHON)"

setup: $(VENV)/.dev ## build .venv with everything that tests and notebooks need

# `exec` puts froude in make's own child process, where Ctrl-C and SIGTERM reach it.
quickstart: $(VENV)/.core ## the whole loop on this machine: sweep, fit, promote, elastic run, report
	@FROUDE_INSTALL_SECONDS=$$(( $$(date +%s) - $(STARTED) )); export FROUDE_INSTALL_SECONDS; \
	exec $(BIN)/froude quickstart --seed $(SEED) --out "$(RUN)" $(FLAGS)

check: $(VENV)/.dev ## format, lint, types, import boundaries and the fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(MAKE) --no-print-directory -j 2 types unit

# The type checker has one process, the tests have several: side by side they leave no core idle.
types:
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

unit:
	$(BIN)/pytest -q -n auto --maxprocesses 4 -m "not slow and not long" tests/unit

# Half of a cluster's life is waiting: two files at a time.
test: check ## check, then the slow tests and those on Ray clusters
	$(BIN)/pytest -q -n auto --maxprocesses 4 -m "slow and not long" tests/unit
	$(BIN)/pytest -q -n 2 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder -m "not long" \
	  tests/cluster tests/ray tests/fuzz tests/gpu

bench: $(VENV)/.dev ## the benchmarks of minutes: each prints and writes benchmarks/*.md
	@for f in benchmarks/[!_]*.py; do [ -e "$$f" ] || continue; \
	echo "== $$f"; $(BIN)/python "$$f" || exit; done

campaign: $(VENV)/.dev ## the long checks: each writes benchmarks/*.md with commit, seed and hardware
	$(BIN)/pytest -q -n 2 --dist loadfile -m campaign tests
	@for f in benchmarks/campaign/[!_]*.py; do [ -e "$$f" ] || continue; \
	echo "== $$f"; $(BIN)/python "$$f" || exit; done

clean: ## remove .venv and caches; runs/ stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf platform/froude.egg-info
	find platform tests jobs search_spaces analysis benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# One simple command a line: make runs it as its own child, so that a signal to make ends it too.
$(VENV)/.made:
	@if [ -z "$(PYTHON)" ]; then \
	echo "froude needs Python >= 3.11 that can build virtual environments, and found none on the PATH:" \
	"install python3 and its venv package, or name one: make PYTHON=/path/to/python3 …" >&2; exit 2; fi
	@"$(PYTHON)" -c '$(USABLE)' 2>/dev/null || { \
	echo "froude needs Python >= 3.11 with venv and ensurepip; PYTHON=$(PYTHON) is not: name another." >&2; exit 2; }
	@echo "[setup] creating $(VENV) with $$($(PYTHON) -V)"
	@"$(PYTHON)" -m venv $(VENV)
	@exec $(PIP) --upgrade pip  # resolves in half the time of the one that Python 3.11 brings
	@touch $@

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "[setup] installing froude and its packages into $(VENV) (a few minutes the first time, quiet until done)"
	@exec $(PIP) --editable .
	@exec $(WARM)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "[setup] installing froude with the tools for tests and notebooks into $(VENV) (a few minutes the first time)"
	@exec $(PIP) --editable ".[dev]"
	@exec $(WARM)
	@touch $(VENV)/.core $@
