# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PROGRAMS := $(patsubst cmd/%/main.go,%,$(wildcard cmd/*/main.go))
# Areas with RBAC of their own.
AREAS := $(patsubst %/setup.go,%,$(wildcard runners/setup.go networking/setup.go hosts/setup.go bridge/setup.go))

# What programs say they are: the tag, with what came since, the commit and its time.
VERSION ?= $(shell git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null)
COMMIT := $(shell git rev-parse HEAD 2>/dev/null)
COMMIT_TIME := $(shell TZ=UTC0 git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null)
# Without the lock git leaves its index as it is: a write would change the folder, which tests depend on. go runs
# git, too.
export GIT_OPTIONAL_LOCKS = 0
MODIFIED := $(shell test -z "$$(git --no-optional-locks status --porcelain 2>/dev/null)" || echo true)
version_package := github.com/hyperfleet/hyperfleet/cmd/internal/version
LDFLAGS := -s -w $(foreach set,tag=$(VERSION) commit=$(COMMIT) commitTime=$(COMMIT_TIME) modified=$(MODIFIED),-X $(version_package).$(set))
# gRPC's pages of its calls, which nothing here serves, keep unused code in programs: ADR 0057.
TAGS := grpcnotrace
# What is built without the race detector is built as the programs are, so that no package is
# compiled once for programs, once for linters and once for tests.
as_programs := CGO_ENABLED=0 GOFLAGS="$${GOFLAGS:-} -trimpath -tags=$(TAGS)"
# `make release`: where it goes, for which architectures, for which systems besides Linux
# `hyperfleet` is made as a client, what image names begin with, and the key that signs it.
DIST ?= dist
ARCH ?= amd64 arm64
CLIENTS ?= darwin/amd64 darwin/arm64
REGISTRY ?=
KEY ?=

# What `make test` runs: PKG=./kit/... RUN=TestName narrow it down, COUNT=1 runs also what nothing
# has changed for, RACE=yes has the programs of hack/testrun/race.txt run with the race detector, for
# which all that they are made of is compiled once more. The end-to-end tests of test/e2e have targets
# of their own, and so have tests with SPIRE in their names (make e2e-spire) and with Upstream at the end (make
# e2e-kubevirt, e2e-bridge): what judges there takes longer to build than all else. What takes longest
# comes first, what waits beside what computes, so that it does not run alone at the end.
PKG ?= $(shell go list ./bridge ./cmd/hyperfleet ./test/fleet ./test/kill ./hosts ./sim/hypershift ./platform/broker ./test/... ./... 2>/dev/null | grep -v /test/e2e/)
RUN ?= .
SKIP := SPIRE|Upstream\b
COUNT ?=
RACE ?=
RACED := $(if $(RACE),-race hack/testrun/race.txt)
TEST_TIMEOUT ?= 30m
# What `make test-changed` takes for unchanged: the last commit, or what you branched off.
BASE ?= HEAD
# Tests wait for each other and for servers more than they compute: more packages, and more
# tests of each, than there are cores. Nobody debugs their programs: no DWARF is linked.
TEST_FLAGS := -vet=off '-ldflags=-s -w' -p 3 -parallel 8 -timeout $(TEST_TIMEOUT) $(if $(COUNT),-count=$(COUNT))
# Packages with properties whose runs are whole lives, and with tests that call
# property.Soak. FUZZ is how long each fuzz target runs.
SOAK = $(shell grep -rlE --include='*_test.go' --exclude-dir=bin --exclude-dir=property 'property[.]Soak|Brief:' */ | xargs -n 1 dirname | sort -u | sed 's|^|./|')
FUZZ ?= 1m
# Flags of `make demo`: DEMO="--jobs 50 --output json".
DEMO ?=
# `make chaos`: how long troubles come, and the seed that makes the same ones again.
CHAOS_TIME ?= 2h
CHAOS_SEED ?=
# The demo of `make load`: with trouble in it.
LOAD := --jobs 200 --faults webhooks-lost=0.3,webhooks-duplicated=0.2,webhooks-reordered=0.5,vm-crash=0.1,clone-lock=0.2

# End-to-end tests say what they do while they do it. call E2E,NAMES,FLAGS: two of them at a
# time, with flags of go test.
define E2E
$(as_programs) go build -ldflags "-s -w" -o bin/testrun ./hack/testrun
$(as_programs) PATH="$(CURDIR)/bin:$$PATH" bin/testrun -v $(1:%=./test/e2e/%) -- -vet=off '-ldflags=-s -w' -p 3 -count=1 -timeout $(TEST_TIMEOUT) -run '$(RUN)' $(2)
endef

# Tests outside of test/e2e that other projects' programs judge. call JUDGED,WORD: those with the word in
# their names.
define JUDGED
$(as_programs) bin/testrun $$(grep -rlE '^func Test\w*($(1))' --include='*_test.go' --exclude-dir=bin . | xargs -n 1 dirname | sort -u) -- $(TEST_FLAGS) -run '$(1)'
endef

.PHONY: help setup build release freeze site test test-changed bench-tests soak chaos load testrun e2e e2e-install e2e-release e2e-spire e2e-vm e2e-kubevirt e2e-bridge e2e-platform e2e-hosts e2e-proxmox e2e-agents lint generate verify dependencies demo bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## bring every tool that the other targets need into bin/ (they do it themselves, too)
	@hack/setup.sh

build: ## build the programs into bin/
	@for program in $(PROGRAMS); do \
		echo "build bin/$$program"; \
		$(as_programs) go build -ldflags "$(LDFLAGS)" -o bin/$$program ./cmd/$$program; \
	done

release: ## make all that a release has, in dist/ (VERSION=v0.1.0 REGISTRY=registry.example.com/fleet KEY=release.key)
	@if [ -n "$(MODIFIED)" ] && [ "$(MODIFIED_OK)" != yes ]; then \
		echo "release: the checkout has changes: commit them, or say MODIFIED_OK=yes" >&2; exit 1; \
	fi
	@go mod download # what is built after this is built without a network
	@mkdir -p bin && cd hack/release && go build -o ../../bin/release .
	@bin/release -dist "$(DIST)" -version "$(VERSION)" -commit "$(COMMIT)" -time "$(COMMIT_TIME)" \
		-tags "$(TAGS)" -ldflags "$(LDFLAGS)" -registry "$(REGISTRY)" -key "$(KEY)" -arch "$(ARCH)" -clients "$(CLIENTS)"

freeze: ## write the CRDs and objects that the next releases are held to (VERSION=v0.2.0)
	@hack/setup.sh kube
	@$(as_programs) go test ./test/upgrade -count 1 -run TestFreeze -freeze "$(VERSION)"

site: ## make a site of the documentation, in dist/site: it works from the folder, without a server
	@$(as_programs) go run ./hack/site -dist "$(DIST)/site" -version "$(VERSION)"

test: testrun ## run all tests that something has changed for (PKG=./kit/... RUN=TestName COUNT=1 RACE=yes)
	@$(as_programs) bin/testrun $(RACED) $(PKG) -- $(TEST_FLAGS) -run '$(RUN)' '-skip=$(SKIP)'

test-changed: testrun ## run the tests of packages that depend on what changed since BASE=HEAD
	@$(as_programs) bin/testrun -changed $(BASE) $(RACED) $(PKG) -- $(TEST_FLAGS) -run '$(RUN)' '-skip=$(SKIP)'

bench-tests: ## what making tests and running them takes, in units of what kube-apiserver takes to build
	@hack/bench-tests.sh

soak: testrun ## run whole lives by the hundred, kills at every call, and every fuzz target for FUZZ=1m
	@hack/setup.sh spire vault
	@$(as_programs) HYPERFLEETTEST_SOAK=1 bin/testrun $(SOAK) -- $(TEST_FLAGS) -run '^(TestProperty|TestSoak)'
	@$(as_programs) bin/testrun -fuzz $(FUZZ) $(PKG)

chaos: testrun ## troubles that come, stay and go, by chance (CHAOS_SEED=7 CHAOS_TIME=10h)
	@$(as_programs) CHAOS_SEED="$(CHAOS_SEED)" CHAOS_TIME="$(CHAOS_TIME)" bin/testrun -v ./test/chaos -- $(TEST_FLAGS) -count 1

load: ## run a demo of 200 jobs with faults
	@$(MAKE) --no-print-directory demo DEMO="$(LOAD)"

# What few tests need they bring themselves (test/exe, Tool), while others run.
testrun:
	@hack/setup.sh kube packages
	@$(as_programs) go build -ldflags "-s -w" -o bin/testrun ./hack/testrun

# What takes longest comes first.
e2e: build e2e-release ## run all of the following end-to-end tests in their short form, but e2e-agents
	@hack/setup.sh spire vault packages vm
	@hack/vm-image/build.sh
	@$(call E2E,platform vm kubevirt hosts bridge install spire proxmox,-short)
	@$(call JUDGED,$(SKIP))

e2e-install: e2e-release ## a release, made twice with the same bytes, and from helm install to the first finished job
	@$(call E2E,install)

e2e-release:
	@hack/setup.sh kube kubectl helm olm
	@for dist in bin/install bin/install-again; do \
		$(MAKE) --no-print-directory release VERSION=v0.0.0-install DIST=$$dist ARCH=$$(go env GOARCH) CLIENTS= MODIFIED_OK=yes REGISTRY= KEY=; \
	done
	@cmp bin/install/SHA256SUMS bin/install-again/SHA256SUMS && rm -r bin/install-again && echo "two releases have the same checksums"
	@cd hack/release && go test ./...

e2e-spire: build ## machines attest to a real SPIRE server, and log in to a real Vault
	@hack/setup.sh kube spire vault packages
	@$(call E2E,spire)
	@$(call JUDGED,SPIRE)

e2e-vm: build ## a job runs in a real VM, from webhook to gone (software emulation)
	@hack/setup.sh kube spire packages vm
	@hack/vm-image/build.sh
	@$(call E2E,vm)

e2e-kubevirt: build ## machines with static addresses on KubeVirt's own schemas, judged by its own admission
	@hack/setup.sh kube packages upstream
	@$(call E2E,kubevirt)
	@$(call JUDGED,Upstream\b)

e2e-bridge: build ## hosted clusters for DPUs on HyperShift's and MetalLB's own schemas, with MetalLB's controller
	@hack/setup.sh kube upstream
	@$(call E2E,bridge)
	@$(call JUDGED,Upstream\b)

e2e-platform: build ## clusters and node pools from API to objects, over real Postgres and brokers
	@hack/setup.sh kube kubectl helm packages
	@$(call E2E,platform)

e2e-hosts: build ## fleets of hosts from first boot to given back, over SSH
	@hack/setup.sh kube packages
	@$(call E2E,hosts)

# On the Proxmox VE that PVE_ENDPOINT names (go doc ./test/realpve); without it all is skipped.
SHORT ?=
e2e-proxmox: TEST_TIMEOUT = 40m
e2e-proxmox: build ## a real Proxmox VE that PVE_ENDPOINT names: the provider, and a job in a VM on it
	@hack/setup.sh kube
	@$(call E2E,proxmox,$(SHORT))

# Not every network has the modules of an agent: without one its tests are skipped.
e2e-agents: ## the real buildkite-agent and gitlab-runner in machines (go doc ./test/e2e/agents)
	@hack/setup.sh agents || echo "e2e-agents: no buildkite-agent could be built: name one by BUILDKITE_AGENT"
	@$(call E2E,agents)

# The cache is the checkout's own: findings kept for another one come with its paths.
lint: ## run every linter (.golangci.yml)
	@hack/setup.sh lint
	@bin/golangci-lint config verify
	@for module in . hack/release; do \
		(cd $$module && $(as_programs) GOLANGCI_LINT_CACHE="$(CURDIR)/bin/.lint" "$(CURDIR)/bin/golangci-lint" run ./...) || exit 1; \
	done

generate: ## make CRDs, deep copies, RBAC and reference pages from the Go types, alerts and dashboards from their lists
	@hack/setup.sh generate
	@bin/controller-gen object:headerFile=hack/boilerplate.go.txt paths=./api/...
	@bin/controller-gen crd paths=./api/... output:crd:dir=deploy/crds
	@for area in $(AREAS); do \
		bin/controller-gen rbac:roleName=hyperfleet-$$area,fileName=$$area.yaml \
			paths=./$$area/... paths=./cmd/hyperfleet/operator/... output:rbac:dir=deploy/rbac; \
	done
	@hack/openapi.sh
	@hack/sqlc.sh
	@for program in apidoc configdoc taskdoc monitoring; do $(as_programs) go run ./hack/$$program; done

verify: ## fail when what is committed is not what the sources make
	@hack/verify.sh

dependencies: ## list dependencies, what is newer, deprecated or taken back (asks the module proxy)
	@hack/dependencies.sh

demo: PROGRAMS := hyperfleet hyperfleet-demo pvesim forgesim bootstrap-service
demo: build ## run the product's main job on this machine (DEMO="--jobs 50")
	@hack/setup.sh kube
	@bin/hyperfleet-demo $(DEMO)

bench: build ## measure: demo of 50 jobs, memory with 500 live claims, and Go benchmarks
	@hack/setup.sh kube
	@hack/bench.sh

clean: ## remove what was built, but for the tools (rm -rf bin removes those too)
	rm -rf $(addprefix bin/,$(PROGRAMS)) bin/testrun bin/release dist cover.out
