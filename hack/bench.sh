#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs all benchmarks. The script fails only if a run fails. Build the programs in bin/ first (make build).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

echo "== 50 jobs on 3 nodes: clone 2 s with 2 in parallel per storage, boot 3 s, job 2 s =="
bin/hyperfleet-demo --jobs 50 --nodes 3 --clone 2s --parallel-clones 2 --boot 3s --job 2s --output json

echo "== 500 concurrent claims: rssMiB is the operator's peak memory =="
bin/hyperfleet-demo --jobs 500 --max 500 --clone 100ms --parallel-clones 16 --boot 1s --job 60s --timeout 20m --no-rate-limits --output json

echo "== warm machines: time from queued to running, and its ratio to the median of cold machines =="
bin/hyperfleet-demo --compare-warm --clone 4s --output json

echo "== static addresses: networking/alloc compared with other allocators, all in memory (takes minutes) =="
# Use -mod=mod, because the requirements of the main module may have changed since the last build of these modules.
(cd hack/bench/ipam && go run -mod=mod .)
(cd hack/bench/ipam/incluster && go run -mod=mod .)

echo "== Go benchmarks =="
packages=$(grep -rl --include='*_test.go' '^func Benchmark' . | xargs -r -n 1 dirname | sort -u)
if [ -n "$packages" ]; then
	# shellcheck disable=SC2086 # split into one word for each package
	go test -run '^$' -bench . -benchmem $packages
fi
