#!/bin/bash
set -euo pipefail
umask 077
TAILSCALE='/usr/local/bin/tailscale'
TAGS='tag:host'
ACCEPT_ROUTES='true'
TAILNET_NAME='rack-1'
END='--- end of input ---'

staged=
main() {
	local key end i
	if ! IFS= read -r key || ! IFS= read -r end || [ "$end" != "$END" ]; then
		echo "the tailnet key was truncated: push it again" >&2
		exit 1
	fi
	staged=$(mktemp -d)
	trap 'rm -rf "$staged"' EXIT
	printf '%s' "$key" >"$staged/key"
	chmod 0600 "$staged/key"
	for ((i = 0; i < 30; i++)); do
		if "$TAILSCALE" status --json >/dev/null 2>&1; then break; fi
		sleep 1
	done
	"$TAILSCALE" up --reset --timeout=120s --auth-key="file:$staged/key" \
		--advertise-tags="$TAGS" --accept-routes="$ACCEPT_ROUTES" \
		--accept-dns=false --hostname="$TAILNET_NAME" </dev/null
	rm -rf "$staged"
	for ((i = 0; i < 60; i++)); do
		if "$TAILSCALE" ip -4 2>/dev/null | grep '^100\.' >/dev/null; then return; fi
		sleep 1
	done
	echo "the host has no IPv4 address in the tailnet after a minute: see tailscale status on it" >&2
	exit 1
}

main; exit 0
