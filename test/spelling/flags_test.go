// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spelling

import "testing"

// TestCheckName checks which names of flags are reported as misspelled.
func TestCheckName(t *testing.T) {
	t.Parallel()

	for name, want := range map[string]bool{
		"hosts-linux-vm-egress-cidrs": false, "hosts-linux-vm-egress-cid-rs": true,
		"bridge-hypershift-namespace": false, "bridge-hyper-shift-namespace": true,
		"bridge-metallb-namespace": false, "bridge-metal-lb-namespace": true,
		"hosts-mac-vm-dns-ip": false, "hosts-mac-vm-dnsip": true, "hosts-mac-vmdns-ip": true,
		"identity-devid-key-file": false, "identity-dev-id-key-file": true,
		"registry-ca-file": false, "registry-c-a-file": true, "registry-CA-file": true, "with--nothing": true,
	} {
		if got := checkName(name); (got != "") != want {
			t.Errorf("--%s: %q", name, got)
		}
	}
}
