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

// A bridge's networks and the place of its control plane are the HostedCluster's, in
// HyperShift's own schema. The place may be changed while the cluster runs: by the bridge, and
// by nobody else.
func TestNetworksAndPlacement(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.dpuCluster("placed", hypershift.PhaseReady)

	b := w.bridge("placed")
	b.Spec.Networking = v1alpha1.Networking{MachineNetwork: []v1alpha1.Network{{CIDR: "10.6.0.0/16"}}}
	b.Spec.ControlPlane = &v1alpha1.ControlPlane{
		NodeSelector: map[string]v1alpha1.LabelValue{"zone": "a", "example.com/control-plane": ""},
		Tolerations:  []v1alpha1.Toleration{{Key: "example.com/control-plane", Operator: "Exists"}},
	}
	w.create(b)
	w.reaches(b, v1alpha1.PhaseReady)

	w.hostedHas(b, "networking", anyMap{
		"networkType": "Other", "allocateNodeCIDRs": "Enabled",
		"clusterNetwork": list{anyMap{"cidr": v1alpha1.DefaultClusterNetwork}},
		"serviceNetwork": list{anyMap{"cidr": v1alpha1.DefaultServiceNetwork}}, "machineNetwork": list{anyMap{"cidr": "10.6.0.0/16"}},
	})
	w.hostedHas(b, "nodeSelector", anyMap{"zone": "a", "example.com/control-plane": ""})
	w.hostedHas(b, "tolerations", list{anyMap{"key": "example.com/control-plane", "operator": "Exists"}})

	cluster := w.read(hypershift.New(hypershift.HostedClusterKind()), w.namespace, b.Name)
	w.must(env.Client.Patch(t.Context(), cluster, merge(anyMap{"spec": anyMap{"nodeSelector": anyMap{"zone": "b", "more": "c"}}})))
	w.hostedHas(b, "nodeSelector", anyMap{"zone": "a", "example.com/control-plane": ""})

	w.patch(b, func(b *v1alpha1.DPFHCPBridge) {
		b.Spec.ControlPlane.NodeSelector = map[string]v1alpha1.LabelValue{"zone": "a"}
		b.Spec.ControlPlane.Tolerations = nil
	})
	w.hostedHas(b, "nodeSelector", anyMap{"zone": "a"})
	w.hostedHas(b, "tolerations", nil)
	w.reaches(b, v1alpha1.PhaseReady)
}

// hostedHas waits until a field of the spec of a bridge's HostedCluster is as it is wanted.
func (w *world) hostedHas(b *v1alpha1.DPFHCPBridge, field string, want any) {
	w.t.Helper()

	var last any

	defer func() {
		if diff := cmp.Diff(want, last); diff != "" {
			w.t.Errorf("%s (-want +got):\n%s", field, diff)
		}
	}()

	w.eventually(field, func() bool {
		cluster := hypershift.New(hypershift.HostedClusterKind())
		w.must(env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(b), cluster))

		last, _, _ = unstructured.NestedFieldNoCopy(cluster.Object, "spec", field)

		return cmp.Equal(want, last)
	})
}
