# make run       set up .venv and run the benchmark with the embedded pair
# make test      what CI runs: ruff, mypy, pytest
# make sweep     speed and acceptance against the lookahead K
# make soak      the long tests: new examples for the properties, a hundred kills, every planted sampler
# make aa        ArS against ArS: whether the speedup's interval covers 1; minutes, on a quiet machine
# make reference the report under results/reference/ anew: paper's table and figure; minutes, on a quiet machine
# make mini      the embedded pair's data and draft again, from seed and target; 10 to 20 minutes of one thread
# make mini-t5   the embedded encoder-decoder pair again, from a seed; about an hour of two cores
# make clean     remove .venv, caches and build products (results stay)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --prefer-binary -c constraints.txt
SOURCES := pyproject.toml constraints.txt

.PHONY: run sweep test soak aa reference mini mini-t5 clean

run: $(VENV)/.installed
	$(BIN)/spsbench run xsum --k 4

sweep: $(VENV)/.installed
	$(BIN)/spsbench sweep-k

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile  # a core for each worker; what the tests of a file share is made once

soak: $(VENV)/.installed-dev
	$(BIN)/pytest --hypothesis-profile=exploring tests/decode tests/stats tests/test_store.py tests/cli/test_fuzz.py
	$(BIN)/pytest -m soak -s
	$(BIN)/spsbench verify --controls --effort full --sampling nucleus

aa: $(VENV)/.installed
	$(BIN)/python benchmarks/aa.py

reference: $(VENV)/.installed
	rm -rf results/reference/paper
	$(BIN)/spsbench paper --out results/reference/paper
	rm -rf results/reference/leviathan
	$(BIN)/spsbench paper --of leviathan --limit 100 --threads 1 --out results/reference/leviathan

mini: $(VENV)/.installed
	$(BIN)/python -m training.make

mini-t5: $(VENV)/.installed
	$(BIN)/python -m training.mini_t5.make

$(VENV)/.installed: $(SOURCES) | $(VENV)/bin/python
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: $(SOURCES) | $(VENV)/bin/python
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.installed

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	"spsbench needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + \
	". Name another: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
