#!/bin/bash
set -euo pipefail
umask 077
JOB='io.hyperfleet.firewall'
PLIST='/Library/LaunchDaemons/io.hyperfleet.firewall.plist'
STAMP='/var/db/hyperfleet/jobs/io.hyperfleet.firewall.plist'
LOGIN=''
STABLE='0'

domain=system
if [ -n "$LOGIN" ]; then domain=gui/$(id -u "$LOGIN"); fi
pid() {
	{ launchctl print "$domain/$JOB" 2>/dev/null || true; } |
		awk '$1 == "pid" && $2 == "=" && !seen { print $3; seen = 1 }'
}
is_loaded() { launchctl print "$domain/$JOB" >/dev/null 2>&1; }
unload() {
	local i
	if ! is_loaded; then return; fi
	launchctl bootout "$domain/$JOB" || true
	for ((i = 0; i < 60; i++)); do
		if ! is_loaded; then return; fi
		sleep 1
	done
	echo "launchd did not stop $JOB within a minute: see launchctl print $domain/$JOB" >&2
	exit 1
}
load() {
	local i
	for ((i = 0; i < 10; i++)); do
		if launchctl bootstrap "$domain" "$PLIST"; then return; fi
		sleep 1
	done
	echo "launchd did not load $JOB: see plutil -lint $PLIST" >&2
	exit 1
}
reload() {
	unload
	launchctl enable "$domain/$JOB"
	load
	(umask 022 && mkdir -p "$(dirname "$STAMP")")
	cp "$PLIST" "$STAMP"
}
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
