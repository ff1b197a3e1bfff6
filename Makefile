# `make run` and `make test` are all a newcomer needs; `make help` lists the rest.
.DEFAULT_GOAL := help
.PHONY: help run test test-for test-times test-all test-core test-smoke test-float32 test-full \
    test-slow referee figures bench-gpu docs release check venv clean

# Exported empty unless given: `make run PYTHON=/usr/bin/python3.12`.
export PYTHON

# Each worker begins with one half of the tests, so that one file is seldom compiled by both.
pytest := .venv/bin/python -m pytest -n 2 --dist worksteal
configs := $(wildcard configs/*.yaml)
files = $(patsubst %,tests/test_%.py,$(1))
smoke := $(call files,pages cli)
core := $(call files,pages compiling exact separation gradients moments sampling \
    fitting_truncated_normal fitting_regression mixture_fit truncated_multivariate_normal cli)

help:  ## list these targets
	@sed -n -e 's/^\([a-z0-9-]*\):.*## /\1|/p' -e '/^# Further/c|' Makefile | \
	    while IFS='|' read -r name what; do \
	    if [ -n "$$name" ]; then printf '  make %-12s %s\n' "$$name" "$$what"; \
	    else printf '  ---------------- for those who change the package\n'; fi; done

run: venv  ## fit a truncated Gaussian to real data and draw it
	@.venv/bin/truncgauss run configs/selected_sample.yaml

quick := not slow and not full

test: check  ## the quick tests, which everybody runs: each name, route and law once
	@$(pytest) -m "$(quick)"

docs: venv  ## the guide, the API reference and the gallery as a site in site/
	@echo 'truncgauss: writing the site, half a minute'
	@NO_MKDOCS_2_WARNING=1 JAX_PLATFORMS=cpu .venv/bin/python -m mkdocs build -q -f .ci/site/mkdocs.yml
	@echo 'site/index.html; to search it: .venv/bin/python -m http.server -d site'

# Further targets.

test-for: venv  ## the tests that a change of FILE=truncgauss/... is likely to break
	@tests=$$(.venv/bin/python .ci/affected.py "$(FILE)") && printf 'make test-for: %s\n' "$$tests" && \
	    .venv/bin/python -m pytest -q -x -m "$(quick)" $$tests

# Without XLA_FLAGS: as a user's programs are compiled, on a Python and a JAX that had no other test.
test-core: venv  ## a core of the tests, compiled as users do
	@XLA_FLAGS= $(pytest) -m "not slow" $(core)

test-smoke: venv  ## every page of the guide and the command line, compiled as users do
	@XLA_FLAGS= $(pytest) -m "not slow" $(smoke)

test-float32: venv  ## the tests that hold without float64 too
	@JAX_ENABLE_X64=0 $(pytest) tests/test_precision.py

test-full: venv  ## the same laws over all methods, dimensions, precisions and devices
	@$(pytest) -m "full and not slow"

test-slow: venv  ## the long statistics, fuzzing and crash tests
	@XLA_FLAGS= $(pytest) -m slow

test-all: check  ## every test: the quick ones, the full and the slow
	@$(pytest) -m "not slow"
	@XLA_FLAGS= $(pytest) -m slow

test-times: venv  ## processor seconds and compiled programs of the quick tests, by file and by test
	@$(pytest) -q -p tests.times -m "$(quick)"

MINUTES := 60
SEED := 1
referee: venv  ## random cases beside oracles, MINUTES=60 SEED=1, and a script of each failure
	@.venv/bin/python -m tests.referee --minutes $(MINUTES) --seed $(SEED)

figures: venv  ## run every experiment and refresh figures/
	@set -e; for config in $(configs); do .venv/bin/truncgauss run "$$config" --figures figures; done

bench-gpu: venv  ## values on a GPU beside those on the CPU, and how many a second
	@.venv/bin/python .ci/bench_gpu.py

release: venv  ## sdist and wheel in dist/, the wheel tried from nothing on each Python
	@.venv/bin/python .ci/release.py dist $$(sh .ci/pythons | tr ' ' '=')

check: venv  ## lint, formatting and types
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check --quiet .
	@.venv/bin/mypy

venv:  ## build .venv, once
	@sh .ci/venv

clean:  ## remove the environment and what tools leave behind; runs/ stays
	rm -rf .venv .venv.* build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
