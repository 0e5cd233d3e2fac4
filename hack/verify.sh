#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Fails if generated files or module files are out of date, or if Go files are not formatted. It leaves the newly
# generated files in the tree.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
status=0

complain() {
	echo "verify: $*" >&2
	status=1
}

# generated lists the files in folders with generated files, with their checksums.
generated() {
	find api deploy docs/reference hypervisor/external/providerpb platform -type f -exec cksum {} + 2>/dev/null | sort -k 3
}

before=$(generated)
make --no-print-directory generate
after=$(generated)
if [ "$before" != "$after" ]; then
	diff <(echo "$before") <(echo "$after") | awk '/^[<>]/ {print "    " $4}' | sort -u >&2
	git --no-pager diff --stat -- api deploy docs/reference hypervisor/external/providerpb platform >&2 || true
	complain "generated files were out of date: commit the files that make generate has just written"
fi

unformatted=$(find . -name '*.go' -not -path './bin/*' -exec gofmt -l {} +)
if [ -n "$unformatted" ]; then
	complain "these files are not formatted, run gofmt -w: $unformatted"
fi

if ! go mod tidy -diff; then
	complain "go.mod or go.sum is not tidy: run go mod tidy"
fi

if ! go mod verify; then
	complain "a module in the cache does not match go.sum: run go clean -modcache"
fi

if [ "$status" -eq 0 ]; then
	echo "verify: generated files, formatting and modules are up to date"
fi
exit "$status"
