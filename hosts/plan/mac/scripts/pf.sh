# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Puts the egress rules of machines into force. Only the anchor is loaded: loading all of
# pf.conf anew would flush the rules that the running machines' network lives on.
main() {
	if ! pfctl -s rules 2>/dev/null | grep 'anchor "com.apple/\*"' >/dev/null; then
		if [ -n "$(pfctl -s rules 2>/dev/null)" ]; then
			echo "pf's rules do not ask the anchors com.apple/*: fix /etc/pf.conf and restart the host" >&2
			exit 1
		fi
		# Nothing is loaded yet, so there is nothing to lose.
		pfctl -q -f "$CONF"
	fi
	pfctl -q -a "$ANCHOR" -f "$RULES"
	if ! pfctl -s info 2>/dev/null | grep '^Status: Enabled' >/dev/null; then
		pfctl -q -E
	fi
}
