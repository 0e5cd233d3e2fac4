# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Stops a service and removes it from systemd.
main() {
	if [ -e "$FILE" ]; then
		systemctl disable --now --quiet "$UNIT"
		rm -f "$FILE"
		systemctl daemon-reload
	fi
}
