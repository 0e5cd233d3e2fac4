#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Writes the queries of platform/store/queries as Go. The licence comes first, and that of
# the sources does not stand before the first function once more.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

bin/sqlc generate -f platform/store/sqlc.yaml

for output in platform/store/db/*.go; do
	grep -q '^// Code generated' "$output" || continue
	{
		cat hack/boilerplate.go.txt
		echo
		grep -v -x -f hack/boilerplate.go.txt "$output"
	} >"$output.new"
	mv "$output.new" "$output"
done
gofmt -w platform/store/db
