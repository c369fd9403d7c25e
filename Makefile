# Everything a newcomer and CI need; `make` alone prints the targets. Needs Python 3.11, make and git, nothing else.
# Variables: PYTHON (the interpreter that makes the environments), PIP_FLAGS (for example another package index),
# VENV and VENV_TL4 (where they lie), ARGS (more arguments for pytest).

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
VENV_TL4 ?= .venv-tl4
PIP_FLAGS ?=
ARGS ?=

# Two multi-threaded torch processes on two cores stall each other; nothing in the tests may reach the network. Each process
# begins with a half of the files (worksteal), so that what the tests of a file share is made once, not twice. What Python and
# pytest compile is kept for the next run, also where the environment (a container's) says otherwise.
PYTEST = PYTHONDONTWRITEBYTECODE= HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(1)/bin/python -m pytest -n 2 --dist worksteal $(2) $(ARGS)

# $(call install,environment,constraints,what): torch first, by its pin, so that no newer one brings gigabytes of CUDA.
define install
@test -n "$(PYTHON)" || { echo "no python3 found: install Python 3.11, or make ... PYTHON=/path/to/python3.11"; exit 2; }
@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	{ echo "$(PYTHON) is $$($(PYTHON) --version): Python 3.11 to 3.13 is needed; make ... PYTHON=/path/to/python3.11"; exit 2; }
@echo "Installing $(3) into $(1) as $(2) pins it (once; a few minutes) ..."
@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
@$(1)/bin/python -m pip install -qq --disable-pip-version-check $(PIP_FLAGS) -c $(2) torch
@$(1)/bin/python -m pip install -qq --disable-pip-version-check $(PIP_FLAGS) -c $(2) -e '$(3)'
@touch $@
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo tutorials test test-all test-tl4 browser check format fuzz faults mutants bench docs clean

help: ## print this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS='|' read -r name text; do printf 'make %-10s %s\n' "$$name" "$$text"; done

$(VENV)/.installed: pyproject.toml constraints.txt
	$(call install,$(VENV),constraints.txt,.)

$(VENV)/.installed-dev: $(VENV)/.installed
	$(call install,$(VENV),constraints.txt,.[dev])

$(VENV_TL4)/.installed-dev: pyproject.toml constraints-tl4.txt
	$(call install,$(VENV_TL4),constraints-tl4.txt,.[dev])

# on the CPU, where the README's numbers are from; copies of a process need Linux
demo: $(VENV)/.installed ## find the heads that carry 55 slashes in the bundled demo model, see whether answers come back; results in results/demo
	$(VENV)/bin/python analyses/patch_heads.py --backend bridge --device cpu --confirm 64 --answers 200 --out results/demo --overwrite --report \
		`test "$$(uname)" = Linux && echo --engine processes`

tutorials: $(VENV)/.installed-dev ## run the tutorials and keep their outputs (all, or ARGS="01 03")
	HF_HUB_OFFLINE=1 $(VENV)/bin/python tools/build_notebooks.py $(ARGS)

test: $(VENV)/.installed-dev ## the tests, without those that take long (TransformerLens 3.9)
	$(call PYTEST,$(VENV),-m "not slow")

test-all: $(VENV)/.installed-dev ## the tests that take long: architectures, browser, oracles at many cases, kills, tutorials
	$(call PYTEST,$(VENV),-m slow)

test-tl4: $(VENV_TL4)/.installed-dev ## `make test` on TransformerLens 4.3, in an environment of its own
	$(call PYTEST,$(VENV_TL4),-m "not slow")

browser: ## see to it that the tests of pages find a headless Chromium or Chrome (installs one by apt-get, as root)
	@found() { for name in chromium chromium-browser google-chrome chrome; do command -v $$name && return; done; return 1; }; \
	found || { test "$$(id -u)" = 0 && apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium; found; } || \
	{ echo "NO HEADLESS BROWSER, and none could be installed: the tests of pages cannot run here"; exit 2; }

check: $(VENV)/.installed-dev ## formatting, lint, types, imports between rooms, links of all Markdown files
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/rumdl check --no-cache .

format: $(VENV)/.installed-dev ## format the code and repair what lint can repair
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

fuzz: $(VENV)/.installed-dev ## random texts, patterns and damaged files, 10,000 and more (CASES=300 of each kind, in proportion)
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 MLESS_FUZZ=$(or $(CASES),300) \
		$(VENV)/bin/python -m pytest tests/fuzz $(ARGS)

faults: $(VENV)/.installed-dev ## kill, interrupt and starve every long analysis; results must be the undisturbed ones (some, or ARGS="dose --kills 5")
	$(VENV)/bin/python tools/faults.py $(ARGS)

mutants: $(VENV)/.installed-dev ## small faults put into the code: how many do the tests notice? (all rooms, or ARGS="metrics")
	$(VENV)/bin/python tools/mutants.py $(ARGS)

bench: $(VENV)/.installed-dev ## run the benchmarks
	@set -e; for script in $(sort $(wildcard benchmarks/*.py)); do echo "== $$script"; $(VENV)/bin/python $$script; done

docs: $(VENV)/.installed-dev ## build the documentation site into site/ (strict, no network); open site/index.html
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict

clean: ## remove the environments, caches and results made here
	rm -rf .venv .venv-tl4 build dist site *.egg-info results .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
