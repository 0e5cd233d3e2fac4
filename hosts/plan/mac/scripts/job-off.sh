# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Stops a job and removes it from launchd. launchctl itself reports a failure if that takes longer.
is_loaded() { launchctl print "system/$JOB" >/dev/null 2>&1; }

main() {
	local i
	if is_loaded; then launchctl bootout "system/$JOB" || true; fi
	for ((i = 0; i < 60; i++)); do
		if ! is_loaded; then break; fi
		sleep 1
	done
	if is_loaded; then
		echo "launchd did not stop $JOB within a minute: see launchctl print system/$JOB" >&2
		exit 1
	fi
	rm -f "$PLIST" "$STAMP"
}
