#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# What checking a change takes, in units of the same machine: the first build of kube-apiserver, with its
# modules there and an empty build cache. It prints wall and processor time, and asserts nothing but that the
# tests pass. Nothing else should run beside it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
TIMEFORMAT='%R %U %S'

# measure NAME COMMAND...: a row of the table.
measure() {
	local name=$1 took
	shift
	echo "== $name"
	if ! took=$({ time "$@" >"$work/log" 2>&1; } 2>&1); then
		tail -n 40 "$work/log" >&2
		exit 1
	fi
	grep -E '^(took|FLAKY|[0-9]+ passed)' "$work/log" || true
	read -r wall user system <<<"$took"
	unit_wall=${unit_wall:-$wall}
	unit_cpu=${unit_cpu:-$(awk "BEGIN {print $user + $system}")}
	awk -v name="$name" -v wall="$wall" -v cpu="$user" -v sys="$system" -v unit="$unit_wall" -v unit_cpu="$unit_cpu" 'BEGIN {
		cpu += sys
		printf "%-48s %7.0f s wall %5.2f units   %7.0f s of processor %5.2f units\n", name, wall, wall / unit, cpu, cpu / unit_cpu
	}' | tee -a "$work/table"
}

unit() { cd hack/tools/kube && GOCACHE=$work/unit CGO_ENABLED=0 go build -trimpath -o "$work/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver; }

make --no-print-directory testrun
go mod download
(cd hack/tools/kube && go mod download)

measure "unit: kube-apiserver, build cache empty" unit
rm -rf "$work/unit" "$work/kube-apiserver"
export GOCACHE=$work/cache
measure "make test, build cache empty" make --no-print-directory test
go clean -testcache
measure "make test, build cache warm, no results kept" make --no-print-directory test
measure "make test once more, nothing changed" make --no-print-directory test

echo
cat "$work/table"
