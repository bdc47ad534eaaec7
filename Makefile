# SPDX-License-Identifier: GPL-2.0
#
# Rivet's entry points. "make help" lists them; the work is in scripts/ and
# qemu/, and everything that is built goes to build/.

.DEFAULT_GOAL := help
.NOTPARALLEL:

KDIR ?=
MO ?= $(CURDIR)/build/module

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z_-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 26
	@echo
	@echo "  DEVICE=NAME        check: on that RDMA device of this machine, or siw: soft-iWARP"
	@echo "                     in the virtual machine"
	@echo "  KERNEL=VERSION     another kernel of the suite (run, check, shell, modules)"
	@echo "  CASES='PATTERN...' run, bench: only these cases; check and coverage:"
	@echo "                     only these selftests, by name"
	@echo "  ROUNDS=N           run, bench: how often each is measured"
	@echo "  CLOCK=icount       bench: only that clock (or threads)"
	@echo "  MINUTES=N SEED=N   soak: for how long, and an earlier run's decisions again"
	@echo "  FLAVOUR=debug      soak, shell: on the debug kernel"
	@echo "  KDIR=DIR           modules, modules_install: a kernel tree of your own, with"
	@echo "                     the host's compilers"
	@echo "  ACCEL=kvm|tcg      how QEMU runs (else a short boot finds out)"
	@echo "  DEBIAN_MIRROR=URL  another Debian mirror"
	@echo "  XDG_CACHE_HOME=DIR where downloads and toolchain are kept (below rivet/)"

.PHONY: run
run: ## build all, boot the virtual machine, show the latency tables
	@scripts/run

.PHONY: check
check: ## lint, unit tests, and the selftests in the virtual machine
	@scripts/check

.PHONY: check-debug
check-debug: ## the selftests on a kernel that looks for faults (see README)
	@scripts/check debug

.PHONY: soak
soak: ## random acts under verified traffic for MINUTES=10 (see README)
	@scripts/soak

.PHONY: coverage
coverage: ## which functions and lines of rivet.ko the selftests execute
	@scripts/coverage

.PHONY: bench
bench: ## measure every case: a table, build/bench.json, pictures (see README)
	@scripts/bench

.PHONY: shell
shell: ## a shell in the virtual machine, with module and tools at hand
	@scripts/build
	@RIVET_KERNEL_SAID=1 qemu/vm shell

.PHONY: modules
modules: ## rivet.ko, in build/module
	@scripts/$(if $(KDIR),build-kdir modules "$(KDIR)" "$(MO)",build modules)

.PHONY: modules_install
modules_install: ## install rivet.ko for the kernel of KDIR=
	@scripts/build-kdir modules_install "$(KDIR)" "$(MO)"

.PHONY: lint
lint: ## rustfmt, clippy, checkpatch, shellcheck, licences, where unsafe is
	@scripts/lint

.PHONY: unit
unit: ## tests of the pure logic, on the host
	@scripts/unit

.PHONY: doc
doc: ## the crate's documentation, in build/doc
	@scripts/doc

.PHONY: clean
clean: ## remove build/
	@scripts/clean build

.PHONY: clean-cache
clean-cache: ## remove the downloads and the toolchain as well
	@scripts/clean cache
