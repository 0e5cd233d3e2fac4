# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Sets up the address translation that machines need to reach the tailnet, the private network
# and the Internet. Runs once a minute, because interfaces change and because a reload of
# pf.conf flushes the anchor.
temp=

# device_of prints the VLAN device of our private network.
device_of() {
	networksetup -listVLANs | awk -v want="VLAN User Defined Name: $1" '
		/^VLAN User Defined Name: / { ours = ($0 == want) }
		/^Device/ && ours { sub(/^[^:]*: */, ""); print }'
}

# tailnet prints the device with an address of 100.64.0.0/10.
tailnet() {
	ifconfig | awk '
		/^[a-z]/ { device = $1; sub(/:$/, "", device) }
		$1 == "inet" && device ~ /^utun/ {
			split($2, octet, ".")
			if (octet[1] == 100 && octet[2] >= 64 && octet[2] <= 127 && !seen) { print device; seen = 1 }
		}'
}

default_route() {
	{ route -n get default 2>/dev/null || true; } | awk '$1 == "interface:" { print $2 }'
}

# rules prints one NAT rule for each outgoing device, without duplicates.
rules() {
	local device seen=' '
	for device in $(tailnet) $(device_of "$SERVICE") $(default_route); do
		case $seen in *" $device "*) continue ;; esac
		seen="$seen$device "
		printf 'nat on %s inet from %s to ! %s -> (%s)\n' "$device" "$VMS" "$VMS" "$device"
	done
}

main() {
	(umask 022 && mkdir -p "$(dirname "$RULES")")
	temp=$(mktemp "$RULES.XXXXXX")
	trap 'rm -f "$temp"' EXIT
	rules >"$temp"
	if [ ! -s "$temp" ]; then
		echo "the host has no outgoing network device, so machines have no network either" >&2
		exit 1
	fi

	sysctl -q -w net.inet.ip.forwarding=1 >/dev/null
	if cmp -s "$temp" "$RULES" && [ -n "$(pfctl -q -a "$ANCHOR" -s nat 2>/dev/null)" ]; then
		return
	fi
	pfctl -q -a "$ANCHOR" -f "$temp"
	mv -f "$temp" "$RULES"
}
