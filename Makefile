# make run   set up (.venv) and run the bundled model's MoE blocks against llama.cpp's recorded outputs
# make test  set up and run every check and test
# make check ruff, strict typing, generated files (part of make test)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODELS := tests/data/models
STAMP := $(VENV)/.installed

.PHONY: run test check setup generate clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

setup: $(STAMP)

run: $(STAMP)
	$(BIN)/kernelmap run $(MODELS)/qwen35moe.gguf --inputs $(MODELS)/qwen35moe.acts.npz

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src/kernelmap providers/kernelmap_providers
	$(BIN)/python tools/generate.py --check
	$(BIN)/kernelmap check

test: check
	$(BIN)/python -m pytest

generate: $(STAMP)
	$(BIN)/python tools/generate.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
