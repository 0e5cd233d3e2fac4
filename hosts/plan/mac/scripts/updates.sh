# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Stops macOS from installing updates of itself, which restarts the host while jobs run. The operator
# updates macOS. The last key is that of background security improvements, since macOS 26.
main() {
	local key
	for key in $KEYS; do
		defaults write "$DOMAIN" "$key" -bool false
	done
}
