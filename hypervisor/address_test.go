// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisor_test

import (
	"encoding/json"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// The address of a machine is that of its own interface.
func TestSelectAddress(t *testing.T) {
	t.Parallel()

	const answer = `[{"name":"lo","hardware-address":"00:00:00:00:00:00","ip-addresses":[
 {"ip-address":"127.0.0.1","ip-address-type":"ipv4","prefix":8},{"ip-address":"::1","ip-address-type":"ipv6","prefix":128}]},
 {"name":"docker0","hardware-address":"02:42:00:00:00:01","ip-addresses":[{"ip-address":"172.17.0.1","ip-address-type":"ipv4"}]},
 {"name":"eth0","hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"fe80::1"},{"ip-address":"2001:db8::5"},
 {"ip-address":"10.0.0.5"},{"ip-address":"nonsense"}]},
 {"name":"eth1","hardware-address":"bc:24:11:00:00:02","ip-addresses":[{"ip-address":"169.254.1.1"},{"ip-address":"2001:db8::6"}]},
 {"name":"eth2","hardware-address":"bc:24:11:00:00:03"},
 {"name":"eth4","hardware-address":"bc:24:11:00:00:04","ip-addresses":[{"ip-address":"2001:db8::7%$(reboot)"},
 {"ip-address":"::ffff:127.0.0.1"},{"ip-address":"2001:db8::8"},{"ip-address":"::ffff:10.0.0.9"}]}]`

	var interfaces []hypervisor.GuestInterface
	if err := json.Unmarshal([]byte(answer), &interfaces); err != nil {
		t.Fatal(err)
	}

	for mac, want := range map[string]string{
		"BC:24:11:00:00:01": "10.0.0.5", "bc:24:11:00:00:02": "2001:db8::6", "bc:24:11:00:00:03": "", "bc:24:11:00:00:99": "",
		"bc:24:11:00:00:04": "10.0.0.9",
		"":                  "172.17.0.1",
	} {
		if got := hypervisor.SelectAddress(interfaces, mac); got != want {
			t.Errorf("the address of %q is %q, want %q", mac, got, want)
		}
	}

	if got := hypervisor.SelectAddress(nil, ""); got != "" {
		t.Errorf("nothing gave %q", got)
	}
}
