#!/bin/bash
set -euo pipefail
umask 077
JOB='io.hyperfleet.node-exporter'
PLIST='/Library/LaunchDaemons/io.hyperfleet.node-exporter.plist'
STAMP='/var/db/hyperfleet/jobs/io.hyperfleet.node-exporter.plist'
LOGIN=''
STABLE='15'

# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes launchd run the job of a plist, in the version that is there now. Where the plist is
# the one that launchd has, the job is started anew in place, else it is loaded again. It is
# a job of the console session of LOGIN; of the system where that is empty.
domain=system
if [ -n "$LOGIN" ]; then domain=gui/$(id -u "$LOGIN"); fi

pid() {
	{ launchctl print "$domain/$JOB" 2>/dev/null || true; } |
		awk '$1 == "pid" && $2 == "=" && !seen { print $3; seen = 1 }'
}

loaded() { launchctl print "$domain/$JOB" >/dev/null 2>&1; }

reload() {
	local i
	if loaded; then
		launchctl bootout "$domain/$JOB"
		for ((i = 0; i < 60; i++)); do
			if ! loaded; then break; fi
			sleep 1
		done
	fi
	launchctl enable "$domain/$JOB"
	launchctl bootstrap "$domain" "$PLIST"
	(umask 022 && mkdir -p "$(dirname "$STAMP")")
	cp "$PLIST" "$STAMP"
}

# A job that crashes again and again has a new process each time it is looked at.
stays() {
	local before=$1 now i
	for ((i = 0; i < 60; i++)); do
		now=$(pid)
		if [ -n "$now" ] && [ "$now" != "$before" ]; then break; fi
		sleep 1
	done
	if [ -z "$now" ] || [ "$now" = "$before" ]; then
		echo "launchd has not started $JOB anew within a minute: see launchctl print $domain/$JOB" >&2
		exit 1
	fi
	sleep "$STABLE"
	if [ "$(pid)" != "$now" ]; then
		echo "$JOB did not live for $STABLE s: see its log" >&2
		exit 1
	fi
}

main() {
	local before
	before=$(pid)
	if loaded && cmp -s "$PLIST" "$STAMP"; then
		launchctl kickstart -k "$domain/$JOB"
	else
		reload
	fi
	if [ "$STABLE" != 0 ]; then stays "$before"; fi
}

main; exit 0
