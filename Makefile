# All that is needed is Python 3.11+ and make; everything else is installed into .venv.
# Another interpreter: make test PYTHON=python3.13

PYTHON ?= python3
BIN := .venv/bin
# The system's certificates, if it has any: a company's own authority may be among them.
CERTS := $(if $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/ssl/cert.pem /etc/pki/tls/certs/ca-bundle.crt),UV_SYSTEM_CERTS=true)
UV := UV_PYTHON_DOWNLOADS=never $(CERTS) $(BIN)/uv
LOCK := UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile --quiet --universal --upgrade \
	--python-version 3.11 --generate-hashes --no-emit-index-url
# All but the engines and two SDKs, which are large or need older packages, and have a place of their own.
EXTRAS = $(addprefix --extra ,$(filter-out all claude-agent ray strands temporal,$(shell $(BIN)/python -c \
	'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"])')))
# A command and the package that it comes in.
SYSTEM := strace:strace mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs zsh:zsh fish:fish \
	redis-server:redis-server pgbouncer:pgbouncer
BROWSER := chromium:chromium

# More workers than there are processors, because tests also wait for processes and servers.
PARALLEL := -q -n $(shell expr $$(nproc 2>/dev/null || echo 2) + 2) --dist worksteal
# Programs that are killed or signalled many times, and resumed.
KILLS := tests/crash tests/patterns tests/doors/test_signals.py tests/testing/test_selftests.py \
	tests/integrations/langgraph/test_crash.py $(wildcard tests/integrations/*/test_kills.py)
# What the documentation shows, which is run as a reader would save it.
SHOWN := tests/test_docs.py
# The engine and the media that need no server; servers would take most of the time.
COVERED := core engine doors $(addprefix storage/,files io memory sqlite test_process.py test_registry.py) \
	$(foreach medium,filesystem memory sqlite state_store,contract/test_$(medium).py)

# Tests and benchmarks start many processes, which start twice as fast with their bytecode cached.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test kills coverage e2e browser screens peers newest lint types web docs dist bench proof lock clean system

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: .venv/ready ## kill a running job half way, start it again, and see it resume
	@$(BIN)/surehold demo

test: .venv/ready system ## run all tests that decide right or wrong, but those of make kills and docs
	@$(BIN)/pytest $(PARALLEL) -m "not figures" --ignore=tests/e2e $(addprefix --ignore=,$(KILLS) $(SHOWN)) $(TEST)

kills: .venv/ready system ## kill and signal programs at their records and at random, and judge what they resume
	@$(BIN)/pytest $(PARALLEL) -m "not figures" $(KILLS) $(TEST)

coverage: .venv/ready ## run the tests of core, engine and local storages, and print their branch coverage
	@$(BIN)/pytest $(PARALLEL) -m "not figures and not untraced" --cov --cov-report= $(addprefix tests/,$(COVERED))
	@$(BIN)/coverage report

# Less: make e2e E2E="-m 'not long'"
e2e: .venv/ready .venv-engines/ready .venv-agents/ready build/node/ready system ## run the tests on real servers, a real model and real engines
	@$(BIN)/pytest $(PARALLEL) tests/e2e --ignore=tests/e2e/browser --ignore=tests/e2e/engines \
		--ignore=tests/e2e/agents $(E2E) $(TEST)
	@.venv-engines/bin/pytest -q tests/e2e/engines $(E2E)
	@.venv-agents/bin/pytest -q tests/e2e/agents tests/integrations/strands $(E2E)

browser: .venv-browser/ready web ## run the tests of the page in a real browser
	@$(MAKE) -s system SYSTEM="$(BROWSER)"
	@.venv-browser/bin/pytest tests/e2e/browser

screens: .venv-browser/ready ## make the pictures of the page for the documentation
	@$(MAKE) -s system SYSTEM="$(BROWSER)"
	@.venv-browser/bin/python docs/page_screens.py

peers: .venv-peers/ready .venv-agents/ready ## run other projects' own suites with our integrations in them
	@.venv-peers/bin/python tests/peers/run.py build/peers
	@.venv-agents/bin/python tests/peers/run.py build/peers strands

# Not pinned, so that a release which breaks a drop-in is seen: run it every week.
newest: .venv/bin/uv ## run the tests and suites of all drop-ins with the newest releases of their frameworks
	@$(UV) venv --quiet --clear --python $(BIN)/python .venv-newest
	@$(UV) pip install --quiet --upgrade --python .venv-newest/bin/python --group dev --group peers \
		-e '.[agent-framework,langgraph,mcp,openai-agents,otel,postgres,pydantic-ai,redis,web]'
	@$(UV) venv --quiet --clear --python $(BIN)/python .venv-newest-strands
	@$(UV) pip install --quiet --upgrade --python .venv-newest-strands/bin/python --group agents -e '.[strands]'
	@SUREHOLD_NEWEST=1 .venv-newest/bin/python tests/peers/run.py build/newest
	@SUREHOLD_NEWEST=1 .venv-newest-strands/bin/python tests/peers/run.py build/newest strands
	@.venv-newest/bin/pytest $(PARALLEL) --ignore=tests/integrations/recorder tests/integrations tests/peers
	@.venv-newest-strands/bin/pytest -q tests/integrations/strands

lint: .venv/ready ## check style, format and the lock files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@! grep -n '://' requirements/*.txt || { echo "a lock file names a host: make lock"; exit 1; }

types: .venv/ready build/typing/ready ## check the types, and what type checkers say about a user's program
	$(BIN)/mypy --strict src
	@$(BIN)/pytest -q tests/typing

web: .venv/ready build/web/ready ## check the types of the page's scripts, and that they are served unchanged
	@if [ -x build/web/node_modules/.bin/tsc ]; then \
		build/web/node_modules/.bin/tsc -p tests/web/types/page.json && \
		build/web/node_modules/.bin/tsc -p tests/web/types/worker.json; \
	fi
	@$(BIN)/pytest -q tests/web/test_assets.py

docs: .venv/ready ## run what README and the documentation show, and build the latter into build/site
	@$(BIN)/pytest $(PARALLEL) $(SHOWN) $(TEST)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

# The wheel is tried where nothing but it and what it depends on is installed.
dist: .venv/ready ## build wheel and source distribution into dist, check them, and try the wheel
	@rm -rf dist build/dist && mkdir -p build/dist
	@$(BIN)/python -m hatchling build -d dist
	@$(BIN)/python tests/dist/check.py dist
	@$(UV) venv --quiet --python $(BIN)/python build/dist/env
	@$(UV) pip install --quiet --python build/dist/env/bin/python dist/*.whl
	@cd build/dist && env -i HOME="$$PWD" PATH="$$PWD/env/bin:/usr/bin:/bin" sh -ec \
		'surehold --version; surehold demo >demo.txt; grep resumed demo.txt; python ../../tests/dist/first_use.py'

# A clock decides here, so each figure has several tries. Less: make bench BENCH="size graph"
bench: .venv/ready .venv-bench/ready system ## measure, beside other libraries doing the same work
	@$(BIN)/pytest -q -m figures --ignore=tests/e2e --reruns 2
	@.venv-bench/bin/python -m benchmarks $(BENCH)

# The full figures take hours; less: make proof PROOF="kills power --most 100"
proof: .venv-bench/ready build/node/ready system ## try to break what is promised, and print what was seen
	@PATH="$(CURDIR)/$(BIN):$$PATH" .venv-bench/bin/python -m proof $(PROOF)

lock: .venv/bin/uv ## pin the newest versions of all dependencies, with hashes
	$(LOCK) --group bootstrap -o requirements/bootstrap.txt
	$(LOCK) pyproject.toml $(EXTRAS) --group dev -o requirements/dev.txt
	$(LOCK) pyproject.toml $(EXTRAS) --group bench -o requirements/bench.txt
	$(LOCK) pyproject.toml --extra langgraph --group peers -o requirements/peers.txt
	$(LOCK) --no-deps --group sources -o requirements/sources.txt
	$(LOCK) pyproject.toml --group service -o requirements/service.txt
	$(LOCK) pyproject.toml --extra web --extra langgraph --group browser -o requirements/browser.txt
	$(LOCK) pyproject.toml --extra postgres --extra ray --extra temporal --group engines -o requirements/engines.txt
	$(LOCK) pyproject.toml --group agents -o requirements/agents.txt

clean: ## remove the environments and everything that was built
	rm -rf .venv .venv-agents .venv-bench .venv-browser .venv-engines .venv-newest .venv-newest-strands .venv-peers .venv-fuzz build dist .coverage .coverage.* .hypothesis
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

system:
	@for pair in $(SYSTEM); do \
		name=$${pair%:*} package=$${pair#*:}; \
		command -v $$name >/dev/null && continue; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "installing $$package"; \
			(apt-get -qq update && apt-get -qq install -y $$package) >/dev/null && continue; \
		fi; \
		echo "$$name is not installed: the tests that need it will be skipped"; \
	done

build/web/ready: tests/web/types/package.json tests/web/types/package-lock.json
	@mkdir -p build/web && cp $^ build/web
	@if command -v npm >/dev/null; then \
		npm ci --prefix build/web --no-audit --no-fund --loglevel=error; \
	else \
		echo "npm is not installed: the types of the scripts are not checked"; \
	fi
	@touch $@

build/typing/ready: tests/typing/package.json tests/typing/package-lock.json
	@mkdir -p build/typing && cp $^ build/typing
	@if command -v npm >/dev/null; then \
		npm ci --prefix build/typing --no-audit --no-fund --loglevel=error; \
	else \
		echo "npm is not installed: pyright does not check a user's program"; \
	fi
	@touch $@

# Servers that are programs of Node; without npm their tests are skipped.
build/node/ready: tests/e2e/node/package.json tests/e2e/node/package-lock.json
	@mkdir -p build/node && cp $^ build/node
	@if command -v npm >/dev/null; then \
		npm ci --prefix build/node --no-audit --no-fund --loglevel=error; \
	else \
		echo "npm is not installed: the tests that need it will be skipped"; \
	fi
	@touch $@

.venv/bin/uv: requirements/bootstrap.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Surehold needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=python3.12"; \
		exit 1; }
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

.venv/ready: .venv/bin/uv requirements/dev.txt pyproject.toml
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

.venv-bench/ready: .venv/bin/uv requirements/bench.txt pyproject.toml
	@$(UV) venv --quiet --clear --python $(BIN)/python .venv-bench
	@$(UV) pip sync --quiet --python .venv-bench/bin/python --require-hashes requirements/bench.txt
	@$(UV) pip install --quiet --python .venv-bench/bin/python --no-deps --no-build-isolation -e .
	@touch $@

.venv-browser/ready: .venv/bin/uv requirements/browser.txt pyproject.toml
	@$(UV) venv --quiet --clear --python $(BIN)/python .venv-browser
	@$(UV) pip sync --quiet --python .venv-browser/bin/python --require-hashes requirements/browser.txt
	@$(UV) pip install --quiet --python .venv-browser/bin/python --no-deps --no-build-isolation -e .
	@touch $@

.venv-engines/ready: .venv/bin/uv requirements/engines.txt pyproject.toml
	@$(UV) venv --quiet --clear --python $(BIN)/python .venv-engines
	@$(UV) pip sync --quiet --python .venv-engines/bin/python --require-hashes requirements/engines.txt
	@$(UV) pip install --quiet --python .venv-engines/bin/python --no-deps --no-build-isolation -e .
	@touch $@

.venv-peers/ready: .venv/bin/uv requirements/peers.txt pyproject.toml
	@$(UV) venv --quiet --clear --python $(BIN)/python .venv-peers
	@$(UV) pip sync --quiet --python .venv-peers/bin/python --require-hashes requirements/peers.txt
	@$(UV) pip install --quiet --python .venv-peers/bin/python --no-deps --no-build-isolation -e .
	@touch $@

.venv-agents/ready: .venv/bin/uv requirements/agents.txt pyproject.toml
	@$(UV) venv --quiet --clear --python $(BIN)/python .venv-agents
	@$(UV) pip sync --quiet --python .venv-agents/bin/python --require-hashes requirements/agents.txt
	@$(UV) pip install --quiet --python .venv-agents/bin/python --no-deps --no-build-isolation -e .
	@touch $@
