#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# What launchctl and systemctl have in common.
note() { printf '%s %s\n' "${0##*/}" "$*" >>/sim/calls; }

# unknown is for calls that the simulator does not know: they end the test.
unknown() {
	printf '%s %s\n' "${0##*/}" "$*" >>/sim/unknown
	echo "${0##*/}: the simulator does not know: $*" >&2
	exit 127
}

# of prints the line that a file holds, where there is one.
of() {
	local line=
	[ ! -e "$1" ] || IFS= read -r line 2>/dev/null <"$1" || true
	printf '%s' "$line"
}

# pause waits without another process: those are what a host of the simulator costs.
pause() { read -rt "$1" <>/sim/never || true; }

# halt ends a job by its folder; with "group", also what it has started.
halt() {
	local keeper pid i
	keeper=$(of "$1/keeper") pid=$(of "$1/pid")
	[ -z "$keeper" ] || kill -KILL "$keeper" 2>/dev/null
	rm -f "$1/pid" "$1/keeper"
	[ -n "$pid" ] || return 0
	kill -TERM "$pid" 2>/dev/null
	for ((i = 0; i < 100; i++)); do
		kill -0 "$pid" 2>/dev/null || break
		pause 0.02
	done
	kill -KILL "$pid" 2>/dev/null
	[ "${2:-}" != group ] || kill -KILL -- "-$pid" 2>/dev/null
	return 0
}

# run has a job kept, and returns when its program is started.
run() {
	local state=$1 i
	rm -f "$state/ended"
	setsid /bin/bash /sim/lib/supervise.sh "$@" </dev/null >/dev/null 2>&1 &
	for ((i = 0; i < 500; i++)); do
		if [ -e "$state/pid" ] || [ -e "$state/ended" ]; then break; fi
		pause 0.01
	done
}
