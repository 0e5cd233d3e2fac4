// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	hcp "github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/sim/hypershift"
)

// refusal is a hosted cluster that HyperShift does not take, and how it comes to take it.
type refusal struct {
	name string
	// options change HyperShift; spoil makes the trouble, before the bridge is made.
	options func(*hypershift.Options)
	spoil   func(w *world, bridge *v1alpha1.DPFHCPBridge)
	// condition of HyperShift's is mirrored with this reason and these words.
	condition, reason, words string
	// blames: HyperShift says that the object is wrong, and not HyperShift itself.
	blames bool
	fix    func(w *world, bridge *v1alpha1.DPFHCPBridge)
}

func refusals() []refusal {
	key := func(w *world, bridge *v1alpha1.DPFHCPBridge) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: hcp.EncryptionKeyName(bridge.Name)}}
	}

	return []refusal{
		{
			name: "a key of etcd's that a person brought back, and not all of it",
			spoil: func(w *world, bridge *v1alpha1.DPFHCPBridge) {
				short := key(w, bridge)
				short.Data = map[string][]byte{hcp.EncryptionKeyKey: []byte("half of the key.")}
				w.create(short)
				w.theirs = append(w.theirs, short.Name)
			},
			condition: v1alpha1.ConditionHostedClusterValidConfiguration, reason: "InvalidConfiguration",
			words: "aescbc key must be 32 bytes long, has 16", blames: true,
			fix: func(w *world, bridge *v1alpha1.DPFHCPBridge) {
				whole := key(w, bridge)
				w.look(whole)
				whole.Data[hcp.EncryptionKeyKey] = bytes.Repeat([]byte("k"), 32)

				if err := env.Client.Update(w.t.Context(), whole); err != nil {
					w.t.Fatal(err)
				}

				w.sim.SetFaults() // HyperShift looks again
			},
		},
		{
			name: "clusters that HyperShift as it is set up does not run",
			spoil: func(w *world, _ *v1alpha1.DPFHCPBridge) {
				w.sim.SetFaults(hypershift.Fault{Kind: hypershift.Unsupported})
			},
			condition: v1alpha1.ConditionHostedClusterSupported, reason: "UnsupportedHostedCluster",
			words: "operator only supports private clusters in region us-east-1",
			fix:   func(w *world, _ *v1alpha1.DPFHCPBridge) { w.sim.SetFaults() },
		},
		{
			name: "a release that HyperShift can't read",
			options: func(o *hypershift.Options) {
				o.Version = func(image string) (string, error) {
					if strings.HasSuffix(image, tag) {
						return "", errors.New("failed to lookup release image: manifest is not a list")
					}

					return "4.16.2", nil
				}
			},
			condition: v1alpha1.ConditionHostedClusterValidReleaseImage, reason: "InvalidImage",
			words: "failed to lookup release image: manifest is not a list", blames: true,
			fix: func(w *world, bridge *v1alpha1.DPFHCPBridge) { w.upgrade(bridge, nextTag) },
		},
	}
}

// What HyperShift refuses has failed, in HyperShift's own words: in the status, in HyperShift's
// condition as the bridge mirrors it, and in an event. Nothing but HyperShift's word on it has
// to change for the bridge to go on, with the HostedCluster that is there.
func TestHyperShiftRefuses(t *testing.T) {
	for _, row := range refusals() {
		t.Run(row.name, func(t *testing.T) {
			var changes []func(*hypershift.Options)
			if row.options != nil {
				changes = append(changes, row.options)
			}

			w := runWorld(t, changes...)

			bridge := w.prepare("dpfhcpbridge-development.yaml")
			if row.spoil != nil {
				row.spoil(w, bridge)
			}

			w.create(bridge)
			w.refused(bridge, row)
			w.sayf("%s: %s", row.name, bridge.Status.Message)

			cluster := object(hypershiftKind("HostedCluster"), bridge.Namespace, bridge.Name)
			w.look(cluster)
			made := cluster.GetUID()

			row.fix(w, bridge)
			w.becomes(bridge, v1alpha1.PhaseReady)
			w.check(bridge, "")
			w.reports(bridge, row.condition, "True AsExpected")

			w.look(cluster)

			if cluster.GetUID() != made {
				t.Error("another HostedCluster was made")
			}

			if row.blames {
				w.sim.Forgive()
			}

			w.sayf("%s: mended, Ready", row.name)
			w.remove(bridge)

			for _, name := range w.theirs {
				if !w.look(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}) {
					t.Errorf("Secret %s was a person's, and went with the bridge", name)
				}
			}
		})
	}
}

// refused waits until a bridge has failed of what HyperShift says.
func (w *world) refused(bridge *v1alpha1.DPFHCPBridge, row refusal) {
	w.t.Helper()
	w.reports(bridge, row.condition, "False "+row.reason)
	w.becomes(bridge, v1alpha1.PhaseFailed)
	w.reports(bridge, v1alpha1.ConditionReady, "False "+v1alpha1.ReasonValidationFailed)

	if mirrored := meta.FindStatusCondition(bridge.Status.Conditions, row.condition); mirrored.Message != row.words {
		w.t.Errorf("%s: %q, want %q", row.condition, mirrored.Message, row.words)
	}

	if want := "HyperShift goes no further"; !strings.HasPrefix(bridge.Status.Message, want) ||
		!strings.HasSuffix(bridge.Status.Message, row.words) {
		w.t.Errorf("the bridge says %q, want %s ... %s", bridge.Status.Message, want, row.words)
	}

	w.eventually("an event has HyperShift's words", func() bool { return w.told(row.words) })

	plane := types.NamespacedName{Namespace: hypershift.ControlPlaneNamespace(bridge.Namespace, bridge.Name), Name: "kube-apiserver"}
	if err := env.Client.Get(w.t.Context(), plane, &corev1.Service{}); !apierrors.IsNotFound(err) {
		w.t.Errorf("HyperShift made a Service of what it refuses: %v", err)
	}
}

// HyperShift gives its user data another token several times a day, and takes the old one no
// longer. The template that DPUs boot with follows, also when it happens while no operator
// runs, and a DPU that boots after it joins.
func TestIgnitionRotates(t *testing.T) {
	w := newWorld(t, nil, func(o *hypershift.Options) { o.Ignition = true })
	way := env.ServiceAccount(t, system, account)
	w.start(way)

	bridge := w.prepare("dpfhcpbridge-development.yaml")
	bridge.Spec.DPUIgnition = &v1alpha1.DPUIgnition{FlavorName: "flavor", MachineOSURL: "quay.io/example/bluefield-os:4.15.0"}

	flavor := object(schema.GroupVersionKind{Group: "provisioning.dpu.nvidia.com", Version: "v1alpha1", Kind: "DPUFlavor"}, w.dpf, "flavor")
	flavor.Object["spec"] = map[string]any{"dpuMode": "dpu"}
	w.create(flavor, bridge)
	w.becomes(bridge, v1alpha1.PhaseReady)
	w.boots(bridge, "first")

	first := w.template(bridge)
	w.sim.RotateIgnition()
	second := w.follows(bridge, first)
	w.boots(bridge, "second")
	w.sayf("ignition rotated: the template follows, a DPU joins")

	w.kill()
	w.sim.RotateIgnition()
	w.start(way)
	w.follows(bridge, second)
	w.becomes(bridge, v1alpha1.PhaseReady)
	w.boots(bridge, "third")
	w.sayf("ignition rotated while no operator ran: the template follows, a DPU joins")

	w.remove(bridge)

	gone := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.dpf, Name: first.Name}}
	w.eventually("the template is gone", func() bool { return !w.look(gone) })
}

// template that the DPUs of a bridge boot with.
func (w *world) template(bridge *v1alpha1.DPFHCPBridge) *corev1.ConfigMap {
	w.t.Helper()

	out := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.dpf, Name: "bfcfg-" + bridge.Spec.DPUClusterRef.Name + ".cfg"}}
	if !w.look(out) {
		w.t.Fatalf("there is no ConfigMap %s/%s", out.Namespace, out.Name)
	}

	return out
}

// follows waits until the template is of other user data than before, and gives it.
func (w *world) follows(bridge *v1alpha1.DPFHCPBridge, before *corev1.ConfigMap) *corev1.ConfigMap {
	w.t.Helper()

	const inputs = "dpf.hcp.bridge.com/ignition-inputs"

	var after *corev1.ConfigMap

	w.eventually("the template follows the rotation", func() bool {
		after = w.template(bridge)

		return after.Annotations[inputs] != before.Annotations[inputs]
	})

	if after.UID != before.UID {
		w.t.Error("another template was made, and not the one that is there kept")
	}

	return after
}

// boots has a DPU boot by the template and join the hosted cluster, which is the management
// cluster here.
func (w *world) boots(bridge *v1alpha1.DPFHCPBridge, dpu string) {
	w.t.Helper()

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-" + dpu}}
	at := types.NamespacedName{Namespace: w.dpf, Name: bridge.Spec.DPUClusterRef.Name}

	system, err := w.sim.BootDPU(w.t.Context(), at, node.Name)
	if err != nil {
		w.t.Fatal(err)
	}

	if system.Image != bridge.Spec.DPUIgnition.MachineOSURL {
		w.t.Errorf("DPU %s was installed with %s", dpu, system.Image)
	}

	if err := env.Client.Delete(w.t.Context(), node); client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	} else if err != nil {
		w.t.Errorf("DPU %s has not joined", dpu)
	}
}
