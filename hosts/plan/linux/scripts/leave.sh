# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Stops a service for good, and takes away what it joined its cluster with.
main() {
	rm -f "$KUBECONFIG_FILE"
	if [ -e "$FILE" ]; then
		systemctl disable --now --quiet "$UNIT"
	fi
}
