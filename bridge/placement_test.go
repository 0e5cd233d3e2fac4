// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
)

// TestNetworksAndPlacement checks that the HostedCluster, with HyperShift's own schema, has the networks
// and the placement of the bridge. While the cluster runs, the bridge may change the placement. Changes
// by others are reverted.
func TestNetworksAndPlacement(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	w.createDPUCluster("placed", hypershift.PhaseReady)

	b := w.newBridge("placed")
	b.Spec.Networking = v1alpha1.Networking{MachineNetwork: []v1alpha1.Network{{CIDR: "10.6.0.0/16"}}}
	b.Spec.ControlPlane = &v1alpha1.ControlPlane{
		NodeSelector: map[string]v1alpha1.LabelValue{"zone": "a", "example.com/control-plane": ""},
		Tolerations:  []v1alpha1.Toleration{{Key: "example.com/control-plane", Operator: "Exists"}},
	}
	w.create(b)
	w.waitForPhase(b, v1alpha1.PhaseReady)

	w.waitForHostedClusterField(b, "networking", anyMap{
		"networkType": "Other", "allocateNodeCIDRs": "Enabled",
		"clusterNetwork": list{anyMap{"cidr": v1alpha1.DefaultClusterNetwork}},
		"serviceNetwork": list{anyMap{"cidr": v1alpha1.DefaultServiceNetwork}}, "machineNetwork": list{anyMap{"cidr": "10.6.0.0/16"}},
	})
	w.waitForHostedClusterField(b, "nodeSelector", anyMap{"zone": "a", "example.com/control-plane": ""})
	w.waitForHostedClusterField(b, "tolerations", list{anyMap{"key": "example.com/control-plane", "operator": "Exists"}})

	cluster := w.readObject(hypershift.NewObject(hypershift.HostedClusterKind()), w.namespace, b.Name)
	w.must(env.Client.Patch(t.Context(), cluster, mergePatch(anyMap{"spec": anyMap{"nodeSelector": anyMap{"zone": "b", "more": "c"}}})))
	w.waitForHostedClusterField(b, "nodeSelector", anyMap{"zone": "a", "example.com/control-plane": ""})

	w.patchBridge(b, func(b *v1alpha1.DPFHCPBridge) {
		b.Spec.ControlPlane.NodeSelector = map[string]v1alpha1.LabelValue{"zone": "a"}
		b.Spec.ControlPlane.Tolerations = nil
	})
	w.waitForHostedClusterField(b, "nodeSelector", anyMap{"zone": "a"})
	w.waitForHostedClusterField(b, "tolerations", nil)
	w.waitForPhase(b, v1alpha1.PhaseReady)
}

// waitForHostedClusterField waits until a field of the spec of a bridge's HostedCluster has the desired
// value.
func (w *fixture) waitForHostedClusterField(b *v1alpha1.DPFHCPBridge, field string, want any) {
	w.t.Helper()

	var last any

	defer func() {
		if diff := cmp.Diff(want, last); diff != "" {
			w.t.Errorf("%s (-want +got):\n%s", field, diff)
		}
	}()

	w.eventually(field, func() bool {
		cluster := hypershift.NewObject(hypershift.HostedClusterKind())
		w.must(env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(b), cluster))

		last, _, _ = unstructured.NestedFieldNoCopy(cluster.Object, "spec", field)

		return cmp.Equal(want, last)
	})
}
