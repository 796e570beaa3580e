# `make demo` and `make test` set up all they need: a virtual environment, and the real assistant server.
# They need Python 3.11 or later, and npm for the assistant server.

PYTHON ?= python3
BIN := .venv/bin
OPENCODE := tools/opencode/node_modules/.bin/opencode
JOBS ?= 2

.PHONY: demo test torture simulate mutations check format docs clean

demo: .venv/ready opencode
	TURN_LEDGER_OPENCODE=$$(ls $(OPENCODE) 2>/dev/null) $(BIN)/turn-ledger demo

test: .venv/ready opencode
	$(BIN)/pytest -n $(JOBS) --dist worksteal

# New examples for the properties, for as long as you ask.
SECONDS ?= 600
torture: .venv/ready
	$(BIN)/python tests/torture.py $(SECONDS) --jobs $(JOBS)

# The simulation: one seed again (SEED=4711), or fresh seeds for as long as you ask (SECONDS=600).
simulate: .venv/ready
	PYTHONPATH=tests $(BIN)/python -m simulation --jobs $(JOBS) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Deliberate faults in the rules, the store and the runtime: which test catches each.
mutations: .venv/ready
	PYTHONPATH=tests $(BIN)/python -m mutations.run --jobs $(JOBS) $(ARGS)

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_layers.py

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/ready
	$(BIN)/python tools/draw_turn_states.py
	$(BIN)/python tools/draw_rules.py
	$(BIN)/python tools/run_docs.py

.venv/ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -r constraints.txt
	$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	touch .venv/ready

.PHONY: opencode
opencode:
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory $(OPENCODE); \
	else echo "npm is missing: the simulated assistant server will be used"; fi

$(OPENCODE): tools/opencode/package-lock.json
	# `npm ci` refuses a lock file without the builds for other systems; `install` keeps to the pins that it has.
	cd tools/opencode && npm install --no-save --no-audit --no-fund
	touch $(OPENCODE)

clean:
	rm -rf .venv .cache tools/opencode/node_modules
