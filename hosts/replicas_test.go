// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/mac"
)

// listMacNames returns the names of the Macs that are not being deleted.
func (w *fixture) listMacNames() []string {
	w.t.Helper()

	var list infrav1.ScalewayAppleSiliconMachineList
	w.must(env.Client.List(w.t.Context(), &list, client.InNamespace(w.namespace)))

	var out []string

	for _, m := range list.Items {
		if m.DeletionTimestamp.IsZero() {
			out = append(out, m.Name)
		}
	}

	slices.Sort(out)

	return out
}

// markBooted records for all Macs that they had their first boot, as package machine would.
func (w *fixture) markBooted() {
	w.t.Helper()

	for _, name := range w.listMacNames() {
		m := &infrav1.ScalewayAppleSiliconMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"bootstrapped":true}}`))

		w.must(env.Client.Status().Patch(w.t.Context(), m, patch))
	}
}

// scale sets the number of hosts of the Mac fleet, as kubectl scale does.
func (w *fixture) scale(n int32) {
	w.t.Helper()

	fleet := &infrav1.HostFleet{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "macs"}}
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: n}}

	w.must(env.Client.SubResource("scale").Update(w.t.Context(), fleet, client.WithSubResourceBody(scale)))
}

// waitForReplicas waits until the ReplicasMet condition of the Mac fleet contains a text.
func (w *fixture) waitForReplicas(want string) {
	w.t.Helper()
	w.eventually("ReplicasMet contains "+want, func() string {
		fleet := &infrav1.HostFleet{}
		if err := env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "macs"}, fleet); err != nil {
			return err.Error()
		}

		last := "nothing"
		if c := meta.FindStatusCondition(fleet.Status.Conditions, infrav1.ConditionReplicasMet); c != nil {
			last = fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}

		if strings.Contains(last, want) {
			return ""
		}

		return last + fmt.Sprint(w.listMacNames())
	})
}

// createMacFleet creates a fleet with one Mac.
func (w *fixture) createMacFleet(spec infrav1.HostFleetSpec) {
	w.t.Helper()

	spec.HostKind = mac.Name
	w.create(&infrav1.HostFleet{ObjectMeta: metav1.ObjectMeta{Name: "macs"}, Spec: spec})
	w.create(&infrav1.ScalewayAppleSiliconMachine{
		ObjectMeta: metav1.ObjectMeta{Name: "box"},
		Spec: infrav1.ScalewayAppleSiliconMachineSpec{
			FleetName: "macs", Type: "M2-M", PrivateNetworkVLAN: 7, CredentialsSecretRef: infrav1.ScalewaySecretRef{Name: "scaleway"},
			SSHKeySecretRef: infrav1.LocalSecretKeySelector{Name: "hosts", Key: "key"}, SSHHostKeys: infrav1.SSHHostKeys{SSHHostKeyChecking: infrav1.HostKeyAcceptNew},
		},
	})
}

// A fleet orders missing hosts like its template host, and deletes surplus hosts: the newest first,
// and none that a person created. A restart changes nothing.
func TestFleetReplicas(t *testing.T) {
	t.Parallel()

	w := newFixture(t, 0, infrav1.HostRollout{})
	w.clockOffset = time.Minute // so that a recent host does not delay the next order
	w.createMacFleet(infrav1.HostFleetSpec{
		Replicas: new(int32(3)), TemplateHost: "box", Rollout: infrav1.HostRollout{MaxUnavailable: new(intstr.FromInt32(1))},
	})
	w.startOperator()
	w.waitForReplicas("True Met: 3 hosts, want 3")

	if diff := cmp.Diff([]string{"box", "macs-1", "macs-2"}, w.listMacNames()); diff != "" {
		t.Fatal(diff)
	}

	made := &infrav1.ScalewayAppleSiliconMachine{}
	w.must(env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "macs-1"}, made))

	if made.Spec.Type != "M2-M" || made.Spec.PrivateNetworkVLAN != 0 || made.Annotations[infrav1.AnnotationMadeByFleet] != "macs" {
		t.Errorf("created Mac: %+v, %v", made.Spec, made.Annotations)
	}

	w.scale(4)
	w.waitForReplicas("False HostsBooting: 3 hosts, want 4: 3 wait for their first boot")
	w.stop()
	w.startOperator()
	w.markBooted()
	w.waitForReplicas("True Met: 4 hosts, want 4")
	w.markBooted()
	w.scale(2)
	w.waitForReplicas("True Met: 2 hosts, want 2")

	if diff := cmp.Diff([]string{"box", "macs-1"}, w.listMacNames()); diff != "" {
		t.Error(diff)
	}

	w.scale(0)
	w.waitForReplicas("False HostsCreatedManually: 1 host, want 0")

	if diff := cmp.Diff([]string{"box"}, w.listMacNames()); diff != "" {
		t.Error(diff)
	}

	w.eventually("events", func() string {
		if got := w.eventReasons("macs"); !slices.Contains(got, "HostOrdered") || !slices.Contains(got, "HostReturned") {
			return fmt.Sprint(got)
		}

		return ""
	})
}

// A problem that keeps a fleet from having its number of hosts is reported, and no host is created.
func TestFleetReplicasErrors(t *testing.T) {
	t.Parallel()

	w := newFixture(t, 0, infrav1.HostRollout{})
	w.createMacFleet(infrav1.HostFleetSpec{Replicas: new(int32(2)), TemplateHost: "other", Paused: true})
	w.startOperator()
	w.waitForReplicas("False Paused: 1 host, want 2")

	patch := func(object client.Object, name, with string) {
		object.SetNamespace(w.namespace)
		object.SetName(name)

		w.must(env.Client.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(with))))
	}

	patch(&infrav1.HostFleet{}, "macs", `{"spec":{"paused":false}}`)
	w.waitForReplicas("False TemplateNotFound: 1 host, want 2: templateHost other is not a host of the fleet")
	patch(&infrav1.ScalewayAppleSiliconMachine{}, "box", `{"spec":{"sshHostKeyChecking":null,"sshHostKey":"SHA256:`+strings.Repeat("k", 43)+`"}}`)
	patch(&infrav1.HostFleet{}, "macs", `{"spec":{"templateHost":"box"}}`)
	w.waitForReplicas("False HostKeyUnknown: 1 host, want 2: the host key of a new host would be unknown")

	if diff := cmp.Diff([]string{"box"}, w.listMacNames()); diff != "" {
		t.Error(diff)
	}

	w.createHost("rack")
	w.patchFleet(func(spec *infrav1.HostFleetSpec) { spec.Replicas, spec.TemplateHost = new(int32(2)), "rack" })
	w.eventually("Linux hosts cannot be ordered", func() string {
		if c := meta.FindStatusCondition(w.getFleet().Status.Conditions, infrav1.ConditionReplicasMet); c == nil || c.Reason != "HostsNotOrdered" {
			return c.String()
		}

		return ""
	})
}
