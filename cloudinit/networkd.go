// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// Values of network.dhcp.clientIdentifier.
const (
	identifierMAC      = "mac"
	identifierHostname = "hostname"
)

// clientIdentifier returns the DHCP client identifier. A static lease needs the host name as the identifier,
// because every machine gets a new MAC address.
func clientIdentifier(spec *v1alpha1.DHCP) string {
	switch {
	case spec.ClientIdentifier != "" && spec.ClientIdentifier != identifierMAC:
		return spec.ClientIdentifier
	case spec.RequestStaticLease:
		return identifierHostname
	default:
		return identifierMAC
	}
}

// Limits of the settings of a DHCP client.
const (
	// maxIdentifier is the maximum size of a DUID without its enterprise number, in bytes.
	maxIdentifier = 124
	maxLeaseTime  = time.Duration(1<<32-1) * time.Second
)

// safeInterface matches interface names and patterns that need no quoting in a shell.
var safeInterface = regexp.MustCompile(`^[A-Za-z0-9_.*?-]*$`)

// buildDHCPDropIn returns the commands that configure the client identifier and the lease time in
// systemd-networkd, because a network-config cannot express them. It returns nil if neither is set. The
// commands run at boot before packages are installed. They change nothing if systemd-networkd does not manage
// the network.
func buildDHCPDropIn(in *Input) ([][]string, error) {
	if in.Network == nil || in.Network.DHCP == nil || strings.TrimSpace(in.NetworkData) != "" ||
		in.Network.Mode != "" && in.Network.Mode != v1alpha1.NetworkModeDHCP {
		return nil, nil
	}

	spec := in.Network.DHCP
	if spec.Enabled != nil && !*spec.Enabled {
		return nil, nil
	}

	var lines []string

	switch id := clientIdentifier(spec); {
	case id == identifierMAC:
	case id == identifierHostname: // a UUID derived from the name has the right size for every name
		sum := sha256.Sum256([]byte(in.Hostname))
		lines = append(lines, "ClientIdentifier=duid", "IAID=1", "DUIDType=uuid", "DUIDRawData="+formatBytesHex(sum[:16]))
	case len(id) > maxIdentifier:
		return nil, fmt.Errorf("network.dhcp.clientIdentifier: has %d bytes, but a DHCP client identifier has at most %d",
			len(id), maxIdentifier)
	default: // systemd-networkd sends other texts only as the body of a DUID (RFC 8415, 11.3)
		enterprise := []byte{0, 0, 0x7e, 0xd9} // 32473, RFC 5612
		lines = append(lines, "ClientIdentifier=duid", "IAID=1", "DUIDType=vendor",
			"DUIDRawData="+formatBytesHex(append(enterprise, id...)))
	}

	if !safeInterface.MatchString(in.Network.Interface) {
		return nil, fmt.Errorf("network.interface: %q is not the name of an interface such as eth0", in.Network.Interface)
	}

	if spec.LeaseTime != nil {
		lease := spec.LeaseTime.Duration
		if lease < time.Second || lease > maxLeaseTime {
			return nil, fmt.Errorf("network.dhcp.leaseTime: %s: must be 1s to %s", lease, maxLeaseTime)
		}

		const optionLeaseTime = 51 // RFC 2132, 9.2

		lines = append(lines, fmt.Sprintf("SendOption=%d:uint32:%d", optionLeaseTime, int64(lease.Seconds())))
	}

	if len(lines) == 0 {
		return nil, nil
	}

	devices := cmp.Or(in.Network.Interface, anyDevice)
	script := `command -v networkctl >/dev/null || exit 0
dir=/etc/systemd/network/10-netplan-` + linkID(in) + `.network.d
mkdir -p "$dir"
printf '%s\n' '[DHCPv4]' '` + strings.Join(lines, "' '") + `' >"$dir/50-hyperfleet.conf"
networkctl reload || exit 0
for device in /sys/class/net/` + devices + `; do networkctl reconfigure "${device##*/}" || true; done
/usr/lib/systemd/systemd-networkd-wait-online --any --timeout=30 || true
`

	return [][]string{{"sh", "-c", script}}, nil
}

// formatBytesHex formats bytes as systemd expects them, e.g. 00:ff.
func formatBytesHex(b []byte) string {
	parts := make([]string, len(b))
	for i, c := range b {
		parts[i] = fmt.Sprintf("%02x", c)
	}

	return strings.Join(parts, ":")
}
