#!/bin/bash
set -euo pipefail
umask 077
UNIT='hyperfleet-tailscaled.service'
STABLE='10'

pid() { systemctl show --property=MainPID --value "$UNIT"; }
main() {
	local current
	systemctl daemon-reload
	systemctl enable --quiet "$UNIT"
	systemctl restart "$UNIT"
	if [ "$STABLE" = 0 ]; then return; fi
	current=$(pid)
	sleep "$STABLE"
	if [ "$current" = 0 ] || [ "$(pid)" != "$current" ]; then
		echo "$UNIT did not run for $STABLE s: see journalctl -u $UNIT" >&2
		exit 1
	fi
}

main; exit 0
