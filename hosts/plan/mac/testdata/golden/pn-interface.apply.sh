#!/bin/bash
set -euo pipefail
umask 077
SERVICE='hyperfleet-pn'
PARENT='en0'
VLAN='1597'

field() {
	networksetup -listVLANs | awk -v want="VLAN User Defined Name: $SERVICE" -v form="$1" '
		/^VLAN User Defined Name: / { ours = ($0 == want) }
		ours && $0 ~ form { sub(/^[^:]*: */, ""); print }'
}
main() {
	local parent tag device i
	parent=$(field '^Parent Device: ')
	tag=$(field '^Tag: ')
	if [ -n "$tag" ] && { [ "$parent" != "$PARENT" ] || [ "$tag" != "$VLAN" ]; }; then
		networksetup -deleteVLAN "$SERVICE" "$parent" "$tag"
		tag=
	fi
	if [ -z "$VLAN" ]; then return; fi
	if [ -z "$tag" ]; then
		networksetup -createVLAN "$SERVICE" "$PARENT" "$VLAN"
	fi
	for ((i = 0; i < 60; i++)); do
		device=$(field '^Device')
		if [ -n "$device" ] && [ -n "$(ipconfig getifaddr "$device" || true)" ]; then return; fi
		sleep 1
	done
	echo "VLAN $VLAN on $PARENT has no address after a minute: attach the private network to this host, and enable its DHCP" >&2
	exit 1
}

main; exit 0
