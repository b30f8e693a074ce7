# Every target can be run again at any time. `demo`, `testbed` and `test` work inside node boxes: see tools/nodebox.
SHELL := /bin/bash
PYTHON := .venv/bin/python
# Compiled once and kept: each start of a program would compile all its modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup update demo testbed down check docs wheel deb unit test test-all affected bare bench clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1	\2/' | expand -t 16

setup: ## install the missing Debian packages and the virtual environment
	@tools/setup

update: setup ## lock the newest versions that pyproject.toml allows, install them, check and test
	@tools/update
	@$(MAKE) check unit

demo: setup docs wheel ## from nothing to a root shell in a container made from a VM disk image
	@tools/reachable $(PYTHON) tools/demo.py up

testbed: setup docs wheel ## a testbed of boxes: a centre with PostgreSQL and RabbitMQ, and three nodes that joined
	@tools/reachable $(PYTHON) tools/boxed_testbed.py

down: ## take away everything that demo, testbed and test made, but what setup installed
	@/usr/bin/python3 tools/demo.py down

check: setup ## style, types, import directions, schema, golden files, documents (fast)
	@$(PYTHON) tools/check.py

docs: setup ## build the documents, which the service shows at /docs; warnings are errors
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

wheel: setup ## build the wheel of slicectl and the Python client, which the service offers at /client
	@rm -rf .venv/share/slicemgr
	@$(PYTHON) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir .venv/share/slicemgr .

deb: setup docs ## build the Debian packages of this host's release in dist/; REVISION=2 for the second of a version
	@$(PYTHON) tools/deb.py

unit: setup ## the tests that need no root and no box
	@tools/reachable $(PYTHON) -m pytest -q tests/unit tests/golden

test: check ## something of everything: the suite but its tests marked `long`
	@tools/reachable $(PYTHON) tools/suite.py

test-all: check ## the whole suite: each recipe's boot, all variants, the emulated production host
	@tools/reachable $(PYTHON) tools/suite.py --all

affected: check ## the tests that can see what changed since HEAD, or since BASE=...
	@tools/reachable $(PYTHON) tools/affected.py $(BASE)

bare: setup ## the set-up, `make check` and the units on a minimal Debian 12, in a tree of its own (long, needs the network)
	@$(PYTHON) tools/bare.py

bench: setup ## the life cycle of 50 slices beside the raw baseline, on the demo node
	@.venv/bin/slicectl bench lifecycle --type lxc --count 50 --parallel 4 \
	    --output build/lifecycle-$$(date -u +%Y%m%d-%H%M%S)

clean: down ## also remove what setup made
	@rm -rf .venv build dist *.egg-info slicemgr/libexec images/init/init images/init/sshd-listener slicemgr/manual
