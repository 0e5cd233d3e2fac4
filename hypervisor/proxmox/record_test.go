// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

func testRecord() Record {
	id := identity{hypervisor.Identity{OperatorUID: "op-1", Cluster: "lab"}}

	owner := hypervisor.Owner{Namespace: "ci", Name: "claim-1", UID: "uid-1", Pool: "linux"}

	return id.newRecord(100001, hypervisor.MachineSpec{Owner: owner}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
}

func TestRecordSurvivesTheDescription(t *testing.T) {
	want := testRecord()

	text, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}

	// Proxmox returns a description with a line end, and people add lines.
	for _, description := range []string{text, text + "\n", text + "\nkeep until Friday", "\n" + text} {
		got, err := ParseRecord(description)
		if err != nil {
			t.Fatalf("%q: %v", description, err)
		}

		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestLongRecordIsRejected(t *testing.T) {
	r := testRecord()
	r.RunnerPool = strings.Repeat("x", maxDescription)

	if _, err := r.Encode(); err == nil {
		t.Error("a record that Proxmox would refuse was encoded")
	}
}

func TestParseRecordFindsNone(t *testing.T) {
	cases := map[string]string{
		"empty":              "",
		"words":              "the accounting server",
		"other JSON":         `{"a":1}`,
		"broken JSON":        `{"managedBy":"hyperfleet"`,
		"another product":    `{"managedBy":"other","machineClaim":{"uid":"u"},"operatorUID":"o"}`,
		"no claim":           `{"managedBy":"hyperfleet","operatorUID":"o"}`,
		"no operator":        `{"managedBy":"hyperfleet","machineClaim":{"uid":"u"}}`,
		"not on first line":  "note\n" + `{"managedBy":"hyperfleet","machineClaim":{"uid":"u"},"operatorUID":"o"}`,
		"JSON of wrong type": `{"managedBy":["hyperfleet"]}`,
	}
	for name, description := range cases {
		t.Run(name, func(t *testing.T) {
			if r, err := ParseRecord(description); !errors.Is(err, hypervisor.ErrNoRecord) {
				t.Errorf("got %+v, %v", r, err)
			}
		})
	}
}

func TestISONames(t *testing.T) {
	a, b := identity{hypervisor.Identity{OperatorUID: "op-1", Cluster: "lab"}},
		identity{hypervisor.Identity{OperatorUID: "op-1", Cluster: "prod"}}
	uid := "0f0f0f0f-0000-4000-8000-000000000001"
	volid := "local:iso/" + a.isoName(uid)

	if got, ok := a.parseISOOwner(volid); !ok || got != uid {
		t.Errorf("own ISO: %q %t", got, ok)
	}

	for _, other := range []string{volid, "local:iso/debian.iso", "local:iso/", "", "local:iso/" + a.isoPrefix() + "x"} {
		if got, ok := b.parseISOOwner(other); ok {
			t.Errorf("%q is treated as an ISO of %q", other, got)
		}
	}
}

func TestMachineTags(t *testing.T) {
	id := identity{hypervisor.Identity{OperatorUID: "op-1", Cluster: "lab"}}
	want := "env-prod-eu;hf-op-" + id.Hash() + ";hf-pool-linux_x64;hyperfleet;team"

	// Tags without a valid character are omitted.
	got := buildTags(id, "Linux_X64", map[string]string{"Env": "Prod EU", "team": "", "é": ""})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzParseRecord(f *testing.F) {
	text, err := testRecord().Encode()
	if err != nil {
		f.Fatal(err)
	}

	f.Add(text)
	f.Add("{")
	f.Add(`{"managedBy":"hyperfleet","machineClaim":{"uid":"u"},"operatorUID":"o","createdAt":"x"}`)
	f.Fuzz(func(t *testing.T, description string) {
		r, err := ParseRecord(description)
		if err != nil {
			if r != (Record{}) {
				t.Errorf("an error with a record: %+v", r)
			}

			return
		}

		if r.ManagedBy != hypervisor.ManagedBy || r.MachineClaim.UID == "" || r.OperatorUID == "" {
			t.Errorf("incomplete record: %+v", r)
		}

		if again, err := r.Encode(); err == nil {
			if back, err := ParseRecord(again); err != nil || back != r {
				t.Errorf("%+v became %+v (%v)", r, back, err)
			}
		}
	})
}

// TestParseIPConfig checks that the addresses that were written into a VM's configuration are read back from it.
func TestParseIPConfig(t *testing.T) {
	for value, want := range map[string][]string{
		"": nil, "ip=dhcp": nil, "ip=dhcp,ip6=auto": nil,
		formatIPConfig(hypervisor.NetworkOptions{
			Addresses: []string{"10.0.0.5/24", "fd00::5/64"}, Gateways: []string{"10.0.0.1", "fd00::1"},
		}): {"10.0.0.5/24", "fd00::5/64"},
		"gw=10.0.0.1,ip=10.0.0.5/24": {"10.0.0.5/24"},
	} {
		if diff := cmp.Diff(want, parseIPConfig(value)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", value, diff)
		}
	}
}
