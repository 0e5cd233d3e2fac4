#!/bin/bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Supervises a job whose state is in the directory $1. It runs the program that the arguments from $4
# on name. After the program has ended, it runs the program again after $2 seconds, or never if $2 is
# "never". The program's output goes to the file $3.
set -u
state=$1 interval=$2 log=$3
shift 3
echo "$BASHPID" >"$state/keeper"
while :; do
	setsid "$@" </dev/null >>"$log" 2>&1 &
	echo "$!" >"$state/pid"
	wait "$!"
	echo "$?" >"$state/ended"
	rm -f "$state/pid"
	[ "$interval" != never ] || break
	/bin/sleep "$interval"
done
