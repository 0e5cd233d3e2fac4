# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Stops a job and removes it from launchd.
main() {
	if launchctl print "system/$JOB" >/dev/null 2>&1; then
		launchctl bootout "system/$JOB"
	fi
	rm -f "$PLIST" "$STAMP"
}
