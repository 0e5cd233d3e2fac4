// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	simulator "github.com/hyperfleet/hyperfleet/sim/hypershift"
	"github.com/hyperfleet/hyperfleet/sim/hypershift/hypershifttest"
)

// families returns the IP families of the Services in the management cluster of a bridge, by the
// bridge's name. The API server of the tests has only IPv4.
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

// createAddressPool creates an IPAddressPool that belongs to no bridge.
func (w *fixture) createAddressPool(name string, addresses ...any) {
	w.t.Helper()

	pool := hypershift.NewObject(hypershift.IPAddressPoolKind())
	pool.SetNamespace(metalLB)
	pool.SetName(w.namespace + "-" + name)
	pool.Object["spec"] = map[string]any{"addresses": addresses}
	w.create(pool)
	w.t.Cleanup(func() { _ = env.Client.Delete(context.Background(), pool) })
}

// TestAddressesOfBothFamilies uses an IPv6 address, and one address of each family, from the bridge's
// own pool and from an existing pool.
func TestAddressesOfBothFamilies(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	w.createAddressPool("shared", "192.0.2.128-192.0.2.140", "2001:db8:1::/64")

	rows := map[string]struct{ address, at, made string }{
		"six-own":     {"fd00:10::1", "the API server is available at [fd00:10::1]:6443", "[fd00:10::1/128]"},
		"six-shared":  {"2001:db8:1::7", "the API server is available at [2001:db8:1::7]:6443", ""},
		"both-own":    {"10.6.0.1,fd00:10::2", "the API server is available at 10.6.0.1:6443 and [fd00:10::2]:6443", "[10.6.0.1/32 fd00:10::2/128]"},
		"both-shared": {"192.0.2.130,2001:db8:1::5", "the API server is available at 192.0.2.130:6443 and [2001:db8:1::5]:6443", ""},
	}
	for name, row := range rows {
		w.createDPUCluster(name, hypershift.PhaseReady)
		w.create(w.newExposedBridge(name, row.address))
	}

	for name, row := range rows {
		b := w.newExposedBridge(name, row.address)
		w.waitForCondition(b, v1alpha1.ConditionServiceExposureReady, "True LoadBalancerReady", row.at)
		w.waitForPhase(b, v1alpha1.PhaseReady)

		pool := hypershift.NewObject(hypershift.IPAddressPoolKind())
		key := client.ObjectKey{Namespace: metalLB, Name: hypershift.PoolName(w.namespace, name)}
		err := env.Client.Get(t.Context(), key, pool)
		w.must(client.IgnoreNotFound(err))

		made := ""
		if err == nil {
			made = "[" + strings.Join(hypershift.PoolAddresses(pool), " ") + "]"
		}

		if made != row.made {
			t.Errorf("%s: its own pool is %q, want %q", name, made, row.made)
		}
	}
}

// TestUnavailableAddresses checks that the status says why addresses of both families cannot be
// used.
func TestUnavailableAddresses(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	w.createAddressPool("four", "192.0.2.150-192.0.2.160")
	w.createAddressPool("six", "2001:db8:2::/64")

	for _, name := range []string{"both-holder", "both-rival", "both-apart", "both-half", "four-alone"} {
		w.createDPUCluster(name, hypershift.PhaseReady)
	}

	holder := w.newExposedBridge("both-holder", "10.6.0.10,fd00:10::10")
	w.create(holder)
	w.waitForPhase(holder, v1alpha1.PhaseReady)

	rows := map[string]struct{ address, want, message string }{
		"both-rival": {"10.6.0.11,fd00:10::10", "False VIPConflict", "has the address fd00:10::10"},
		"both-apart": {
			"192.0.2.150,2001:db8:2::1", "False VIPNotInPool",
			"no IPAddressPool has all of 192.0.2.150,2001:db8:2::1, but MetalLB allocates the addresses of a Service from one pool",
		},
		"both-half": {"10.6.0.12,2001:db8:2::2", "False VIPNotInPool", "no IPAddressPool has all of"},
		"four-alone": {
			"fd00:10::11", "False LoadBalancerPending",
			"the Service has the IP families IPv4, as all Services of the management cluster, and MetalLB assigns no other addresses",
		},
	}
	for name, row := range rows {
		w.create(w.newExposedBridge(name, row.address))
	}

	for name, row := range rows {
		w.waitForCondition(w.newExposedBridge(name, ""), v1alpha1.ConditionServiceExposureReady, row.want, row.message)
	}

	// When the holder changes its IPv6 address, the old address is free again.
	w.patchBridge(holder, func(b *v1alpha1.DPFHCPBridge) { b.Spec.MetalLBVirtualIP = "10.6.0.10,fd00:10::20" })
	w.waitForCondition(holder, v1alpha1.ConditionServiceExposureReady, "True LoadBalancerReady", "[fd00:10::20]:6443")
	w.waitForPhase(w.newExposedBridge("both-rival", ""), v1alpha1.PhaseReady)
}

// TestAddressFromOldMetalLB checks that MetalLB before 0.14.9 assigns the requested address of a shared pool, although
// it does not know today's annotation.
func TestAddressFromOldMetalLB(t *testing.T) { //nolint:paralleltest // it simulates HyperShift itself
	runAreaAlone(t, clock.RealClock{}, installKinds)
	hypershifttest.New(t, simulator.Options{Config: env.Config, Supported: supportedVersions(), OldMetalLB: true})

	w := newIsolatedFixture(t)
	w.createAddressPool("old", "192.0.2.220-192.0.2.229")
	w.createDPUCluster("old", hypershift.PhaseReady)

	b := w.newExposedBridge("old", "192.0.2.225")
	w.create(b)
	w.waitForCondition(b, v1alpha1.ConditionServiceExposureReady, "True LoadBalancerReady", "192.0.2.225:6443")

	w.patchBridge(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.MetalLBVirtualIP = "192.0.2.227" })
	w.waitForCondition(b, v1alpha1.ConditionServiceExposureReady, "True LoadBalancerReady", "192.0.2.227:6443")
}
