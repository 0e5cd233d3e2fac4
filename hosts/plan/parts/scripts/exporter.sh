# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Starts node_exporter on the host's address in the tailnet, or on loopback without a tailnet.
main() {
	local address=127.0.0.1
	if [ -n "$TAILSCALE" ]; then
		address=$("$TAILSCALE" ip -4 | head -n 1)
		if [ -z "$address" ]; then
			echo "the host has no address in the tailnet yet" >&2
			exit 1
		fi
	fi
	exec "$EXPORTER" --web.listen-address="$address:9100"
}
