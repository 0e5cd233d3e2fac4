#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Generates Go code from the queries in platform/store/queries. The script adds the licence header to each file and
# removes the licence header of the SQL files, which sqlc copies before the first function.
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
