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

// flavor makes a DPUFlavor in the DPUClusters' namespace.
func (w *world) flavor(name string) {
	w.t.Helper()

	object := hypershift.New(hypershift.DPUFlavorKind())
	object.SetNamespace(w.dpus)
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

func (w *world) template(name string) *corev1.ConfigMap {
	w.t.Helper()

	var out corev1.ConfigMap

	err := env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.dpus, Name: "bfcfg-" + name + ".cfg"}, &out)
	if apierrors.IsNotFound(err) {
		return nil
	}

	w.must(err)

	return &out
}

// boots has a DPU boot and join, and gives what it was installed with.
func (w *world) boots(cluster, dpu string) simulator.System {
	w.t.Helper()

	system, err := onStage.sim.BootDPU(w.t.Context(), types.NamespacedName{Namespace: w.dpus, Name: cluster}, dpu)
	w.must(err)

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: dpu}}
	w.must(env.Client.Delete(w.t.Context(), node))

	return system
}

// A DPU boots by the template that the bridge makes, and joins. The template follows the
// release, the image, the flavor and HyperShift's tokens, and goes with the bridge.
func TestDPUsBootAndJoin(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.dpuCluster("dpus", hypershift.PhaseReady)

	b := w.bridge("dpus")
	b.Spec.DPUIgnition = &v1alpha1.DPUIgnition{
		FlavorName: "flavor", MachineOSURL: machineOS, ConfigMapRef: &v1alpha1.LocalObjectReference{Name: "more"},
	}
	w.create(b)
	w.says(b, v1alpha1.ConditionIgnitionConfigured, "False NotFound", "DPUFlavor "+w.dpus+"/flavor is not there")

	w.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "more"}, Data: map[string]string{
		"target.ign": `{"ignition": {"version": "3.4.0"}, "systemd": {"units": [{"name": "dpu-agent.service", "contents": "[Unit]"}]}}`,
		"live.ign":   `{"ignition": {"version": "3.4.0"}, "storage": {"files": [{"path": "/etc/of", "contents": {"source": "data:,{{.DPUUID}}"}}]}}`,
	}})
	w.flavor("flavor")
	w.says(b, v1alpha1.ConditionIgnitionConfigured, "True IgnitionGenerated", "bfcfg-dpus.cfg")
	w.reaches(b, v1alpha1.PhaseReady)

	system := w.boots("dpus", w.namespace+"-dpu-1")
	if system.Image != machineOS || system.Files["/etc/one.conf"] != "one {{.NotForDPF}}\n" ||
		!strings.HasSuffix(system.Files["/etc/kubernetes/kubeconfig"], "# more\n") ||
		system.Files["/usr/local/bin/dpf-ovs-script.sh"] != "ovs-vsctl show\n" || system.Units["dpu-agent.service"] != "[Unit]" ||
		!strings.Contains(system.Files["/etc/dpf/dpuflavor.yaml"], "kind: DPUFlavor") || system.Units["live"] != "hyperfleet-install.service" {
		t.Errorf("installed: image %s, units %v, files %v", system.Image, system.Units, system.Files)
	}

	w.patch(b, func(b *v1alpha1.DPFHCPBridge) {
		b.Spec.OCPReleaseImage, b.Spec.DPUIgnition.MachineOSURL = image("4.16.0-x86_64"), machineOS2
	})
	w.eventually("the template is of the new image", func() bool { return w.boots("dpus", w.namespace+"-dpu-2").Image == machineOS2 })
	w.reaches(b, v1alpha1.PhaseReady)

	before := w.template("dpus").Annotations["dpf.hcp.bridge.com/ignition-inputs"]

	onStage.sim.RotateIgnition()
	w.eventually("the template is made anew after a rotation", func() bool {
		return w.template("dpus").Annotations["dpf.hcp.bridge.com/ignition-inputs"] != before
	})
	w.boots("dpus", w.namespace+"-dpu-3")

	w.must(env.Client.Delete(context.Background(), w.get(b)))
	w.eventually("the template is gone", func() bool { return w.template("dpus") == nil })
}

// A template that is somebody else's is left alone, and told of.
func TestTemplateOfOthers(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.dpuCluster("others", hypershift.PhaseReady)
	w.flavor("flavor")

	theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.dpus, Name: "bfcfg-others.cfg"}, Data: map[string]string{"BF_CFG_TEMPLATE": "theirs"}}
	w.create(theirs)

	b := w.bridge("others")
	b.Spec.DPUIgnition = &v1alpha1.DPUIgnition{FlavorName: "flavor", MachineOSURL: machineOS}
	w.create(b)
	w.says(b, v1alpha1.ConditionIgnitionConfigured, "False InUse", "does not belong to this bridge")
	w.reaches(b, v1alpha1.PhaseFailed)

	w.must(env.Client.Delete(t.Context(), w.get(b)))
	w.eventually("the bridge is gone", func() bool { return w.get(b).Name == "" })

	if got := w.template("others"); got == nil || got.Data["BF_CFG_TEMPLATE"] != "theirs" {
		t.Errorf("their template is %v", got)
	}
}
