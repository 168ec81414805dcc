# make run       set up .venv and run the benchmark with the embedded pair
# make test      ruff, mypy and the fast tier of the tests; minutes
# make test PART=audit   of the tests the core's contract and those of one part
# make thorough  the other tier: whole products, every kill, every engine; CI runs both
# make parts     each part that nothing imports is deleted in a copy of the tree: mypy and the core's tests stay green
# make sweep     speed and acceptance against the lookahead K
# make soak      the long tests: new examples for the properties, a hundred kills, every planted sampler
# make aa        ArS against ArS: whether the speedup's interval covers 1; minutes, on a quiet machine
# make reference the report under results/reference/ anew: paper's table and figure; minutes, on a quiet machine
# make mini      the embedded pair's data and draft again, from seed and target; 10 to 20 minutes of one thread
# make mini-t5   the embedded encoder-decoder pair again, from a seed; about an hour of two cores
# make docs      the documentation as a site in site/, strictly
# make wheel     the distribution in dist/, its content checked
# make newest    the newest dependencies, without constraints.txt: a fresh environment of the wheel, its commands, a part of the tests
# make oldest    the oldest ones that pyproject.toml allows, likewise
# make clean     remove .venv, caches and build products (results stay)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --prefer-binary -c constraints.txt
SOURCES := pyproject.toml constraints.txt

UV := $(BIN)/uv
# Processes that tests start would compile the package again and again.
unexport PYTHONDONTWRITEBYTECODE

# A core for each worker; what the tests of a file share is made once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile
# All of them; with PART=audit, say, the contract of the core and the tests of that part.
TESTS := $(if $(PART),tests/contract tests/project/test_floors.py tests/project/test_borders.py tests/parts/$(PART),tests)
# What each file of tests took, and what the sum may be: reported, see tests/support/durations.py.
SPENT = --cpu-seconds build/durations/$@$(if $(PART),-$(PART)).json --cpu-budget
# Tests that are fast and meet every library: numbers, files, tables, the proof of a loop.
FEW := tests/decode tests/store/test_store.py tests/test_testing.py tests/config/test_config.py tests/report/test_tables.py

.PHONY: run sweep test thorough parts soak aa reference mini mini-t5 docs wheel newest oldest clean

run: $(VENV)/.installed
	$(BIN)/spsbench run xsum --k 4

sweep: $(VENV)/.installed
	$(BIN)/spsbench sweep-k

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) $(SPENT) 600 -m 'not soak and not thorough' $(TESTS)

thorough: $(VENV)/.installed-dev
	$(PYTEST) $(SPENT) 1200 -m 'thorough and not soak' $(TESTS)

parts: $(VENV)/.installed-dev
	$(BIN)/python .ci/parts

soak: $(VENV)/.installed-dev
	$(BIN)/pytest --hypothesis-profile=exploring tests/decode tests/stats tests/store/test_store.py tests/cli/test_fuzz.py
	$(BIN)/pytest -m soak -s
	$(BIN)/spsbench verify --control all --effort full --sampling nucleus

aa: $(VENV)/.installed
	$(BIN)/python benchmarks/aa.py

reference: $(VENV)/.installed
	rm -rf results/reference/paper
	$(BIN)/spsbench paper --out results/reference/paper
	rm -rf results/reference/leviathan
	$(BIN)/spsbench paper --of leviathan --limit 100 --threads 1 --out results/reference/leviathan
	# git keeps the pages without the runs that they link to
	sed -i.bak -E 's/\[([^]]*)\]\([^)]*report\.md\)/\1/' results/reference/*/paper.md && rm results/reference/*/paper.md.bak

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/pytest tests/project/test_packaging.py

newest: RESOLUTION := highest
oldest: RESOLUTION := lowest-direct
newest oldest: | $(UV)
	rm -rf build/$@ && mkdir -p build/$@
	$(UV) build --quiet --wheel --out-dir build/$@
	$(UV) venv --quiet --python $(BIN)/python build/$@/venv
	$(UV) pip install --quiet --python build/$@/venv --resolution $(RESOLUTION) -r pyproject.toml --extra large 'pytest>=8.4' 'hypothesis>=6.140'
	$(UV) build --quiet --wheel --out-dir build/$@ training
	$(UV) pip install --quiet --python build/$@/venv --no-deps build/$@/*.whl
	$(UV) pip freeze --quiet --python build/$@/venv
	cd build/$@ && for command in doctor 'run --limit 2 --max-new-tokens 24 --out run' 'report run --html --quiet' \
	  'run humaneval --limit 2 --max-new-tokens 24 --out humaneval' 'run --pair mini-t5 --limit 2 --out mini-t5' \
	  'simulate --contexts 1 --k 4' 'verify --effort reduced'; do venv/bin/spsbench $$command || exit 1; done
	OMP_NUM_THREADS=1 build/$@/venv/bin/pytest -o pythonpath=tests -o filterwarnings=default $(FEW)

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

$(UV): | $(VENV)/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check uv

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	"spsbench needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + \
	". Name another: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
