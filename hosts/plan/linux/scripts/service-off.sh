# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Takes a service away from systemd for good.
main() {
	if [ -e "$FILE" ]; then
		systemctl disable --now --quiet "$UNIT"
		rm -f "$FILE"
		systemctl daemon-reload
	fi
}
