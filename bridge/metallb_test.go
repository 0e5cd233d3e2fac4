// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	simulator "github.com/hyperfleet/hyperfleet/sim/hypershift"
	"github.com/hyperfleet/hyperfleet/sim/hypershift/hypershifttest"
	"github.com/hyperfleet/hyperfleet/test/upstream"
)

// TestMetalLBUpstream checks that MetalLB itself accepts what bridges write: their own pools of either
// and of both families, addresses of existing pools, a changed address, and an address that another
// Service has.
func TestMetalLBUpstream(t *testing.T) { //nolint:paralleltest // nothing else may assign addresses
	runAreaAlone(t, clock.RealClock{}, installKinds)

	metal := upstream.StartMetalLB(t, env, metalLB)
	hypershifttest.New(t, simulator.Options{Config: env.Config, Supported: supportedVersions(), WithoutMetalLB: true})

	w := newIsolatedFixture(t)
	w.createAddressPool("there", "192.0.2.200-192.0.2.209", "2001:db8:9::/120")

	at := map[string]string{"own": "10.9.0.1", "shared": "192.0.2.204"}
	for name, address := range at {
		w.createDPUCluster(name, hypershift.PhaseReady)
		w.create(w.newExposedBridge(name, address))
	}

	for name, address := range at {
		b := w.newExposedBridge(name, address)
		w.waitForCondition(b, v1alpha1.ConditionServiceExposureReady, "True LoadBalancerReady", "the API server is available at "+address+":6443")
		w.waitForPhase(b, v1alpha1.PhaseReady)
	}

	own := w.newExposedBridge("own", "")
	w.patchBridge(own, func(b *v1alpha1.DPFHCPBridge) { b.Spec.MetalLBVirtualIP = "10.9.0.2" })
	w.waitForCondition(own, v1alpha1.ConditionServiceExposureReady, "True LoadBalancerReady", "the API server is available at 10.9.0.2:6443")

	taken := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.namespace, Name: "web", Annotations: map[string]string{hypershift.AnnotationAddress: "192.0.2.206"},
		},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 443}}},
	}
	w.create(taken)
	t.Cleanup(func() { _ = env.Client.Delete(context.Background(), taken) })
	w.eventually("a Service of another owner has an address", func() bool {
		return env.Client.Get(t.Context(), client.ObjectKeyFromObject(taken), taken) == nil && len(taken.Status.LoadBalancer.Ingress) > 0
	})

	// The API server does not support IPv6, so that only the pools can be checked for IPv6.
	for name, address := range map[string]string{"six-own": "fd00:10::9", "both-own": "10.9.0.9,fd00:10::a", "rival": "192.0.2.206"} {
		w.createDPUCluster(name, hypershift.PhaseReady)
		w.create(w.newExposedBridge(name, address))
	}

	w.waitForCondition(w.newExposedBridge("rival", ""), v1alpha1.ConditionServiceExposureReady, "False VIPConflict", "/web has the address 192.0.2.206")

	for _, name := range []string{"six-own", "both-own"} {
		pool := hypershift.NewObject(hypershift.IPAddressPoolKind())
		pool.SetNamespace(metalLB)
		pool.SetName(hypershift.PoolName(w.namespace, name))
		w.eventually("there is the pool of "+name, func() bool {
			return env.Client.Get(t.Context(), client.ObjectKeyFromObject(pool), pool) == nil
		})
	}

	w.eventually("MetalLB takes all of it", func() bool { return metal.ConfigurationError(t) == "" })
}
