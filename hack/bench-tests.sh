#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Measures how long it takes to check a change. The unit is the time of a build of kube-apiserver on the same
# machine, with all modules downloaded and an empty build cache. The script prints wall time and CPU time. It fails
# only if the tests fail. Run nothing else at the same time.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
TIMEFORMAT='%R %U %S'

# measure NAME COMMAND...: runs a command and adds a row to the table.
measure() {
	local name=$1 times
	shift
	echo "== $name"
	if ! times=$({ time "$@" >"$work/log" 2>&1; } 2>&1); then
		tail -n 40 "$work/log" >&2
		exit 1
	fi
	grep -E '^(took|FLAKY|[0-9]+ passed)' "$work/log" || true
	read -r wall user system <<<"$times"
	unit_wall=${unit_wall:-$wall}
	unit_cpu=${unit_cpu:-$(awk "BEGIN {print $user + $system}")}
	awk -v name="$name" -v wall="$wall" -v cpu="$user" -v sys="$system" -v unit="$unit_wall" -v unit_cpu="$unit_cpu" 'BEGIN {
		cpu += sys
		printf "%-48s %7.0f s wall %5.2f units   %7.0f s CPU %5.2f units\n", name, wall, wall / unit, cpu, cpu / unit_cpu
	}' | tee -a "$work/table"
}

# build_unit builds kube-apiserver, which is the unit of the table.
build_unit() { cd hack/tools/kube && GOCACHE=$work/unit CGO_ENABLED=0 go build -trimpath -o "$work/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver; }

make --no-print-directory testrun
go mod download
(cd hack/tools/kube && go mod download)

measure "unit: kube-apiserver, build cache empty" build_unit
rm -rf "$work/unit" "$work/kube-apiserver"
export GOCACHE=$work/cache
measure "make test, build cache empty" make --no-print-directory test
go clean -testcache
measure "make test, build cache warm, no cached results" make --no-print-directory test
measure "make test again, nothing changed" make --no-print-directory test

echo
cat "$work/table"
