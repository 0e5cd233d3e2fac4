# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Starts node_exporter at the tailnet's address, or at loopback where there is no tailnet.
main() {
	local address=127.0.0.1
	if [ -n "$TAILSCALE" ]; then
		address=$("$TAILSCALE" ip -4 | head -n 1)
		if [ -z "$address" ]; then
			echo "no address in the tailnet yet" >&2
			exit 1
		fi
	fi
	exec "$EXPORTER" --web.listen-address="$address:9100"
}
