# Every target makes its own environment in .venv when there is none. PYTHON=python3.12 make … chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
OLDEST := .venv-oldest

.PHONY: quickstart test test-oldest lint format bench clean

quickstart: $(READY)  ## train on the built-in corpus, translate, print BLEU
	$(BIN)/python -m training.quickstart

test: lint  ## linters, types, the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

test-oldest: $(OLDEST)/.ready  ## the whole test suite on the oldest transformers that is supported
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n auto --dist worksteal

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY)  ## speed against named peers; prints a table
	$(BIN)/python -m tests.benchmarks

clean:
	rm -rf .venv $(OLDEST) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache runs

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,test]'
	touch $(READY)

$(OLDEST)/.ready: pyproject.toml constraints.txt constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	grep -vE '^(transformers|huggingface_hub)==' constraints.txt | cat - constraints-oldest.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --constraint $(OLDEST)/constraints.txt --editable '.[train,test]'
	touch $@
