# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Takes a job away from launchd for good.
main() {
	if launchctl print "system/$JOB" >/dev/null 2>&1; then
		launchctl bootout "system/$JOB"
	fi
	rm -f "$PLIST" "$STAMP"
}
