// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func newPool(t *testing.T, name, addresses string, more map[string]any) addressPool {
	t.Helper()

	spec := map[string]any{"addresses": []any{addresses}}
	maps.Copy(spec, more)

	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetName(name)

	p, err := parseAddressPool(object)
	if err != nil {
		t.Fatal(err)
	}

	return p
}

// TestPick has a row for each way to allocate an address that TestAddresses does not test.
func TestPick(t *testing.T) {
	pinned := map[string]any{"serviceAllocation": map[string]any{"namespaces": []any{"ns"}, "priority": int64(1)}}

	all := []addressPool{
		newPool(t, "common", "192.0.2.0/30", nil),
		newPool(t, "own", "192.0.2.16/32", pinned),
		newPool(t, "manual", "192.0.2.48/32", map[string]any{"autoAssign": false}),
		newPool(t, "both", "192.0.2.64/32", map[string]any{"addresses": []any{"192.0.2.64/32", "2001:db8::1/128"}, "autoAssign": false}),
	}
	both := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}

	tests := map[string]struct {
		annotations    map[string]string
		namespace, has string
		families       []corev1.IPFamily
		address, from  string
		refused        string
	}{
		"an allocated address stays":        {namespace: "ns", has: "192.0.2.3", address: "192.0.2.3", from: "common"},
		"an address of no pool is replaced": {namespace: "ns", has: "198.51.100.1", address: "192.0.2.16", from: "own"},
		"both families": {
			annotations: map[string]string{annotationIPs: "192.0.2.64,2001:db8::1"}, families: both,
			address: "192.0.2.64 2001:db8::1", from: "both",
		},
		"both families of a pool it names": {
			annotations: map[string]string{annotationPool: "both"}, families: both, address: "192.0.2.64 2001:db8::1", from: "both",
		},
		"both families of two pools": {
			annotations: map[string]string{annotationIPs: "192.0.2.48,2001:db8::1"}, families: both, refused: "not allowed in config",
		},
		"one of both": {
			annotations: map[string]string{annotationIPs: "192.0.2.64"}, families: both, refused: "does not match the ipFamily",
		},
		"both in a pool of one": {namespace: "ns", families: both, address: "192.0.2.16", from: "own"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
				Namespace: test.namespace, Name: "s", Annotations: test.annotations,
			}}
			if test.has != "" {
				service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: test.has}}
			}

			if test.families == nil {
				test.families = both[:1]
			}

			addresses, from, refused := chooseAddresses(service, test.families, all, nil)
			address := strings.Trim(fmt.Sprint(addresses), "[]")

			switch {
			case test.refused != "":
				if refused == nil || !strings.Contains(refused.Error(), test.refused) {
					t.Errorf("refused: %v, want %q", refused, test.refused)
				}
			case refused != nil || from != test.from || address != test.address:
				t.Errorf("got %s of %q, %v; want %s of %q", address, from, refused, test.address, test.from)
			}
		})
	}
}
