# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes systemd run the service in the version that is there now.
pid() { systemctl show --property=MainPID --value "$UNIT"; }

main() {
	local now
	systemctl daemon-reload
	systemctl enable --quiet "$UNIT"
	systemctl restart "$UNIT"
	if [ "$STABLE" = 0 ]; then return; fi

	# One that crashes again and again has a new process each time it is looked at.
	now=$(pid)
	sleep "$STABLE"
	if [ "$now" = 0 ] || [ "$(pid)" != "$now" ]; then
		echo "$UNIT did not live for $STABLE s: see journalctl -u $UNIT" >&2
		exit 1
	fi
}
