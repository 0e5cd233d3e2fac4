#!/bin/bash
set -euo pipefail
umask 077
JOB='io.hyperfleet.vmnat'
PLIST='/Library/LaunchDaemons/io.hyperfleet.vmnat.plist'
STAMP='/var/db/hyperfleet/jobs/io.hyperfleet.vmnat.plist'
LOGIN=''
STABLE='0'

# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes launchd run the job of a plist with its current program. If launchd has loaded this
# version of the plist, the job is restarted in place. Otherwise the job is loaded again. The
# job runs in the console session of LOGIN, or in the system session if LOGIN is empty.
domain=system
if [ -n "$LOGIN" ]; then domain=gui/$(id -u "$LOGIN"); fi

pid() {
	{ launchctl print "$domain/$JOB" 2>/dev/null || true; } |
		awk '$1 == "pid" && $2 == "=" && !seen { print $3; seen = 1 }'
}

is_loaded() { launchctl print "$domain/$JOB" >/dev/null 2>&1; }

reload() {
	local i
	if is_loaded; then
		launchctl bootout "$domain/$JOB"
		for ((i = 0; i < 60; i++)); do
			if ! is_loaded; then break; fi
			sleep 1
		done
	fi
	launchctl enable "$domain/$JOB"
	launchctl bootstrap "$domain" "$PLIST"
	(umask 022 && mkdir -p "$(dirname "$STAMP")")
	cp "$PLIST" "$STAMP"
}

# require_stable fails unless a new process runs for STABLE seconds. A job that keeps crashing
# has a new process each time.
require_stable() {
	local before=$1 current i
	for ((i = 0; i < 60; i++)); do
		current=$(pid)
		if [ -n "$current" ] && [ "$current" != "$before" ]; then break; fi
		sleep 1
	done
	if [ -z "$current" ] || [ "$current" = "$before" ]; then
		echo "launchd did not restart $JOB within a minute: see launchctl print $domain/$JOB" >&2
		exit 1
	fi
	sleep "$STABLE"
	if [ "$(pid)" != "$current" ]; then
		echo "$JOB did not run for $STABLE s: see its log" >&2
		exit 1
	fi
}

main() {
	local before
	before=$(pid)
	if is_loaded && cmp -s "$PLIST" "$STAMP"; then
		launchctl kickstart -k "$domain/$JOB"
	else
		reload
	fi
	if [ "$STABLE" != 0 ]; then require_stable "$before"; fi
}

main; exit 0
