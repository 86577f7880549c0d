# One file of entry points. Everything runs in .venv, which is made on first use from nothing but Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.synced
UV_VERSION := 0.13.8
# Tests start Python some two hundred times: bytecode is kept whatever the environment says. An empty value means unset. The first
# use writes that of the program and its libraries, so that the first command of a user starts as fast as the second.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo install test lint unit bench soak conformance crds charts console-assets spec docs release compare-releases clean

# The pip beside Python installs uv; to put another one into the environment first takes twice as long, for a Python without one.
GET_UV = $(PYTHON) -m pip --quiet --python $(BIN)/python install uv==$(UV_VERSION)
GET_UV_WITH_OWN_PIP = { $(BIN)/python -m ensurepip >/dev/null && $(BIN)/python -m pip install --quiet uv==$(UV_VERSION); }

# The installation compiles the library of the price search where there is a C compiler; without it decisions are the same, but slower.
$(STAMP): pyproject.toml uv.lock hatch_build.py src/karpenter/scheduling/search/fill_kernel.c
	@test -x $(BIN)/python || $(PYTHON) -m venv --without-pip $(VENV)
	@$(BIN)/uv --version 2>/dev/null | grep -q " $(UV_VERSION)" || $(GET_UV) 2>/dev/null || $(GET_UV_WITH_OWN_PIP)
	@UV_PROJECT_ENVIRONMENT=$(VENV) $(BIN)/uv sync --quiet --frozen --inexact
	@$(BIN)/python -m compileall -q src && $(BIN)/karpenter plan -f examples/shop.yaml >/dev/null
	@touch $@

demo: $(STAMP)
	@$(BIN)/karpenter demo

# The program, as $(BIN)/karpenter.
install: $(STAMP)

# What mypy knows of the sources, kept for the next fresh clone: it compares contents, so that only changed modules are checked again.
MYPY_CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/karpenter-mypy

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@test -d .mypy_cache || test ! -d $(MYPY_CACHE) || cp -r $(MYPY_CACHE) .mypy_cache || true
	$(BIN)/mypy
	@mkdir -p $(dir $(MYPY_CACHE)) && rm -rf $(MYPY_CACHE).$$$$ && cp -r .mypy_cache $(MYPY_CACHE).$$$$ \
		&& rm -rf $(MYPY_CACHE) && mv $(MYPY_CACHE).$$$$ $(MYPY_CACHE)
	$(BIN)/lint-imports
	$(BIN)/sphinx-build -q -W --keep-going -b dummy -D smartquotes=0 -d docs/_build/check/doctrees docs docs/_build/check

# Tests of a real control plane mostly wait: on two cores two workers compute while two wait (tests/support/worker_scopes.py).
WORKERS ?= 4
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The linters run beside the tests. What they wrote comes in one piece before the closing line; if they fail, the run fails.
test: $(STAMP)
	@$(PYTEST) -m "not soak and not speed" --beside "make --no-print-directory lint"

unit: $(STAMP)
	@$(PYTEST) -m "not soak and not speed and not cluster"

# Random examples and a random choice of cases, other ones in each run: about 90 minutes on two cores. The last line says how the run
# went and how to repeat it. SOAK_EXAMPLES bounds the examples of a property, SOAK_CASES the cases of a series.
SEED ?= $(shell date +%s)
SOAK_EXAMPLES ?= 500
SOAK_CASES ?= 6

soak: $(STAMP)
	@UV_PROJECT_ENVIRONMENT=$(VENV) $(BIN)/uv sync --quiet --frozen --inexact --group browser
	@test -d console-web/node_modules/axe-core || npm ci --silent --prefix console-web
	@echo "random examples of this run: make soak SEED=$(SEED) SOAK_EXAMPLES=$(SOAK_EXAMPLES) SOAK_CASES=$(SOAK_CASES)"
	@SOAK_EXAMPLES=$(SOAK_EXAMPLES) SOAK_CASES=$(SOAK_CASES) $(PYTEST) --timeout=3600 \
		--hypothesis-profile=soak --hypothesis-seed=$(SEED) -m "(soak or hypothesis) and not speed"

# Karpenter's own end-to-end suites, built from its public Go module: make conformance SUITE=regression PROFILE=karpenter FOCUS=Drift
SUITE ?= regression
PROFILE ?= karpenter
FOCUS ?=

conformance: $(STAMP)
	@PYTHONPATH=tests $(BIN)/python -m conformance --suite "$(SUITE)" --profile "$(PROFILE)" --focus "$(FOCUS)"

# `make bench` measures everything, `make bench plans growth` only what is named.
ifeq (bench,$(firstword $(MAKECMDGOALS)))
MEASUREMENTS := $(filter-out bench,$(MAKECMDGOALS))
.PHONY: $(MEASUREMENTS)
$(MEASUREMENTS): ; @:
endif

bench: $(STAMP)
	$(if $(MEASUREMENTS),,$(BIN)/pytest -m speed)
	$(BIN)/python -m bench $(MEASUREMENTS)

# The documentation site, in docs/_build/html. Broken links and anchors fail the build; `make lint` checks them as well.
docs: $(STAMP)
	$(BIN)/python tools/reference_docs.py
	$(BIN)/python tools/pictures.py
	$(BIN)/python -m monitoring
	$(BIN)/sphinx-build -q -W --keep-going -b html -d docs/_build/doctrees docs docs/_build/html
	@echo docs/_build/html/index.html

# Wheels, sdist and bill of materials (CycloneDX) in dist/: a wheel for this platform with the compiled library and one for all
# platforms without it. Each is installed into an empty environment, and the demo runs from it.
release: $(STAMP)
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist
	KARPENTER_FILL_KERNEL=off $(BIN)/uv build --quiet --wheel --out-dir dist
	$(BIN)/uv export --quiet --frozen --no-default-groups --format cyclonedx1.5 --output-file dist/karpenter.cdx.json >/dev/null
	$(BIN)/python tools/try_wheel.py dist

crds: $(STAMP)
	$(BIN)/karpenter crds > deploy/crds/crds.yaml
	$(BIN)/python tools/chart_files.py

# What the charts repeat from the code, and the manifests of deploy/ that Helm renders (the first run builds Helm, some minutes).
charts: crds
	PYTHONPATH=tests $(BIN)/python -m helm.manifests

# The pages of the console, from console-web/ into the package. Needs Node.js 20; the wheel and the tests do not.
console-assets: $(STAMP)
	@$(BIN)/python tools/console_assets.py

# Rules of docs/spec that no test cites.
spec: $(STAMP)
	@$(BIN)/python tools/spec.py

# What changed for users between two releases of Karpenter, and what of it docs/spec does not mention. PROVIDER=1 compares the AWS
# provider instead of the core.
compare-releases: $(STAMP)
	@PYTHONPATH=tests $(BIN)/python tools/compare_releases.py $(if $(PROVIDER),--provider) $(OLD) $(NEW)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis docs/_build dist
