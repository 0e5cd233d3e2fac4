# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Stops and disables a service, and deletes the kubeconfig with which it joined its cluster.
main() {
	rm -f "$KUBECONFIG_FILE"
	if [ -e "$FILE" ]; then
		systemctl disable --now --quiet "$UNIT"
	fi
}
