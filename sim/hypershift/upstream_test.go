// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/sim/hypershift"
	"github.com/hyperfleet/hyperfleet/sim/hypershift/crds"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/upstream"
)

const metalLB, shortTimeout = "metallb-system", 15 * time.Second

// loadBalancer is an API server with a controller that allocates addresses for Services.
type loadBalancer struct {
	env *kube.Env
	// findRefusal returns the errors in the pools, or "" if there are none.
	findRefusal func(*testing.T) string
}

// The simulator and MetalLB's own controller have the same behavior.
func TestAddresses(t *testing.T) {
	t.Parallel()

	own := kube.Start(t)
	if err := crds.Install(t.Context(), own.Config); err != nil {
		t.Fatal(err)
	}

	sim, err := hypershift.Start(hypershift.Options{Config: own.Config})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})

	b, reported := loadBalancer{env: own}, map[hypershift.Violation]bool{}
	b.findRefusal = func(*testing.T) string {
		var out []string

		for _, v := range sim.Violations() {
			if !reported[v] {
				out = append(out, v.Message)
			}

			reported[v] = true
		}

		return strings.Join(out, "; ")
	}

	b.checkPools(t)
	b.checkAddresses(t)
}

func TestAddressesUpstream(t *testing.T) {
	t.Parallel()

	own := kube.Start(t)
	metal := upstream.StartMetalLB(t, own, metalLB)
	b := loadBalancer{own, func(t *testing.T) string {
		t.Helper()

		return metal.ConfigurationError(t)
	}}

	b.checkPools(t)
	b.checkAddresses(t)
}

// checkPools checks which pools are rejected, and with which message.
func (b loadBalancer) checkPools(t *testing.T) {
	t.Helper()

	rows := []struct {
		name, want string
		addresses  []any
	}{
		{"a prefix", "", []any{"192.0.2.64/28"}},
		{"a prefix with a host's bits", "", []any{"192.0.2.77/28"}},
		{"one address of each family", "", []any{"192.0.2.7/32", "2001:db8::7/128"}},
		{"a range with blanks", "", []any{"192.0.2.1 - 192.0.2.9"}},
		{"an address without a length", "invalid CIDR", []any{"192.0.2.7"}},
		{"a prefix with a blank", "invalid CIDR", []any{" 192.0.2.0/28"}},
		{"a range of two families", "same family", []any{"192.0.2.1-2001:db8::1"}},
		{"a range backwards", "is after the end IP", []any{"192.0.2.9-192.0.2.1"}},
		{"a range without a start", "invalid start IP", []any{"x-192.0.2.1"}},
		{"a range without an end", "invalid end IP", []any{"192.0.2.1-x"}},
		{"an address with a zone", "invalid", []any{"fe80::1%eth0-fe80::2%eth0"}},
		{"a length with a zero", "", []any{"192.0.2.0/028"}},
		{"an address with zeros", "invalid CIDR", []any{"192.000.002.000/28"}},
		{"an address of IPv4 in one of IPv6", "", []any{"::ffff:192.0.2.0/124"}},
		{"a range with IPv4 in IPv6", "", []any{"192.0.2.1-::ffff:192.0.2.9"}},
		{"no addresses", "pool has no prefixes defined", []any{}},
		{"the same twice", "overlaps with already defined CIDR", []any{"192.0.2.0/30", "192.0.2.2/32"}},
	}

	for _, row := range rows {
		pool := b.createPool(t, "pool", row.addresses, nil)

		if row.want == "" {
			b.waitForAddressOf(t, pool, row.name)
		}

		b.waitUntil(t, row.name+" has the error "+row.want, func() (bool, string) {
			got := b.findRefusal(t)

			return strings.Contains(got, row.want) && (row.want == "") == (got == ""), got
		})
		b.delete(t, pool)
		b.waitUntil(t, "no pool is rejected", func() (bool, string) { got := b.findRefusal(t); return got == "", got })
	}
}

// waitForAddressOf waits until a Service has an address of the pool.
func (b loadBalancer) waitForAddressOf(t *testing.T, pool *unstructured.Unstructured, name string) {
	t.Helper()

	service := b.createService(t, "default", nil)
	b.waitUntil(t, name+": a Service has an address", func() (bool, string) {
		got := b.getOutcome(t, service)

		return strings.HasSuffix(got, " of "+pool.GetName()), got
	})
	b.delete(t, service)
}

// checkAddresses checks from which pool a Service gets its address, and when it gets none.
func (b loadBalancer) checkAddresses(t *testing.T) {
	t.Helper()

	const ips, named, sharing = "metallb.io/loadBalancerIPs", "metallb.io/address-pool", "metallb.io/allow-shared-ip"

	rows := []struct {
		name, namespace string
		annotations     map[string]string
		want            string
	}{
		{"pinned pools first", "ns", nil, "192.0.2.16 of own"},
		{"otherwise a pool for all", "none", nil, "192.0.2.0 of common"},
		{"a requested address", "none", map[string]string{ips: "192.0.2.48"}, "192.0.2.48 of manual"},
		{"a requested address with a blank", "none", map[string]string{ips: " 192.0.2.48"}, "192.0.2.48 of manual"},
		{"a requested pool", "none", map[string]string{named: "manual"}, "192.0.2.48 of manual"},
		{"a pool that does not exist", "none", map[string]string{named: "nowhere"}, "refused"},
		{"a pool for other namespaces", "none", map[string]string{named: "foreign"}, "refused"},
		{"an address of no pool", "none", map[string]string{ips: "198.51.100.1"}, "not allowed in config"},
		{"an address of another namespace's pool", "none", map[string]string{ips: "192.0.2.32"}, "not compatible"},
		{"an address of its namespace's pool", "ns", map[string]string{ips: "192.0.2.16"}, "192.0.2.16 of own"},
		{"no address", "none", map[string]string{ips: "here"}, "invalid"},
		{"two addresses", "none", map[string]string{ips: "192.0.2.1,192.0.2.2"}, "refused"},
		{"the other family", "none", map[string]string{ips: "2001:db8::1"}, "does not match the ipFamily"},
		{"an address in use", "none", map[string]string{ips: "192.0.2.3"}, "also in use by other/holder"},
		{"a shared address", "none", map[string]string{ips: "192.0.2.3", sharing: "key"}, "192.0.2.3 of common"},
	}

	for _, namespace := range []string{"ns", "none", "other"} {
		b.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	}

	b.createPool(t, "common", []any{"192.0.2.0/30"}, nil)
	b.createPool(t, "own", []any{"192.0.2.16/32"}, map[string]any{"serviceAllocation": map[string]any{"namespaces": []any{"ns"}, "priority": int64(1)}})
	b.createPool(t, "foreign", []any{"192.0.2.32/32"}, map[string]any{"serviceAllocation": map[string]any{"namespaces": []any{"other"}}})
	b.createPool(t, "manual", []any{"192.0.2.48/32", "2001:db8::1/128"}, map[string]any{"autoAssign": false})

	holder := b.createService(t, "other", map[string]string{ips: "192.0.2.3", sharing: "key"})
	b.waitUntil(t, "the holder has its address", func() (bool, string) {
		got := b.getOutcome(t, holder)

		return got == "192.0.2.3 of common", got
	})

	for _, row := range rows {
		service := b.createService(t, row.namespace, row.annotations)
		b.waitUntil(t, row.name, func() (bool, string) {
			got := b.getOutcome(t, service)

			return got == row.want || strings.HasPrefix(got, "refused") && strings.Contains(got, row.want), got
		})
		b.delete(t, service)
	}
}

func (b loadBalancer) createPool(t *testing.T, name string, addresses []any, more map[string]any) *unstructured.Unstructured {
	t.Helper()

	spec := map[string]any{"addresses": addresses}
	maps.Copy(spec, more)

	pool := newObject(newGVK("metallb.io", "v1beta1", "IPAddressPool"), metalLB, name, spec)
	b.create(t, pool)

	return pool
}

func (b loadBalancer) createService(t *testing.T, namespace string, annotations map[string]string) *corev1.Service {
	t.Helper()

	name := "asks"
	if namespace == "other" {
		name = "holder"
	}

	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: int32(6443 + len(name))}}},
	}
	b.create(t, service)

	return service
}

// getOutcome returns a Service's address and its pool, or the reason why it has none.
func (b loadBalancer) getOutcome(t *testing.T, service *corev1.Service) string {
	t.Helper()

	if err := b.env.Client.Get(t.Context(), client.ObjectKeyFromObject(service), service); err != nil {
		t.Fatal(err)
	}

	if ingress := service.Status.LoadBalancer.Ingress; len(ingress) > 0 {
		return ingress[0].IP + " of " + service.Annotations["metallb.io/ip-allocated-from-pool"]
	}

	var events corev1.EventList
	if err := b.env.Client.List(t.Context(), &events, client.InNamespace(service.Namespace)); err != nil {
		t.Fatal(err)
	}

	objectKey := slices.IndexFunc(events.Items, func(e corev1.Event) bool {
		return e.InvolvedObject.UID == service.UID && e.Reason == "AllocationFailed"
	})
	if objectKey < 0 {
		return "nothing"
	}

	return "refused: " + events.Items[objectKey].Message
}

func (b loadBalancer) create(t *testing.T, object client.Object) {
	t.Helper()

	if err := b.env.Client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

func (b loadBalancer) delete(t *testing.T, object client.Object) {
	t.Helper()

	if err := b.env.Client.Delete(context.Background(), object); err != nil {
		t.Fatal(err)
	}
}

func (b loadBalancer) waitUntil(t *testing.T, what string, is func() (bool, string)) {
	t.Helper()

	got := ""

	for deadline := time.Now().Add(shortTimeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		trueMessage, now := is()
		if trueMessage {
			return
		}

		got = now
	}

	t.Errorf("%s: got %q", what, got)
}
