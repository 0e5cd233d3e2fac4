#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Keeps a job whose state is in the folder $1: its program is run, with what is after the
# first three; again after $2 seconds when it has ended, or never where $2 is "never"; and
# its output goes to $3.
set -u
state=$1 again=$2 log=$3
shift 3
echo "$BASHPID" >"$state/keeper"
while :; do
	setsid "$@" </dev/null >>"$log" 2>&1 &
	echo "$!" >"$state/pid"
	wait "$!"
	echo "$?" >"$state/ended"
	rm -f "$state/pid"
	[ "$again" != never ] || break
	/bin/sleep "$again"
done
