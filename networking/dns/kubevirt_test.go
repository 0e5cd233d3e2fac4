// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
)

// This test checks the intent for the registration of a KubevirtMachine.
func TestKubevirtRegistrationIntent(t *testing.T) {
	t.Parallel()

	on := &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Spec: v1alpha1.HypervisorClusterSpec{DNS: &v1alpha1.HypervisorDNS{
			Domain: forward, RegisterVMs: true, DNSProvider: &v1alpha1.DNSProvider{Type: "route53"},
		}},
	}
	off := on.DeepCopy()
	off.Spec.DNS.RegisterVMs = false

	ready := infrav1.KubevirtMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "n1", UID: "u1"},
		Spec: infrav1.KubevirtMachineSpec{
			BootstrapNetworkConfig: &infrav1.VirtualMachineBootstrapNetworkConfig{Interface: "eno101"},
		},
		Status: infrav1.KubevirtMachineStatus{
			Ready: true,
			AllocatedBootstrapAddresses: map[string][]string{
				"eno101": {"192.0.2.7/24", "2001:db8::7/64", "not an address"}, "eno102": {"192.0.2.8/24"},
			},
		},
	}
	stopped := ready
	stopped.Status.Ready = false
	dhcp := ready
	dhcp.Spec.BootstrapNetworkConfig = nil

	registered := registrationIntent{shouldRegister: true, spec: v1alpha1.DNSRegistrationSpec{
		Claim: v1alpha1.DNSRegistrationClaim{
			Kind: v1alpha1.KindKubevirtMachine, Namespace: "ci", Name: "n1", UID: "u1",
		},
		HypervisorCluster: "c", FQDN: "n1." + forward, Addresses: []string{"192.0.2.7", "2001:db8::7"},
	}}

	for _, row := range []struct {
		why     string
		machine infrav1.KubevirtMachine
		cluster *v1alpha1.HypervisorCluster
		domain  string
		want    registrationIntent
	}{
		{"ready", ready, on, forward, registered},
		{"stopped", stopped, on, forward, registrationIntent{shouldKeep: true}},
		{"registration is off", ready, off, forward, registrationIntent{}},
		{"its pool has no dns", ready, nil, "", registrationIntent{}},
		{"addresses by DHCP", dhcp, on, forward, registrationIntent{shouldKeep: true, reason: "NoAddress"}},
		{"no domain", ready, on, "", registrationIntent{shouldKeep: true, reason: "NoDomain"}},
	} {
		t.Run(row.why, func(t *testing.T) {
			t.Parallel()

			var name *KubevirtName
			if row.cluster != nil {
				name = &KubevirtName{Cluster: row.cluster, Domain: row.domain, Addresses: parseStaticAddresses(&row.machine)}
			}

			if row.domain != "" {
				name.FQDN = "n1." + row.domain
			}

			got := decideKubevirtMachine(&row.machine, name)
			got.message = ""

			if diff := cmp.Diff(row.want, got, cmp.AllowUnexported(registrationIntent{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The ownership record of a KubevirtMachine's record names the machine for people. An operator that only
// knows MachineClaims reads it like any other ownership record.
func TestOwnershipRecordOfKubevirtMachine(t *testing.T) {
	t.Parallel()

	owner := Owner{Operator: "op", UID: "u1", Kind: v1alpha1.KindKubevirtMachine, Claim: "ci/n1"}

	got, ok := parseOwnership(ownershipText(owner, v1alpha1.DNSRecord{Type: typeA, Value: "192.0.2.7"}))
	if !ok || !got.belongsTo(owner) || got.machine != "KubevirtMachine ci/n1" {
		t.Errorf("parseMark() = %+v, %t", got, ok)
	}
}
