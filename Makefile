# One entry for people and for CI. Every target does its own set-up. Day to day: docs/hacking.md.
.DEFAULT_GOAL := help
.PHONY: help setup package tools demo showcase test test-fast bench crash-test fault-test \
	soak-test simulate planted lint docs format asan tsan clean
VENV := .venv/bin

help:
	@echo 'make setup      packages, virtual environment in .venv, native build in build/'
	@echo 'make demo       CTX and GEN instances reuse KV blocks through a real Mooncake Store'
	@echo 'make showcase   every back end, rank count and granularity; figures and a report'
	@echo 'make test       all default suites, a real Mooncake Store included'
	@echo 'make test-fast  hermetic tests, under two minutes after the build (idle machine)'
	@echo 'make bench      ratios against raw baselines, into build/bench/results.json'
	@echo 'make crash-test 500 writers of a file store are killed; what they leave is checked'
	@echo 'make fault-test REQUESTS=N SEED=S  a store is killed and stopped under four ranks'
	@echo 'make soak-test REQUESTS=N SEED=S  requests of every kind; nothing is left of them'
	@echo 'make simulate SEEDS=N  schedules of simulated worlds with faults (default 50000)'
	@echo 'make planted    bugs planted in the product, each of which the simulation must catch'
	@echo 'make lint       ruff, mypy, codespell, clang-format, headers alone, site, clang-tidy'
	@echo 'make docs       the documentation site, into build/docs/html'
	@echo 'make format     apply ruff and clang-format'
	@echo 'make asan tsan  C++ tests under sanitizers'
	@echo 'make clean      remove build/ and .venv/'

setup:
	@scripts/setup

package:
	@scripts/setup --no-tests

tools:
	@scripts/setup --no-build

demo: package
	@$(VENV)/mooncake-trtllm demo --backend mooncake

showcase: package
	@benchmarks/tensorrt_llm_kv_connector/deploy/run_ctx_gen_store.sh showcase

test: setup
	@$(VENV)/python scripts/run_tests.py all

test-fast: setup
	@$(VENV)/python scripts/run_tests.py fast

bench: setup
	@cmake --preset release >/dev/null
	@cmake --build --preset release
	@mkdir -p build/bench
	@$(VENV)/python bench/run.py --out build/bench/results.json

crash-test: setup
	@$(VENV)/python tests/python/support/crash.py --kills 500

SEED ?= $(shell date +%s)

fault-test: REQUESTS ?= 2000
fault-test: setup
	@$(VENV)/python tests/python/support/fault_run.py --requests $(REQUESTS) --seed $(SEED)

soak-test: REQUESTS ?= 20000
soak-test: setup
	@$(VENV)/python tests/python/support/soak.py --requests $(REQUESTS) --seed $(SEED)

SEEDS ?= 50000
# Another part of the seeds with each commit; FIRST=1 for the same ones again.
FIRST ?= $(shell printf '%d' 0x$$(git rev-parse --short=8 HEAD 2>/dev/null || echo 1))
SIMULATIONS := build/release/tests/sim

simulate: tools
	@cmake --preset release -DKVC_BUILD_BENCH=OFF >/dev/null
	@cmake --build --preset release --target kvc_simulate
	@$(SIMULATIONS)/kvc_simulate --seeds $(SEEDS) --first $(FIRST)

planted: tools
	@cmake --preset release -DKVC_BUILD_BENCH=OFF >/dev/null
	@cmake --build --preset release --target kvc_simulate_planted
	@$(SIMULATIONS)/kvc_simulate_planted --hunt 500000

lint: setup
	@$(VENV)/python scripts/lint.py

docs: setup
	@$(VENV)/python scripts/docs.py

format: setup
	@$(VENV)/python scripts/lint.py --fix

asan tsan: setup
	@cmake --workflow --preset $@

clean:
	@rm -rf build .venv
