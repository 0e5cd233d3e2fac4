// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
)

// families are those that Services have in the management cluster of a bridge, by its name.
// The tests' API server has IPv4 alone.
func families(cluster string) []corev1.IPFamily {
	switch {
	case strings.HasPrefix(cluster, "both-"):
		return []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	case strings.HasPrefix(cluster, "six-"):
		return []corev1.IPFamily{corev1.IPv6Protocol}
	default:
		return nil
	}
}

// addressPool makes a pool of MetalLB's that is not a bridge's own.
func (w *world) addressPool(name string, addresses ...any) {
	w.t.Helper()

	pool := hypershift.New(hypershift.IPAddressPoolKind())
	pool.SetNamespace(metalLB)
	pool.SetName(w.namespace + "-" + name)
	pool.Object["spec"] = map[string]any{"addresses": addresses}
	w.create(pool)
	w.t.Cleanup(func() { _ = env.Client.Delete(context.Background(), pool) })
}

// An address of IPv6, and one of each family, of a pool of the bridge's own and of one that is
// there.
func TestAddressesOfBothFamilies(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.addressPool("shared", "192.0.2.128-192.0.2.140", "2001:db8:1::/64")

	rows := map[string]struct{ address, at, made string }{
		"six-own":     {"fd00:10::1", "the API server is at [fd00:10::1]:6443", "[fd00:10::1/128]"},
		"six-shared":  {"2001:db8:1::7", "the API server is at [2001:db8:1::7]:6443", ""},
		"both-own":    {"10.6.0.1,fd00:10::2", "the API server is at 10.6.0.1:6443 and [fd00:10::2]:6443", "[10.6.0.1/32 fd00:10::2/128]"},
		"both-shared": {"192.0.2.130,2001:db8:1::5", "the API server is at 192.0.2.130:6443 and [2001:db8:1::5]:6443", ""},
	}
	for name, row := range rows {
		w.dpuCluster(name, hypershift.PhaseReady)
		w.create(w.exposed(name, row.address))
	}

	for name, row := range rows {
		b := w.exposed(name, row.address)
		w.says(b, v1alpha1.ConditionServiceExposureReady, "True LoadBalancerReady", row.at)
		w.reaches(b, v1alpha1.PhaseReady)

		pool := hypershift.New(hypershift.IPAddressPoolKind())
		key := client.ObjectKey{Namespace: metalLB, Name: hypershift.PoolName(w.namespace, name)}
		err := env.Client.Get(t.Context(), key, pool)
		w.must(client.IgnoreNotFound(err))

		made := ""
		if err == nil {
			made = "[" + strings.Join(hypershift.Addresses(pool), " ") + "]"
		}

		if made != row.made {
			t.Errorf("%s: its own pool is %q, want %q", name, made, row.made)
		}
	}
}

// What stands in the way of addresses of both families is told.
func TestAddressesThatCannotBeHad(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.addressPool("four", "192.0.2.150-192.0.2.160")
	w.addressPool("six", "2001:db8:2::/64")

	for _, name := range []string{"both-holder", "both-rival", "both-apart", "both-half", "four-alone"} {
		w.dpuCluster(name, hypershift.PhaseReady)
	}

	holder := w.exposed("both-holder", "10.6.0.10,fd00:10::10")
	w.create(holder)
	w.reaches(holder, v1alpha1.PhaseReady)

	rows := map[string]struct{ address, want, message string }{
		"both-rival": {"10.6.0.11,fd00:10::10", "False VIPConflict", "has the address fd00:10::10"},
		"both-apart": {
			"192.0.2.150,2001:db8:2::1", "False VIPNotInPool",
			"no IPAddressPool has all of 192.0.2.150,2001:db8:2::1, and MetalLB gives a Service addresses of one pool alone",
		},
		"both-half": {"10.6.0.12,2001:db8:2::2", "False VIPNotInPool", "no IPAddressPool has all of"},
		"four-alone": {
			"fd00:10::11", "False LoadBalancerPending",
			"the Service is of [IPv4], as the management cluster's Services are, and MetalLB gives no others",
		},
	}
	for name, row := range rows {
		w.create(w.exposed(name, row.address))
	}

	for name, row := range rows {
		w.says(w.exposed(name, ""), v1alpha1.ConditionServiceExposureReady, row.want, row.message)
	}

	// The holder's IPv6 address is free again.
	w.patch(holder, func(b *v1alpha1.DPFHCPBridge) { b.Spec.MetalLBVirtualIP = "10.6.0.10,fd00:10::20" })
	w.says(holder, v1alpha1.ConditionServiceExposureReady, "True LoadBalancerReady", "[fd00:10::20]:6443")
	w.reaches(w.exposed("both-rival", ""), v1alpha1.PhaseReady)
}
