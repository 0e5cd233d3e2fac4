# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Loads the egress rules of machines. Only the anchor is loaded, because a reload of pf.conf
# would flush the rules that the network of running machines needs.
main() {
	if ! pfctl -s rules 2>/dev/null | grep 'anchor "com.apple/\*"' >/dev/null; then
		if [ -n "$(pfctl -s rules 2>/dev/null)" ]; then
			echo "pf's rules do not evaluate the anchors com.apple/*: fix /etc/pf.conf and restart the host" >&2
			exit 1
		fi
		# No rules are loaded yet, so none can be lost.
		pfctl -q -f "$CONF"
	fi
	pfctl -q -a "$ANCHOR" -f "$RULES"
	if ! pfctl -s info 2>/dev/null | grep '^Status: Enabled' >/dev/null; then
		pfctl -q -E
	fi
}
