// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// A process that may no longer be the leader changes nothing by calls that are not HTTP, and still reads. The metrics
// count its calls.
func TestOnlyTheLeaderMakesCallsThatWrite(t *testing.T) {
	t.Parallel()

	metrics := prometheus.NewRegistry()

	transports, err := NewTransports(metrics, nil)
	if err != nil {
		t.Fatal(err)
	}

	errLost := errors.New("the lease has expired")
	transports.checkLease = func() error { return errLost }
	made := 0
	do := func() error {
		made++

		return nil
	}

	if err := transports.wrapCall("libvirt")(t.Context(), hypervisor.Call{Operation: "createDomain", Write: true}, do); !errors.Is(err, errLost) {
		t.Errorf("want %v, got %v", errLost, err)
	}

	if err := transports.wrapCall("libvirt")(t.Context(), hypervisor.Call{Operation: "listDomains"}, do); err != nil {
		t.Error(err)
	}

	if got := testutil.CollectAndCount(metrics, "hyperfleet_external_call_duration_seconds"); made != 1 || got != 1 {
		t.Errorf("%d calls were made and %d are counted, want one", made, got)
	}
}

// The network policy lets the operator connect to libvirt hosts, over TLS and over SSH, and to external providers at the
// port in the guide.
func TestNetworkPolicyPermitsHypervisors(t *testing.T) {
	t.Parallel()

	text, err := os.ReadFile("../../../deploy/base/networkpolicy.yaml")
	if err != nil {
		t.Fatal(err)
	}

	var policy networkingv1.NetworkPolicy
	if err := yaml.Unmarshal(text, &policy); err != nil {
		t.Fatal(err)
	}

	permitted := map[string]bool{}

	for _, rule := range policy.Spec.Egress {
		for _, port := range rule.Ports {
			permitted[port.Port.String()] = true
		}
	}

	for _, port := range []string{hypervisor.PortLibvirtTLS, hypervisor.PortSSH, "9443"} {
		if !permitted[port] {
			t.Errorf("the policy does not permit connections to port %s", port)
		}
	}
}
