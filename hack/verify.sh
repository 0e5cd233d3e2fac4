#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Fails when what is in the tree is not what its sources make: generated files, the
# module files, the layout of the code. Leaves the tree as the generators made it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
status=0

complain() {
	echo "verify: $*" >&2
	status=1
}

# generated lists the files that generators write, with their sums.
generated() {
	find api deploy docs/reference platform -type f -exec cksum {} + 2>/dev/null | sort -k 3
}

before=$(generated)
make --no-print-directory generate
after=$(generated)
if [ "$before" != "$after" ]; then
	diff <(echo "$before") <(echo "$after") | awk '/^[<>]/ {print "    " $4}' | sort -u >&2
	git --no-pager diff --stat -- api deploy docs/reference platform >&2 || true
	complain "generated files were out of date: commit what make generate has just made of them"
fi

unformatted=$(find . -name '*.go' -not -path './bin/*' -exec gofmt -l {} +)
if [ -n "$unformatted" ]; then
	complain "gofmt has something to say about: $unformatted"
fi

if ! go mod tidy -diff; then
	complain "go.mod or go.sum is not tidy: run go mod tidy"
fi

if ! go mod verify; then
	complain "a module in the cache is not what go.sum says it is: run go clean -modcache"
fi

if [ "$status" -eq 0 ]; then
	echo "verify: generated files, formatting and modules are as their sources make them"
fi
exit "$status"
