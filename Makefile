# One file of entry points. Everything runs in .venv, which is made on first use from nothing but Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.synced
UV_VERSION := 0.13.8

.PHONY: demo test lint unit bench soak crds spec clean

$(STAMP): pyproject.toml uv.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/uv --version 2>/dev/null | grep -q " $(UV_VERSION)" || $(BIN)/python -m pip install --quiet uv==$(UV_VERSION)
	@UV_PROJECT_ENVIRONMENT=$(VENV) $(BIN)/uv sync --quiet --frozen --inexact
	@touch $@

demo: $(STAMP)
	@$(BIN)/karpenter demo

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests of a real control plane mostly wait, so two files at a time take little more than half the time.
WORKERS ?= 2

test: lint
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "not soak"

unit: $(STAMP)
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "not soak and not cluster"

# Random examples, other ones in each run. `make soak SEED=...` repeats a run.
SEED ?= $(shell date +%s)
SOAK = --hypothesis-profile=soak --hypothesis-seed=$(SEED)

soak: $(STAMP)
	@echo "random examples of this run: make soak SEED=$(SEED)"
	$(BIN)/pytest $(SOAK) -m soak
	$(BIN)/pytest $(SOAK) -m "not soak" tests/properties

bench: $(STAMP)
	$(BIN)/python -m bench

crds: $(STAMP)
	$(BIN)/karpenter crds > deploy/crds/crds.yaml

# Rules of docs/spec that no test cites.
spec: $(STAMP)
	@$(BIN)/python tools/spec.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis
