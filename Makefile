# Each target is one k1 command or one pytest call. `make help` lists them.
BOARD ?= virt
N ?= 4
K1 = .venv/bin/k1
PYTEST = .venv/bin/pytest
SHELL_FILES = tools/setup .ci/run packaging/k1-release $(wildcard tests/data/debian/*) $(wildcard buildroot-ext/board/*.sh) $(shell git ls-files 'board/*/overlay/*' | xargs -d '\n' grep -lE '^\#!/bin/sh')
C_FILES = $(shell git ls-files '*.c' '*.h')

.DEFAULT_GOAL := help
.PHONY: $(shell sed -nE 's/^([a-z0-9-]+):.*/\1/p' Makefile)

help: ## List the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: .venv/ready ## Install Debian packages (sudo when not root) and the Python environment

.venv/ready: packaging/debian-packages.txt requirements.lock pyproject.toml tools/setup
	@tools/setup

image: .venv/ready ## Build the image: BOARD=virt (default) or k1
	@$(K1) image --board $(BOARD)

lab: .venv/ready ## Boot N=4 virtual boards from the image
	@$(K1) lab up -n $(N)

demo: .venv/ready ## Build what is missing, boot four virtual boards and let them answer as one
	@$(K1) demo

test: .venv/ready ## Unit and integration tests
	$(PYTEST) -m "not slow"

test-slow: .venv/ready ## The tests of minutes: the real model against numpy, C tests for musl and Arm
	$(PYTEST) -m slow

test-e2e: image ## Boot virtual boards and try them
	$(PYTEST) -m "not slow" tests/e2e

test-e2e-slow: image ## Power cut at every step of a deploy, and a large upload, on virtual boards
	$(PYTEST) -m slow tests/e2e

# Its own target: some 11 minutes on two cores, 3 of them only the first time, while Debian's packages set themselves up.
test-systemd: image ## Deploy to a virtual machine with Debian and systemd
	$(PYTEST) tests/systemd

test-reproducible: .venv/ready ## Build everything twice and compare the bytes
	$(PYTEST) tests/reproducible

test-buildroot: .venv/ready ## Our external tree in a real Buildroot 2023.08: BUILDROOT=its folder
	BUILDROOT=$(BUILDROOT) $(PYTEST) tests/buildroot

test-kernel-twin: .venv/ready ## Compile the kernel's pause patch on the image's own kernel source
	$(PYTEST) tests/twin

test-soak: .venv/ready ## Ten minutes of k1 console at full speed: no byte may be lost
	K1_SOAK_SECONDS=600 $(PYTEST) -s tests/integration/test_console.py -k full_speed

bench-engine: .venv/ready ## Tokens/s, start and memory of the engine here; LLAMA_BENCH=path compares with llama.cpp
	@.venv/bin/python tests/bench/engine.py

bench: bench-engine bench-pipeline bench-kv ## All of the benchmarks

bench-pipeline: .venv/ready ## One stream over 1, 2 and 4 local processes: tokens/s, and the ratio to one
	@PYTHONPATH=tests .venv/bin/python tests/bench/pipeline.py

bench-kv: .venv/ready ## Cache misses of both KV layouts in a simulated K1 L2 (cachegrind), and their ratio
	@.venv/bin/python tests/bench/kv.py

lint: .venv/ready ## ruff, mypy --strict, clang-format, shellcheck
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	shellcheck $(SHELL_FILES)
	$(if $(C_FILES),.venv/bin/clang-format --dry-run --Werror $(C_FILES))

format: .venv/ready ## Rewrite Python and C files in the project's style
	.venv/bin/ruff check --fix
	.venv/bin/ruff format
	$(if $(C_FILES),.venv/bin/clang-format -i $(C_FILES))

lock: .venv/ready ## Renew requirements.lock from pyproject.toml
	.venv/bin/pip-compile -q --all-extras --generate-hashes --strip-extras --no-emit-index-url \
		--no-emit-find-links --no-emit-trusted-host --allow-unsafe -o requirements.lock pyproject.toml

clean: ## Remove what was built (the cache in ~/.cache/k1 stays)
	@if [ -x $(K1) ]; then $(K1) image clean --board $(BOARD); fi
