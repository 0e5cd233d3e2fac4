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

// identifier is the client identifier wanted. A machine's host name is the only thing
// that a static lease can hang on: its MAC is new with every machine.
func identifier(spec *v1alpha1.DHCP) string {
	switch {
	case spec.ClientIdentifier != "" && spec.ClientIdentifier != identifierMAC:
		return spec.ClientIdentifier
	case spec.RequestStaticLease:
		return identifierHostname
	default:
		return identifierMAC
	}
}

// Bounds of what a DHCP client may be told.
const (
	// maxIdentifier is what a DUID holds beside its enterprise number, in bytes.
	maxIdentifier = 124
	maxLease      = time.Duration(1<<32-1) * time.Second
)

// safeName is an interface's name, or a pattern of it, that a shell takes as such.
var safeName = regexp.MustCompile(`^[A-Za-z0-9_.*?-]*$`)

// dhcpDropIn gives the commands that tell systemd-networkd what a network-config has no
// words for: the client identifier and the lease time. Nil if there is nothing to tell.
// They run at boot, before packages are installed; a machine whose network is not run by
// systemd-networkd is left as it is.
func dhcpDropIn(in *Input) ([][]string, error) {
	if in.Network == nil || in.Network.DHCP == nil || strings.TrimSpace(in.NetworkData) != "" ||
		in.Network.Mode != "" && in.Network.Mode != v1alpha1.NetworkModeDHCP {
		return nil, nil
	}

	spec := in.Network.DHCP
	if spec.Enabled != nil && !*spec.Enabled {
		return nil, nil
	}

	var lines []string

	switch id := identifier(spec); {
	case id == identifierMAC:
	case id == identifierHostname: // a UUID of the name, so that any name fits
		sum := sha256.Sum256([]byte(in.Hostname))
		lines = append(lines, "ClientIdentifier=duid", "IAID=1", "DUIDType=uuid", "DUIDRawData="+hexBytes(sum[:16]))
	case len(id) > maxIdentifier:
		return nil, fmt.Errorf("network.dhcp.clientIdentifier: %d bytes, a DHCP client identifier holds at most %d",
			len(id), maxIdentifier)
	default: // systemd-networkd sends free text only as the body of a DUID (RFC 8415, 11.3)
		enterprise := []byte{0, 0, 0x7e, 0xd9} // 32473, RFC 5612
		lines = append(lines, "ClientIdentifier=duid", "IAID=1", "DUIDType=vendor", "DUIDRawData="+hexBytes(append(enterprise, id...)))
	}

	if !safeName.MatchString(in.Network.Interface) {
		return nil, fmt.Errorf("network.interface: %q is not the name of an interface such as eth0", in.Network.Interface)
	}

	if spec.LeaseTime != nil {
		lease := spec.LeaseTime.Duration
		if lease < time.Second || lease > maxLease {
			return nil, fmt.Errorf("network.dhcp.leaseTime: %s: must be 1s to %s", lease, maxLease)
		}

		const optionLeaseTime = 51 // RFC 2132, 9.2

		lines = append(lines, fmt.Sprintf("SendOption=%d:uint32:%d", optionLeaseTime, int64(lease.Seconds())))
	}

	if len(lines) == 0 {
		return nil, nil
	}

	devices := cmp.Or(in.Network.Interface, anyDevice)
	script := `command -v networkctl >/dev/null || exit 0
dir=/etc/systemd/network/10-netplan-` + netID(in) + `.network.d
mkdir -p "$dir"
printf '%s\n' '[DHCPv4]' '` + strings.Join(lines, "' '") + `' >"$dir/50-hyperfleet.conf"
networkctl reload || exit 0
for device in /sys/class/net/` + devices + `; do networkctl reconfigure "${device##*/}" || true; done
/usr/lib/systemd/systemd-networkd-wait-online --any --timeout=30 || true
`

	return [][]string{{"sh", "-c", script}}, nil
}

// hexBytes writes bytes as systemd takes them: 00:ff.
func hexBytes(b []byte) string {
	parts := make([]string, len(b))
	for i, c := range b {
		parts[i] = fmt.Sprintf("%02x", c)
	}

	return strings.Join(parts, ":")
}
