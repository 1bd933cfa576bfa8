# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv by themselves.
# Every path is relative, so the folder's own path may hold spaces.
PYTHON ?= python3
BIN := .venv/bin
SITE = $(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c docs . build/site
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Two workers, one thread each; tests/conftest.py says how they share the tests.
TESTS = $(BIN)/python -m pytest --numprocesses 2
PARTS = products fuzz kills slurm

.PHONY: demo test soak docs install clean

demo: .venv/.installed-demo
	$(BIN)/python -m fusionkit demo

test: .venv/.installed-test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy --num-workers 2
	$(SITE)
	$(TESTS)

# What is too long for the gate, by parts: `make soak PART=kills`. Each part's result is kept in tests/soak.jsonl.
soak: .venv/.installed-test
	failed=0; for part in $(or $(PART),$(PARTS)); do \
	  $(TESTS) --timeout 3600 --soak $$part --soak-log tests/soak.jsonl || failed=1; \
	done; exit $$failed

# The site, from the Markdown pages and the docstrings; a warning fails it, and nothing is fetched.
docs: .venv/.installed-docs
	$(SITE)

install: .venv/.installed-base

# torch first, alone, and by exact version: only then does its small CPU build get picked.
.venv/.installed-torch: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) $$(grep '^torch==' constraints.txt)
	touch $@

.venv/.installed-base: .venv/.installed-torch pyproject.toml
	$(PIP) --editable .
	touch $@

.venv/.installed-demo: .venv/.installed-torch pyproject.toml
	$(PIP) --editable '.[demo,report]'
	touch $@

.venv/.installed-docs: .venv/.installed-torch pyproject.toml
	$(PIP) --editable '.[docs]'
	touch $@

.venv/.installed-test: .venv/.installed-torch pyproject.toml
	$(PIP) --editable '.[test]'
	touch $@

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache
