# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PROGRAMS := $(patsubst cmd/%/main.go,%,$(wildcard cmd/*/main.go))
# Areas with their own RBAC roles.
AREAS := $(patsubst %/setup.go,%,$(wildcard runners/setup.go networking/setup.go hosts/setup.go bridge/setup.go))

# The version information of programs: the output of git describe, the commit and its time.
VERSION ?= $(shell git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null)
COMMIT := $(shell git rev-parse HEAD 2>/dev/null)
COMMIT_TIME := $(shell TZ=UTC0 git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null)
# Without the lock git leaves its index as it is: a write would change the folder, which tests depend on. go runs
# git, too.
export GIT_OPTIONAL_LOCKS = 0
MODIFIED := $(shell test -z "$$(git --no-optional-locks status --porcelain 2>/dev/null)" || echo true)
module := github.com/hyperfleet/hyperfleet
version_package := $(module)/cmd/internal/version
LDFLAGS := -s -w $(foreach set,tag=$(VERSION) commit=$(COMMIT) commitTime=$(COMMIT_TIME) modified=$(MODIFIED),-X $(version_package).$(set))
# Disable gRPC's trace pages, which no program serves, because they keep unused code in programs (ADR 0057).
TAGS := grpcnotrace
# Builds without the race detector use the same settings as the programs, so that programs, linters and tests share
# compiled packages.
as_programs := CGO_ENABLED=0 GOFLAGS="$${GOFLAGS:-} -trimpath -tags=$(TAGS)"
# Settings of `make release`: the output folder, the architectures for Linux, the other platforms for the client
# `hyperfleet`, the prefix of image names, the URL below which users download the files, and the signing key.
DIST ?= dist
ARCH ?= amd64 arm64
CLIENTS ?= darwin/amd64 darwin/arm64
REGISTRY ?=
URL ?=
KEY ?=

# Settings of `make test`. PKG=./kit/... and RUN=TestName select tests. COUNT=1 also runs tests with a cached result.
# RACE=yes runs the test programs in hack/testrun/race.txt with the race detector, which compiles all their packages
# again. RACE=only runs no others, and RACE=rest only the others. Some tests have their own targets: the end-to-end tests in test/e2e, tests with SPIRE in their names
# (make e2e-spire), and tests whose names end with Upstream (make e2e-kubevirt, make e2e-bridge). The programs that these
# tests need take longer to build than all others. The slowest packages come first, so that they do not run alone at the
# end, and packages that mostly wait run in parallel with packages that need the CPU.
PKG ?= $(shell go list ./bridge ./cmd/hyperfleet ./test/fleet ./test/kill ./hosts ./sim/hypershift ./platform/broker ./test/... ./... 2>/dev/null | grep -v /test/e2e/)
RUN ?= .
SKIP := SPIRE|Upstream\b
COUNT ?=
RACE ?=
RACED := $(if $(filter yes only,$(RACE)),-race hack/testrun/race.txt)
raced_programs = $(foreach program,$(shell sed -n 's/^\([a-z][^:]*\):.*/\1/p' hack/testrun/race.txt | sort -u),./$(program) $(module)/$(program))
PACKAGES = $(if $(filter only,$(RACE)),$(filter $(raced_programs),$(PKG)),$(if $(filter rest,$(RACE)),$(filter-out $(raced_programs),$(PKG)),$(PKG)))
TEST_TIMEOUT ?= 30m
# The revision with which `make test-changed` compares: the last commit, or the base of your branch.
BASE ?= HEAD
# Run more packages and tests in parallel than there are cores, because tests mostly wait for servers and for each other.
# Link the test programs without DWARF, because they are not debugged.
TEST_FLAGS := -vet=off '-ldflags=-s -w' -p 3 -parallel 8 -timeout $(TEST_TIMEOUT) $(if $(COUNT),-count=$(COUNT))
# SOAK has the packages with properties that set Brief, and with tests that call property.Soak. FUZZ is the time for which
# each fuzz target runs.
SOAK = $(shell grep -rlE --include='*_test.go' --exclude-dir=bin --exclude-dir=property 'property[.]Soak|Brief:' */ | xargs -n 1 dirname | sort -u | sed 's|^|./|')
FUZZ ?= 1m
# Flags of `make demo`: DEMO="--jobs 50 --output json".
DEMO ?=
# Not empty if the demo boots machines from the image of hack/vm-image.
real_machines = $(filter libvirt %=libvirt qemu %=qemu,$(DEMO))
# Settings of `make chaos`: the time for which it injects faults, and the seed, which reproduces the same faults.
CHAOS_TIME ?= 2h
CHAOS_SEED ?=
# The flags of the demo for `make load`, with faults.
LOAD := --jobs 200 --faults webhooks-lost=0.3,webhooks-duplicated=0.2,webhooks-reordered=0.5,vm-crash=0.1,clone-lock=0.2

# call E2E,NAMES,FLAGS: runs end-to-end tests with the flags of go test, and prints their output immediately.
define E2E
$(as_programs) go build -ldflags "-s -w" -o bin/testrun ./hack/testrun
$(as_programs) PATH="$(CURDIR)/bin:$$PATH" bin/testrun -v $(1:%=./test/e2e/%) -- -vet=off '-ldflags=-s -w' -p 3 -count=1 -timeout $(TEST_TIMEOUT) -run '$(RUN)' $(2)
endef

# call JUDGED,PATTERN: runs the tests outside of test/e2e whose names match the pattern. These tests validate our objects
# with programs of other projects.
define JUDGED
$(as_programs) bin/testrun $$(grep -rlE '^func Test\w*($(1))' --include='*_test.go' --exclude-dir=bin . | xargs -n 1 dirname | sort -u) -- $(TEST_FLAGS) -run '$(1)'
endef

.PHONY: help setup build release publish freeze site test test-changed compile-tests bench-tests soak chaos load testrun e2e e2e-install e2e-release e2e-spire e2e-vm e2e-kubevirt e2e-bridge e2e-platform e2e-hosts e2e-windows e2e-clients e2e-proxmox e2e-agents lint generate verify dependencies demo bench clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install all tools for the other targets in bin/ (the targets also do this themselves)
	@hack/setup.sh

build: ## build the programs into bin/
	@echo "build $(addprefix bin/,$(PROGRAMS))"
	@$(as_programs) go build -ldflags "$(LDFLAGS)" -o bin/ $(addprefix ./cmd/,$(PROGRAMS))

release: ## build all files of a release in dist/ (VERSION=v0.1.0 REGISTRY=registry.example.com/fleet KEY=release.key)
	@if [ -n "$(MODIFIED)" ] && [ "$(MODIFIED_OK)" != yes ]; then \
		echo "release: the checkout has uncommitted changes: commit them, or set MODIFIED_OK=yes" >&2; exit 1; \
	fi
	@go mod download # the following builds use no network
	@mkdir -p bin && cd hack/release && go build -o ../../bin/release .
	@bin/release -dist "$(DIST)" -version "$(VERSION)" -commit "$(COMMIT)" -time "$(COMMIT_TIME)" \
		-tags "$(TAGS)" -ldflags "$(LDFLAGS)" -registry "$(REGISTRY)" -url "$(URL)" -key "$(KEY)" -arch "$(ARCH)" -clients "$(CLIENTS)"

publish: ## push the images and charts of a release in dist/ (VERSION=v0.1.0 REGISTRY=registry.example.com/fleet)
	@mkdir -p bin && cd hack/release && go build -o ../../bin/release .
	@bin/release -publish -dist "$(DIST)" -version "$(VERSION)" -registry "$(REGISTRY)"

freeze: ## store the CRDs and objects of a release, which later releases must support (VERSION=v0.2.0)
	@hack/setup.sh kube
	@$(as_programs) go test ./test/upgrade -count 1 -run TestFreeze -freeze "$(VERSION)"

site: ## build the documentation site in dist/site, which works without a server
	@$(as_programs) go run ./hack/site -dist "$(DIST)/site" -version "$(VERSION)"

test: testrun ## run all tests without a valid cached result (PKG=./kit/... RUN=TestName COUNT=1 RACE=yes)
	@$(as_programs) bin/testrun $(RACED) $(PACKAGES) -- $(TEST_FLAGS) -run '$(RUN)' '-skip=$(SKIP)'

test-changed: testrun ## run the tests of packages that depend on changes since BASE=HEAD
	@$(as_programs) bin/testrun -changed $(BASE) $(RACED) $(PACKAGES) -- $(TEST_FLAGS) -run '$(RUN)' '-skip=$(SKIP)'

compile-tests: ## compile what the tests need and run nothing (PKG=./kit/... RACE=only)
	@$(as_programs) $(if $(RACED),CGO_ENABLED=1) go list $(if $(RACED),-race) -test -deps -export $(PACKAGES) >/dev/null

bench-tests: ## measure the time to build and run the tests, in units of the build time of kube-apiserver
	@hack/bench-tests.sh

soak: testrun ## run all properties at full length, kill programs at each call, and run each fuzz target for FUZZ=1m
	@hack/setup.sh spire vault
	@$(as_programs) HYPERFLEETTEST_SOAK=1 bin/testrun $(SOAK) -- $(TEST_FLAGS) -run '^(TestProperty|TestSoak)'
	@$(as_programs) bin/testrun -fuzz $(FUZZ) $(PKG)

chaos: testrun ## run tests with random faults that begin and end (CHAOS_SEED=7 CHAOS_TIME=10h)
	@$(as_programs) CHAOS_SEED="$(CHAOS_SEED)" CHAOS_TIME="$(CHAOS_TIME)" bin/testrun -v ./test/chaos -- $(TEST_FLAGS) -count 1

load: ## run the demo with 200 jobs and with faults
	@$(MAKE) --no-print-directory demo DEMO="$(LOAD)"

# Tests install rarely needed tools themselves while other tests run (Tool in test/exe).
testrun:
	@hack/setup.sh kube packages
	@$(as_programs) go build -ldflags "-s -w" -o bin/testrun ./hack/testrun

# The slowest tests come first.
e2e: build e2e-release ## run the short form of all following end-to-end tests, except for e2e-agents
	@hack/setup.sh spire vault packages vm wine clients
	@hack/vm-image/build.sh
	@$(call E2E,platform vm kubevirt hosts bridge windows install spire clients proxmox,-short)
	@$(call JUDGED,$(SKIP))

e2e-install: e2e-release ## build two identical releases, and test from helm install to the first finished job
	@$(call E2E,install)

e2e-release:
	@hack/setup.sh kube kubectl helm olm
	@for dist in bin/install bin/install-again; do \
		$(MAKE) --no-print-directory release VERSION=v0.0.0-install DIST=$$dist ARCH=$$(go env GOARCH) CLIENTS= MODIFIED_OK=yes REGISTRY= KEY=; \
	done
	@cd hack/release && go build -o ../../bin/registry github.com/google/go-containerregistry/cmd/registry
	@cmp bin/install/SHA256SUMS bin/install-again/SHA256SUMS && rm -r bin/install-again && echo "both releases have the same checksums"
	@cd hack/release && go test ./...

e2e-spire: build ## test machines that attest to a real SPIRE server and log in to a real Vault
	@hack/setup.sh kube spire vault packages
	@$(call E2E,spire)
	@$(call JUDGED,SPIRE)

e2e-vm: TEST_TIMEOUT = 60m
e2e-vm: build ## test jobs in real VMs of QEMU and libvirt, from the webhook to the deletion of the VM (software emulation)
	@hack/setup.sh kube kubectl spire packages vm
	@hack/vm-image/build.sh
	@$(call E2E,vm)

e2e-kubevirt: build ## test KubeVirt machines with static addresses, with KubeVirt's own schemas and admission webhook
	@hack/setup.sh kube packages upstream
	@$(call E2E,kubevirt)
	@$(call JUDGED,Upstream\b)

e2e-bridge: build ## test hosted clusters for DPUs, with HyperShift's and MetalLB's own schemas and MetalLB's controller
	@hack/setup.sh kube upstream
	@$(call E2E,bridge)
	@$(call JUDGED,Upstream\b)

e2e-platform: build ## test the fleet platform from the API to objects, with a real PostgreSQL and real brokers
	@hack/setup.sh kube kubectl helm packages
	@$(call E2E,platform)

e2e-windows: ## test the bootstrap service for Windows under Wine, and a machine with Windows from its job to its deletion
	@hack/setup.sh kube wine
	@$(call E2E,windows)

e2e-hosts: build ## test fleets of hosts over SSH, from the first boot to their release
	@hack/setup.sh kube packages
	@$(call E2E,hosts)

e2e-clients: build ## test pvesim with OpenTofu and Telmate's proxmox-api-go, and validate the templates for Packer
	@hack/setup.sh kube clients
	@$(call E2E,clients)

# These tests use the Proxmox VE cluster in PVE_ENDPOINT (go doc ./test/realpve). Without it, all of them are skipped.
SHORT ?=
e2e-proxmox: TEST_TIMEOUT = 40m
e2e-proxmox: build ## test the provider and a job in a VM on the real Proxmox VE cluster in PVE_ENDPOINT
	@hack/setup.sh kube
	@$(call E2E,proxmox,$(SHORT))

# Some networks cannot download the modules of an agent. Without an agent, its tests are skipped.
e2e-agents: ## test machines with the real buildkite-agent and gitlab-runner (go doc ./test/e2e/agents)
	@hack/setup.sh agents || echo "e2e-agents: cannot build buildkite-agent: set BUILDKITE_AGENT to an installed one"
	@$(call E2E,agents)

# Each checkout has its own cache, because cached findings contain the paths of the checkout.
lint: ## run all linters (.golangci.yml)
	@hack/setup.sh lint
	@bin/golangci-lint config verify
	@for module in . hack/release; do \
		(cd $$module && $(as_programs) GOLANGCI_LINT_CACHE="$(CURDIR)/bin/.lint" "$(CURDIR)/bin/golangci-lint" run ./...) || exit 1; \
	done

generate: ## generate CRDs, deep copies, RBAC roles, gRPC code, reference pages, alerts and dashboards
	@hack/setup.sh generate
	@bin/controller-gen object:headerFile=hack/boilerplate.go.txt paths=./api/...
	@bin/controller-gen crd paths=./api/... output:crd:dir=deploy/crds
	@for area in $(AREAS); do \
		bin/controller-gen rbac:roleName=hyperfleet-$$area,fileName=$$area.yaml \
			paths=./$$area/... paths=./cmd/hyperfleet/operator/... output:rbac:dir=deploy/rbac; \
	done
	@hack/openapi.sh
	@bin/protogen . hypervisor/external/providerpb/provider.proto bin/protoc-gen-go bin/protoc-gen-go-grpc
	@for program in apidoc configdoc taskdoc monitoring; do $(as_programs) go run ./hack/$$program; done

verify: ## fail if generated files, module files or formatting are out of date
	@hack/verify.sh

dependencies: ## list direct dependencies with newer, deprecated and retracted versions (asks the module proxy)
	@hack/dependencies.sh

# The tools and the programs are built one after the other: side by side, both compile the packages that they share.
demo: PROGRAMS := hyperfleet hyperfleet-demo pvesim forgesim bootstrap-service
demo: ## run CI jobs in fresh machines on this computer, with simulators (DEMO="--jobs 50") or libvirt (DEMO="--hypervisor libvirt")
	@hack/setup.sh kube $(if $(real_machines),spire vm)
	@$(MAKE) --no-print-directory build PROGRAMS="$(PROGRAMS)"
	@$(if $(real_machines),hack/vm-image/build.sh)
	@bin/hyperfleet-demo $(DEMO)

bench: build ## run benchmarks: a demo with 50 jobs, memory with 500 concurrent claims, and Go benchmarks
	@hack/setup.sh kube
	@hack/bench.sh

clean: ## delete build output except for the tools (to delete the tools too, run rm -rf bin)
	rm -rf $(addprefix bin/,$(PROGRAMS)) bin/testrun bin/release dist cover.out
