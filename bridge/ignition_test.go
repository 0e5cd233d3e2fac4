// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	simulator "github.com/hyperfleet/hyperfleet/sim/hypershift"
)

const (
	machineOS  = "quay.io/example/bluefield-os:4.15.0"
	machineOS2 = "quay.io/example/bluefield-os:4.16.0"
)

// createFlavor creates a DPUFlavor in the namespace of the DPUClusters.
func (w *fixture) createFlavor(name string) {
	w.t.Helper()

	object := hypershift.NewObject(hypershift.DPUFlavorKind())
	object.SetNamespace(w.dpuNamespace)
	object.SetName(name)
	object.Object["spec"] = anyMap{
		"dpuMode": "dpu", "grub": anyMap{"kernelParameters": list{"hugepagesz=2048kB"}},
		"ovs": anyMap{"rawConfigScript": "ovs-vsctl show\n"},
		"configFiles": list{
			anyMap{"path": "/etc/one.conf", "operation": "override", "raw": "one {{.NotForDPF}}\n", "permissions": "0600"},
			anyMap{"path": "/etc/kubernetes/kubeconfig", "operation": "append", "raw": "# more\n"},
		},
	}
	w.create(object)
}

func (w *fixture) getTemplate(name string) *corev1.ConfigMap {
	w.t.Helper()

	var out corev1.ConfigMap

	err := env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.dpuNamespace, Name: "bfcfg-" + name + ".cfg"}, &out)
	if apierrors.IsNotFound(err) {
		return nil
	}

	w.must(err)

	return &out
}

// bootDPU boots a DPU until it joins, and returns what was installed on it.
func (w *fixture) bootDPU(cluster, dpu string) simulator.System {
	w.t.Helper()

	system, err := shared.sim.BootDPU(w.t.Context(), types.NamespacedName{Namespace: w.dpuNamespace, Name: cluster}, dpu)
	w.must(err)

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: dpu}}
	w.must(env.Client.Delete(w.t.Context(), node))

	return system
}

// TestDPUsBootAndJoin checks that a DPU boots with the template of the bridge and joins. The template is
// updated after changes of the release, the image, the flavor and HyperShift's tokens, and deleted with
// the bridge.
func TestDPUsBootAndJoin(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	w.createDPUCluster("dpus", hypershift.PhaseReady)

	b := w.newBridge("dpus")
	b.Spec.DPUIgnition = &v1alpha1.DPUIgnition{
		FlavorName: "flavor", MachineOSURL: machineOS, ConfigMapRef: &v1alpha1.LocalObjectReference{Name: "more"},
	}
	w.create(b)
	w.waitForCondition(b, v1alpha1.ConditionIgnitionConfigured, "False NotFound", "DPUFlavor "+w.dpuNamespace+"/flavor does not exist")

	w.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "more"}, Data: map[string]string{
		"target.ign": `{"ignition": {"version": "3.4.0"}, "systemd": {"units": [{"name": "dpu-agent.service", "contents": "[Unit]"}]}}`,
		"live.ign":   `{"ignition": {"version": "3.4.0"}, "storage": {"files": [{"path": "/etc/of", "contents": {"source": "data:,{{.DPUUID}}"}}]}}`,
	}})
	w.createFlavor("flavor")
	w.waitForCondition(b, v1alpha1.ConditionIgnitionConfigured, "True IgnitionGenerated", "bfcfg-dpus.cfg")
	w.waitForPhase(b, v1alpha1.PhaseReady)

	system := w.bootDPU("dpus", w.namespace+"-dpu-1")
	if system.Image != machineOS || system.Files["/etc/one.conf"] != "one {{.NotForDPF}}\n" ||
		!strings.HasSuffix(system.Files["/etc/kubernetes/kubeconfig"], "# more\n") ||
		system.Files["/usr/local/bin/dpf-ovs-script.sh"] != "ovs-vsctl show\n" || system.Units["dpu-agent.service"] != "[Unit]" ||
		!strings.Contains(system.Files["/etc/dpf/dpuflavor.yaml"], "kind: DPUFlavor") || system.Units["live"] != "hyperfleet-install.service" {
		t.Errorf("installed: image %s, units %v, files %v", system.Image, system.Units, system.Files)
	}

	w.patchBridge(b, func(b *v1alpha1.DPFHCPBridge) {
		b.Spec.OCPReleaseImage, b.Spec.DPUIgnition.MachineOSURL = image("4.16.0-x86_64"), machineOS2
	})
	w.eventually("the template is of the new image", func() bool { return w.bootDPU("dpus", w.namespace+"-dpu-2").Image == machineOS2 })
	w.waitForPhase(b, v1alpha1.PhaseReady)

	before := w.getTemplate("dpus").Annotations["dpf.hcp.bridge.com/ignition-inputs"]

	shared.sim.RotateIgnition()
	w.eventually("the template is recreated after a rotation", func() bool {
		return w.getTemplate("dpus").Annotations["dpf.hcp.bridge.com/ignition-inputs"] != before
	})
	w.bootDPU("dpus", w.namespace+"-dpu-3")

	w.must(env.Client.Delete(context.Background(), w.getBridge(b)))
	w.eventually("the template is deleted", func() bool { return w.getTemplate("dpus") == nil })
}

// TestTemplateOfOthers checks that a template of another owner is not changed and that the status
// reports it.
func TestTemplateOfOthers(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	w.createDPUCluster("others", hypershift.PhaseReady)
	w.createFlavor("flavor")

	theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.dpuNamespace, Name: "bfcfg-others.cfg"}, Data: map[string]string{"BF_CFG_TEMPLATE": "theirs"}}
	w.create(theirs)

	b := w.newBridge("others")
	b.Spec.DPUIgnition = &v1alpha1.DPUIgnition{FlavorName: "flavor", MachineOSURL: machineOS}
	w.create(b)
	w.waitForCondition(b, v1alpha1.ConditionIgnitionConfigured, "False InUse", "does not belong to this bridge")
	w.waitForPhase(b, v1alpha1.PhaseFailed)

	w.must(env.Client.Delete(t.Context(), w.getBridge(b)))
	w.eventually("the bridge is deleted", func() bool { return w.getBridge(b).Name == "" })

	if got := w.getTemplate("others"); got == nil || got.Data["BF_CFG_TEMPLATE"] != "theirs" {
		t.Errorf("their template is %v", got)
	}
}
