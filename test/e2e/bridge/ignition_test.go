// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/hypershift"
)

// TestIgnitionRotatesWhileNoOperatorRuns checks that the template that DPUs boot from is updated after HyperShift
// has rotated the token in its user data, even if no operator was running at that time. HyperShift rotates the
// token several times a day, and rejects the old one.
func TestIgnitionRotatesWhileNoOperatorRuns(t *testing.T) {
	w := newFixture(t, nil, func(o *hypershift.Options) { o.Ignition = true })
	config := env.ServiceAccount(t, system, account)
	w.start(config)

	bridge := w.prepareSample("dpfhcpbridge-development.yaml")
	bridge.Spec.DPUIgnition = &v1alpha1.DPUIgnition{FlavorName: "flavor", MachineOSURL: "quay.io/example/bluefield-os:4.15.0"}

	flavor := newObject(schema.GroupVersionKind{Group: "provisioning.dpu.nvidia.com", Version: "v1alpha1", Kind: "DPUFlavor"}, w.dpf, "flavor")
	flavor.Object["spec"] = map[string]any{"dpuMode": "dpu"}
	w.create(flavor, bridge)
	w.waitForPhase(bridge, v1alpha1.PhaseReady)

	const inputs = "dpf.hcp.bridge.com/ignition-inputs"

	before := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.dpf, Name: "bfcfg-" + bridge.Spec.DPUClusterRef.Name + ".cfg"}}
	if !w.get(before) {
		t.Fatalf("ConfigMap %s/%s does not exist", before.Namespace, before.Name)
	}

	w.kill()
	w.sim.RotateIgnition()
	w.start(config)

	after := before.DeepCopy()
	w.eventually("the template is updated after the rotation", func() bool {
		return w.get(after) && after.Annotations[inputs] != before.Annotations[inputs]
	})

	if after.UID != before.UID {
		t.Error("the ConfigMap was recreated, want an update")
	}

	w.waitForPhase(bridge, v1alpha1.PhaseReady)

	// A DPU boots from the template and joins the hosted cluster, which is the management cluster here.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-dpu"}}

	booted, err := w.sim.BootDPU(t.Context(), types.NamespacedName{Namespace: w.dpf, Name: bridge.Spec.DPUClusterRef.Name}, node.Name)
	if err != nil || booted.Image != bridge.Spec.DPUIgnition.MachineOSURL {
		t.Errorf("the DPU was installed with %s, %v", booted.Image, err)
	}

	if err := env.Client.Delete(t.Context(), node); err != nil {
		t.Errorf("the DPU has not joined: %v", err)
	}

	w.logf("ignition was rotated without an operator: the template is updated, and a DPU has joined")
	w.deleteAndWait(bridge)
	w.eventually("the template is deleted", func() bool { return !w.get(after) })
}
