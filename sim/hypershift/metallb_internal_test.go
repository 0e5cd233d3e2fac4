// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestParseRange(t *testing.T) {
	tests := map[string]struct{ text, want, err string }{
		"prefix":         {text: "192.0.2.77/28", want: "192.0.2.64-192.0.2.79"},
		"one address":    {text: "192.0.2.7/32", want: "192.0.2.7-192.0.2.7"},
		"v6":             {text: "2001:db8::/127", want: "2001:db8::-2001:db8::1"},
		"range":          {text: "192.0.2.1 - 192.0.2.9", want: "192.0.2.1-192.0.2.9"},
		"bare address":   {text: "192.0.2.7", err: "invalid CIDR"},
		"mixed families": {text: "192.0.2.1-2001:db8::1", err: "same family"},
		"backwards":      {text: "192.0.2.9-192.0.2.1", err: "is after the end IP"},
		"no start":       {text: "x-192.0.2.1", err: "invalid start IP"},
		"no end":         {text: "192.0.2.1-x", err: "invalid end IP"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseRange(test.text)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error is %v, want %q", err, test.err)
				}

				return
			}

			if err != nil || got.String() != test.want {
				t.Errorf("got %s, %v; want %s", got, err, test.want)
			}
		})
	}
}

func poolOf(t *testing.T, name, addresses string, more map[string]any) addressPool {
	t.Helper()

	spec := map[string]any{"addresses": []any{addresses}}
	maps.Copy(spec, more)

	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetName(name)

	p, err := readPool(object)
	if err != nil {
		t.Fatal(err)
	}

	return p
}

// TestPick has a row for each way to an address, as MetalLB's allocator has them.
func TestPick(t *testing.T) {
	pinned := map[string]any{"serviceAllocation": map[string]any{"namespaces": []any{"ns"}, "priority": int64(1)}}
	foreign := map[string]any{"serviceAllocation": map[string]any{"namespaces": []any{"other"}}}

	all := []addressPool{
		poolOf(t, "common", "192.0.2.0/30", nil),
		poolOf(t, "own", "192.0.2.16/32", pinned),
		poolOf(t, "foreign", "192.0.2.32/32", foreign),
		poolOf(t, "manual", "192.0.2.48/32", map[string]any{"autoAssign": false}),
		poolOf(t, "both", "192.0.2.64/32", map[string]any{"addresses": []any{"192.0.2.64/32", "2001:db8::1/128"}, "autoAssign": false}),
	}
	taken := map[netip.Addr]*corev1.Service{
		netip.MustParseAddr("192.0.2.1"): {ObjectMeta: metav1.ObjectMeta{
			Namespace: "x", Name: "holder", Annotations: map[string]string{annotationSharing: "key"},
		}},
	}

	both := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}

	tests := map[string]struct {
		annotations    map[string]string
		namespace, has string
		families       []corev1.IPFamily
		address, from  string
		refused        string
	}{
		"pinned pools first":         {namespace: "ns", address: "192.0.2.16", from: "own"},
		"else of those for all":      {namespace: "none", address: "192.0.2.0", from: "common"},
		"what it has stays":          {namespace: "ns", has: "192.0.2.3", address: "192.0.2.3", from: "common"},
		"what is in no pool goes":    {namespace: "ns", has: "198.51.100.1", address: "192.0.2.16", from: "own"},
		"what it asks for":           {annotations: map[string]string{annotationIPs: "192.0.2.48"}, address: "192.0.2.48", from: "manual"},
		"a pool it names":            {annotations: map[string]string{annotationPool: "manual"}, address: "192.0.2.48", from: "manual"},
		"a pool that does not take":  {annotations: map[string]string{annotationPool: "foreign"}, refused: "no available IPs"},
		"an address of no pool":      {annotations: map[string]string{annotationIPs: "198.51.100.1"}, refused: "not allowed in config"},
		"an address of a pool's own": {annotations: map[string]string{annotationIPs: "192.0.2.32"}, refused: "not compatible"},
		"an address that is taken":   {annotations: map[string]string{annotationIPs: "192.0.2.1"}, refused: "also in use by x/holder"},
		"an address that is shared": {
			annotations: map[string]string{annotationIPs: "192.0.2.1", annotationSharing: "key"}, address: "192.0.2.1", from: "common",
		},
		"no address": {annotations: map[string]string{annotationIPs: "here"}, refused: "invalid"},
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
		"the other family":      {annotations: map[string]string{annotationIPs: "2001:db8::1"}, refused: "does not match the ipFamily"},
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

			addresses, from, refused := pick(service, test.families, all, taken)
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

func TestOverlap(t *testing.T) {
	others := []addressPool{poolOf(t, "a", "192.0.2.0/28", nil)}

	if err := overlap(poolOf(t, "b", "192.0.2.15/32", nil), others); err == nil || !strings.Contains(err.Error(), "overlaps") {
		t.Errorf("got %v", err)
	}

	if err := overlap(poolOf(t, "b", "192.0.2.16/28", nil), others); err != nil {
		t.Error(err)
	}
}
