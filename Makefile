.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all check docs wheel-check bench clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 21

demo: .venv/bin/vitral ## train on the bundled images and look at the answers
	.venv/bin/vitral demo

# One worker more than cores: tests wait for processes and browsers as well as for the processor.
test: export PYTEST_XDIST_AUTO_NUM_WORKERS = $(shell expr $$(nproc) + 1)

test: .venv/.ready ## run the tests, but for the variants that only multiply them: minutes
	.venv/bin/python -m pytest -q -n auto --dist worksteal -m 'not slow'

test-all: .venv/.ready ## run every test with every variant, as CI does
	.venv/bin/python -m pytest -q -n auto --dist worksteal

check: .venv/.ready ## lint, formatting, types and the architecture
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/python -m pytest -q tests/test_architecture.py

docs: .venv/.ready ## compare the generated pages with what they are generated from
	.venv/bin/python -m tools.write_paper --check

wheel-check: .venv/.ready ## build the wheel, install it elsewhere, run the quick start of the README with it
	bash tools/wheel_check.sh

bench: .venv-bench/.ready ## measure vitral beside its peers
	.venv-bench/bin/python -m benchmarks

clean: ## remove caches and builds; the environments stay (rm -rf .venv .venv-bench for those)
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find vitral tests benchmarks tools -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# A virtual environment with pip in it, made anew only where it is missing or broken.
define environment
@$(1)/bin/python -m pip --version >/dev/null 2>&1 || { \
	for python in python3.11 python3; do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "making $(1) with $$($$python --version)"; exec $$python -m venv --clear $(1); \
		fi; \
	done; \
	echo "vitral needs Python 3.11 or newer, found $$(python3 --version 2>&1); install it and run make again" >&2; \
	exit 1; \
}
endef

.venv/bin/python:
	$(call environment,.venv)

.venv-bench/bin/python:
	$(call environment,.venv-bench)

# Enough for the demo, and there already if vitral was installed as the README says.
.venv/bin/vitral:
	$(call environment,.venv)
	.venv/bin/python -m pip install -c constraints.txt -e .

# The stamp is the last thing written, so a set-up that was interrupted is taken up again.
.venv/.ready: .venv/bin/python pyproject.toml constraints.txt
	$(call environment,.venv)
	.venv/bin/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

# The peers in the second list would bring torchvision, which breaks the CPU build of torch; so it stands apart.
.venv-bench/.ready: .venv-bench/bin/python pyproject.toml constraints.txt benchmarks/peers.txt benchmarks/peers-nodeps.txt
	$(call environment,.venv-bench)
	.venv-bench/bin/python -m pip install -q -c constraints.txt -e .
	.venv-bench/bin/python -m pip install -q -c constraints.txt -r benchmarks/peers.txt
	.venv-bench/bin/python -m pip install -q --no-deps -r benchmarks/peers-nodeps.txt
	.venv-bench/bin/python -m pip install -q --no-deps --upgrade --target .venv-bench/torchvision torchvision==0.29.2
	@touch $@
