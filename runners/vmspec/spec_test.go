// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

func TestMaskBits(t *testing.T) {
	t.Parallel()

	cases := map[string]int{
		"255.255.255.0": 24, "255.255.252.0": 22, "0.0.0.0": 0, "255.255.255.255": 32, "24": 24, "64": 64, "0": 0,
		"255.0.255.0": -1, "129": -1, "-1": -1, "": -1, "mask": -1, "ffff:ffff::": 32,
	}
	for mask, want := range cases {
		if got := vmspec.ParseNetmask(mask); got != want {
			t.Errorf("ParseNetmask(%q) = %d, want %d", mask, got, want)
		}
	}
}

func TestNamesOf(t *testing.T) {
	t.Parallel()

	claim := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "pool-abc12"}}
	cluster := &v1alpha1.HypervisorCluster{Spec: v1alpha1.HypervisorClusterSpec{DNS: &v1alpha1.HypervisorDNS{
		Domain: "fleet.example", Servers: []string{"192.0.2.1"}, Search: []string{"fleet.example"},
	}}}
	machineIdentity := &v1alpha1.HypervisorMachineTemplate{Spec: v1alpha1.HypervisorMachineTemplateSpec{Network: &v1alpha1.MachineNetwork{
		DNS: &v1alpha1.MachineDNS{Domain: "own.example"},
	}}}
	plain := &v1alpha1.HypervisorMachineTemplate{}

	cases := map[string]struct {
		template      *v1alpha1.HypervisorMachineTemplate
		cluster       *v1alpha1.HypervisorCluster
		withNamespace bool
		want          vmspec.Names
	}{
		"without any DNS settings the FQDN is the host name": {
			plain, &v1alpha1.HypervisorCluster{}, false,
			vmspec.Names{Hostname: "pool-abc12", FQDN: "pool-abc12"},
		},
		"the cluster's domain": {plain, cluster, false, vmspec.Names{
			Hostname: "pool-abc12", FQDN: "pool-abc12.fleet.example", Domain: "fleet.example",
			DNSServers: []string{"192.0.2.1"}, SearchDomains: []string{"fleet.example"},
		}},
		"the template's domain takes precedence, the rest stays": {machineIdentity, cluster, true, vmspec.Names{
			Hostname: "ci-pool-abc12", FQDN: "ci-pool-abc12.own.example", Domain: "own.example",
			DNSServers: []string{"192.0.2.1"}, SearchDomains: []string{"fleet.example"},
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if diff := cmp.Diff(tc.want, vmspec.NewNames(claim, tc.template, tc.cluster, tc.withNamespace)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLongHostnameKeepsItsRandomEnd(t *testing.T) {
	t.Parallel()

	claim := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: strings.Repeat("n", 40), Name: strings.Repeat("p", 40) + "-x7k2p",
	}}

	names := vmspec.NewNames(claim, &v1alpha1.HypervisorMachineTemplate{}, &v1alpha1.HypervisorCluster{}, true)
	if len(names.Hostname) > 63 || !strings.HasSuffix(names.Hostname, "-x7k2p") || strings.HasPrefix(names.Hostname, "-") {
		t.Errorf("host name %q", names.Hostname)
	}
}
