# Everything here needs make and Python 3.11 or newer, and nothing else: the tools go into .venv.

PYTHON ?= python3
ARGS ?=

# The tests start hundreds of processes, and each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check --no-input
UV := $(BIN)/uv --quiet
INSTALL = $(UV) pip install --python $(BIN)/python -c constraints.txt -b constraints.txt

# All but amqp, which may have to be compiled: tests/servers/install.py sees to it.
EXTRAS := aiopika,apps,boto,celery,cli,crypto,dashboard,django,dramatiq,durable,fastapi,flask,kafka,litestar,mcp,otel,postgres,privacy,prometheus,pubsub,pydantic,rabbitmq,redis,service,taskiq,zones

heading = @printf '\n== %s\n' "$(1)"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run demo test slow lint format docs docs-serve pictures proof dist sbom release-check audit bench constraints clean

help: ## show this list
	@printf 'semel: a ledger for things that must happen once.\n\n'
	@printf 'Start with "make run", then "make test". The first time each fills .venv; after that they start at once.\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile
	@printf '\nAnother Python:  make test PYTHON=python3.13\n'
	@printf 'Some tests only: make test ARGS="-k claim"\n'

run: $(VENV)/.set-run ## run the service with all its applications, on SQLite, under made-up traffic
	@$(BIN)/semel serve --traffic $(ARGS)

demo: $(VENV)/.set-run ## watch semel keep its promises in the terminal
	@$(BIN)/semel demo $(ARGS)

test: lint ## check everything: lint, types, import rules, tests
	$(call heading,pytest)
	@$(BIN)/python -m pytest -n 3 $(ARGS)

slow: $(VENV)/.set-test ## run what takes too long for every day: large downloads, and far more tries
	@$(INSTALL) --group slow
	@$(BIN)/python -m pytest -m slow $(ARGS)
	@SEMEL_TEST_ALL=1 $(BIN)/python -m pytest -n 2 $(ARGS)

lint: $(VENV)/.set-test ## check everything but the tests
	$(call heading,ruff check)
	@$(BIN)/ruff check
	$(call heading,ruff format --check)
	@$(BIN)/ruff format --check
	$(call heading,mypy)
	@$(BIN)/mypy
	$(call heading,lint-imports)
	@$(BIN)/lint-imports --no-logo

format: $(VENV)/.set-test ## mend what ruff can mend
	@$(BIN)/ruff check --fix-only
	@$(BIN)/ruff format

docs: $(VENV)/.set-docs ## build the documentation site into build/docs/site
	@$(BIN)/python -m docs.site.build

docs-serve: $(VENV)/.set-docs ## show the documentation site, built anew when a page changes
	@$(BIN)/python -m docs.site.serve

pictures: $(VENV)/.set-test ## take the pictures of the docs from the running dashboard
	@$(BIN)/python -m tests.browser.pictures

proof: $(VENV)/.set-bench $(VENV)/.set-test ## try every promise thousands of times, and write the scoreboard into the docs
	@$(BIN)/python -m proof $(ARGS)

dist: $(VENV)/.uv ## build the wheel and the sdist, the same bytes everywhere
	@rm -rf dist
	@$(UV) build --build-constraints constraints.txt --out-dir dist

sbom: dist ## build them, and list what they bring along, as CycloneDX
	@$(BIN)/python -m tools.bill dist/*.whl

release-check: $(VENV)/.made ## see whether TAG (v and the version, if none is given) may be published
	@$(BIN)/python -m tools.release --check "$$TAG"

audit: $(VENV)/.set-test ## ask the package index for known vulnerabilities of what is pinned
	@$(BIN)/python -m tools.audit

bench: $(VENV)/.set-bench ## measure everything, and write the report into the docs: 20 minutes on a quiet machine
	-@$(MAKE) --no-print-directory $(VENV)/rivals/.set $(VENV)/alone/.set
	@$(BIN)/python -m bench $(ARGS)

bench-%: $(VENV)/.set-bench # one part of it, as python -m bench.PART prints it
	-@$(MAKE) --no-print-directory $(VENV)/rivals/.set $(VENV)/alone/.set
	@$(BIN)/python -m bench.$* $(ARGS)

# Markers are cut off, since a constraint on a package that is not installed does nothing. What is left has
# to be one plain "name==version" for each name, with no address in it.
constraints: $(VENV)/.uv ## renew the pinned versions in constraints.txt
	@$(UV) pip compile pyproject.toml --universal --python-version 3.11 --upgrade \
		--all-extras --group docs --group test --group slow --group bench --group build \
		--no-header --no-annotate --no-emit-index-url --output-file $(VENV)/compiled.txt
	@sed 's/ *;.*//' $(VENV)/compiled.txt > $(VENV)/constraints.txt
	@if grep -Ev '^[a-z0-9-]+==[a-z0-9.]+$$' $(VENV)/constraints.txt; then \
		echo 'These lines are not plain "name==version"; constraints.txt was left as it is.' >&2; exit 1; fi
	@if cut -d= -f1 $(VENV)/constraints.txt | sort | uniq -d | grep .; then \
		echo 'No one version of these serves every Python; constraints.txt was left as it is.' >&2; exit 1; fi
	@cp $(VENV)/constraints.txt constraints.txt
	@echo "constraints.txt pins $$(wc -l < constraints.txt | tr -d ' ') packages."

clean: ## remove .venv and everything that was built or cached
	@rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# --- .venv, and a stamp for each set that was installed into it

# A .venv made by another Python, or moved here from another folder, is made anew.
ifneq "$(shell test -x $(BIN)/python && cat $(VENV)/.made 2>/dev/null)" "$(PYTHON) $(CURDIR)"
.PHONY: $(VENV)/.made
endif

$(VENV)/.made:
	@command -v "$(PYTHON)" >/dev/null || { \
		echo 'There is no "$(PYTHON)" here. Install Python 3.11 or newer, or name yours: make PYTHON=/path/to/python3' >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'semel needs Python 3.11 or newer, and "$(PYTHON)" is not. Name another: make PYTHON=python3.13' >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo '"$(PYTHON)" cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	@echo 'Making $(VENV) ...'
	@"$(PYTHON)" -m venv --clear $(VENV)
	@echo "$(PYTHON) $(CURDIR)" > $@

$(VENV)/.uv: $(VENV)/.made constraints.txt
	@$(PIP) install -c constraints.txt uv
	@touch $@

$(VENV)/.set-run: $(VENV)/.uv pyproject.toml constraints.txt
	@echo 'Installing semel and its service ...'
	@$(INSTALL) -e '.[service]'
	@touch $@

$(VENV)/.set-test: $(VENV)/.uv pyproject.toml constraints.txt tests/servers/install.py tests/servers/rabbitmq.py
	@echo 'Installing semel and what its tests need ...'
	@$(INSTALL) -e '.[$(EXTRAS)]' --group test
	@$(BIN)/python -m tests.servers.install
	@touch $@ $(VENV)/.set-run $(VENV)/.set-docs

$(VENV)/.set-docs: $(VENV)/.uv pyproject.toml constraints.txt
	@echo 'Installing what the documentation site needs ...'
	@$(INSTALL) --group docs
	@touch $@

$(VENV)/.set-bench: $(VENV)/.uv pyproject.toml constraints.txt
	@echo 'Installing semel and what its benchmarks need ...'
	@$(INSTALL) -e '.[$(EXTRAS)]' --group bench
	@$(BIN)/python -m tests.servers.install
	@touch $@ $(VENV)/.set-run

# Other libraries that cannot be installed beside the rest, or keep threads at work; see bench/apart.py.
$(VENV)/rivals/.set: $(VENV)/.uv pyproject.toml bench/rivals.txt
	@echo 'Installing other libraries to compare with ...'
	@$(UV) venv --clear --python $(BIN)/python $(VENV)/rivals
	@$(UV) pip install --python $(VENV)/rivals/bin/python -e '.[postgres,redis]' -r bench/rivals.txt
	@touch $@

# Imports are timed where nothing but the one library is installed, with what it brings along.
$(VENV)/alone/.set: $(VENV)/.uv pyproject.toml constraints.txt
	@echo 'Installing each library alone ...'
	@rm -rf $(VENV)/alone
	@for library in semel aws_lambda_powertools idemkit justonce; do \
		$(UV) venv --python $(BIN)/python $(VENV)/alone/$$library || exit 1; done
	@$(UV) pip install --python $(VENV)/alone/semel/bin/python -c constraints.txt -b constraints.txt -e .
	@$(UV) pip install --python $(VENV)/alone/aws_lambda_powertools/bin/python -c constraints.txt aws-lambda-powertools boto3
	@$(UV) pip install --python $(VENV)/alone/idemkit/bin/python -c constraints.txt idemkit
	@$(UV) pip install --python $(VENV)/alone/justonce/bin/python -c constraints.txt justonce
	@touch $@
