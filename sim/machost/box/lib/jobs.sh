#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The functions that launchctl and systemctl share.
record_call() { printf '%s %s\n' "${0##*/}" "$*" >>/sim/calls; }

# fail_unknown records a call that the simulator does not support. Such a call fails the test.
fail_unknown() {
	printf '%s %s\n' "${0##*/}" "$*" >>/sim/unknown
	echo "${0##*/}: the simulator does not support: $*" >&2
	exit 127
}

# read_line prints the first line of a file, or nothing if the file is missing.
read_line() {
	local line=
	[ ! -e "$1" ] || IFS= read -r line 2>/dev/null <"$1" || true
	printf '%s' "$line"
}

# pause waits for $1 seconds. It starts no process, because processes make a simulated host slow.
pause() { read -rt "$1" <>/sim/never || true; }

# wait_ended waits for at most 2 s until a process has ended. A process that nobody has waited for yet has ended.
wait_ended() {
	local i
	for ((i = 0; i < 100; i++)); do
		[ -e "/proc/$1/exe" ] || break
		pause 0.02
	done
}

# stop_job stops the job with the directory $1. If $2 is "group", it also kills the job's process group.
stop_job() {
	local keeper pid
	keeper=$(read_line "$1/keeper") pid=$(read_line "$1/pid")
	[ -z "$keeper" ] || kill -KILL "$keeper" 2>/dev/null
	rm -f "$1/pid" "$1/keeper"
	[ -n "$pid" ] || return 0
	kill -TERM "$pid" 2>/dev/null
	wait_ended "$pid"
	kill -KILL "$pid" 2>/dev/null
	[ "${2:-}" != group ] || kill -KILL -- "-$pid" 2>/dev/null
	return 0
}

# start_job starts the supervisor of a job. It returns when the job's program has been started.
start_job() {
	local state=$1 i
	rm -f "$state/ended"
	setsid /bin/bash /sim/lib/supervise.sh "$@" </dev/null >/dev/null 2>&1 &
	for ((i = 0; i < 500; i++)); do
		if [ -e "$state/pid" ] || [ -e "$state/ended" ]; then break; fi
		pause 0.01
	done
}
