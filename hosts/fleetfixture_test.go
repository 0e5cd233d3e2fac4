// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/fleet"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// rackKind is a kind of host of which only the catalog is implemented.
type rackKind struct {
	machine.Kind

	hash string
}

func (rackKind) Name() string               { return "LinuxMachine" }
func (rackKind) New() machine.Object        { return &v1alpha1.LinuxMachine{} }
func (rackKind) NewList() client.ObjectList { return &v1alpha1.LinuxMachineList{} }
func (k rackKind) Hash() string             { return k.hash }
func (rackKind) FleetName(host machine.Object) string {
	m, _ := host.(*v1alpha1.LinuxMachine)

	return m.Spec.FleetName
}
func (rackKind) HostKeys(machine.Object) machine.HostKeys { return machine.HostKeys{AcceptNew: true} }
func (rackKind) NewLike(host machine.Object) machine.Object {
	m, _ := host.(*v1alpha1.LinuxMachine)

	return &v1alpha1.LinuxMachine{Spec: m.Spec}
}

// fleetFixture is a fleet without a controller for its hosts. The test sets the status of the
// hosts.
type fleetFixture struct {
	*fixture

	recorder *events.FakeRecorder
	// apiReader is what the controller uses to read from the API server.
	apiReader client.Reader
}

func newFleetFixture(t *testing.T, spec v1alpha1.HostFleetSpec, hosts ...string) *fleetFixture {
	t.Helper()
	t.Parallel()

	w := &fleetFixture{fixture: &fixture{t: t, namespace: env.Namespace(t)}, recorder: events.NewFakeRecorder(100), apiReader: env.Client}
	env.Create(t, &v1alpha1.HostFleet{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "racks"}, Spec: spec})

	for _, name := range hosts {
		key := v1alpha1.LocalSecretKeySelector{Name: "none", Key: "key"}
		env.Create(t, &v1alpha1.LinuxMachine{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
			Spec: v1alpha1.LinuxMachineSpec{
				FleetName: "racks", Address: "192.0.2.1", SSHKeySecretRef: key, KubeconfigSecretRef: key,
			},
		})
		w.patchStatus(name, func(s *v1alpha1.LinuxMachineStatus) { s.Bootstrapped, s.HostConfigHash = true, "old" })
	}

	return w
}

// run runs the controller as the operator does, until the returned function is called.
func (w *fleetFixture) run(hash string) func() {
	w.t.Helper()

	return env.StartManager(w.t, w.namespace, func(ctx context.Context, mgr ctrl.Manager) error {
		kind := rackKind{hash: hash}

		err := mgr.GetFieldIndexer().IndexField(ctx, kind.New(), machine.FleetIndex, func(obj client.Object) []string {
			host, _ := obj.(machine.Object)

			return []string{kind.FleetName(host)}
		})
		if err != nil {
			return err
		}

		return (&fleet.Reconciler{
			Kinds: []machine.Kind{kind}, Client: mgr.GetClient(), APIReader: w.apiReader, Clock: clock.RealClock{}, Recorder: w.recorder,
			Runner: &step.Reconciler{Client: mgr.GetClient(), Controller: "hostfleet"},
			Policy: drift.Policy{MaxAttempts: 5, MaxBootstrapAttempts: 5, BaseBackoff: time.Hour, MaxBackoff: time.Hour},
		}).SetupWithManager(mgr)
	})
}

// waitForFleet waits until done returns true for the fleet, and returns the fleet.
func (w *fleetFixture) waitForFleet(what string, done func(*v1alpha1.HostFleet) bool) *v1alpha1.HostFleet {
	w.t.Helper()

	var last *v1alpha1.HostFleet

	w.eventually(what, func() string {
		if last = w.getFleet(); done(last) {
			return ""
		}

		return fmt.Sprintf("%+v", last.Status)
	})

	return last
}

// hasPermits returns true if the fleet has n permits for updates, all for the hash.
func hasPermits(f *v1alpha1.HostFleet, n int, hash string) bool {
	return len(f.Status.Permits) == n && !slices.ContainsFunc(f.Status.Permits, func(p v1alpha1.HostPermit) bool {
		return p.Hash != hash || p.What != string(drift.Update)
	})
}

func rackSpec(most int32) v1alpha1.HostFleetSpec {
	return v1alpha1.HostFleetSpec{
		HostKind: "LinuxMachine", Rollout: v1alpha1.HostRollout{MaxUnavailable: new(intstr.FromInt32(most)), Canary: new(int32(1))},
	}
}

// The rollout of a refused configuration stops, emits one event, and continues when a person
// resumes the fleet.
func TestRefusedConfigurationStops(t *testing.T) {
	w := newFleetFixture(t, rackSpec(1), "a", "b")
	defer w.run("bad")()

	first := w.waitForFleet("the canary's permit", func(f *v1alpha1.HostFleet) bool { return hasPermits(f, 1, "bad") })
	canary := first.Status.Permits[0]
	other := map[string]string{"a": "b", "b": "a"}[canary.Host]

	w.patchStatus(canary.Host, func(s *v1alpha1.LinuxMachineStatus) {
		at := metav1.Now().Rfc3339Copy()
		s.LastPermit, s.FailedHostConfigHash, s.LastUpdateFailureTime, s.UpdateAttempts = canary.Number, "bad", &at, 1
	})

	stopped := w.waitForFleet("the stopped rollout", func(f *v1alpha1.HostFleet) bool { return f.Status.StoppedHash == "bad" && hasPermits(f, 0, "") })
	kube.CheckCondition(t, stopped.Status.Conditions, v1alpha1.ConditionRolloutStopped, metav1.ConditionTrue, "RolloutStopped", "")

	// Further reconciles neither repeat the event nor grant a permit to another host.
	w.patchStatus(other, func(s *v1alpha1.LinuxMachineStatus) { s.LostParts = []string{"agent"} })
	w.patchStatus(other, func(s *v1alpha1.LinuxMachineStatus) { s.LostParts = nil })

	resumed := w.getFleet()
	resumed.Spec.ResumedAt = new(metav1.NewTime(time.Now().Add(2 * time.Second)))

	w.must(env.Client.Update(t.Context(), resumed))

	goesOn := w.waitForFleet("the next permit", func(f *v1alpha1.HostFleet) bool { return hasPermits(f, 1, "bad") && f.Status.Permits[0].Host == other })
	kube.CheckCondition(t, goesOn.Status.Conditions, v1alpha1.ConditionRolloutStopped, metav1.ConditionFalse, "NotStopped", "")

	close(w.recorder.Events)

	stopEvents := 0
	for event := range w.recorder.Events {
		if strings.Contains(event, "RolloutStopped") {
			stopEvents++
		}
	}

	if stopEvents != 1 {
		t.Errorf("%d events of the stopped rollout, want one", stopEvents)
	}
}

// A fleet grants no permit while it is paused or if its kind of host is unknown.
func TestFleetsWithoutPermits(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		edit              func(*v1alpha1.HostFleetSpec)
		condition, reason string
	}{
		"paused":       {func(s *v1alpha1.HostFleetSpec) { s.Paused = true }, v1alpha1.ConditionRolledOut, "Paused"},
		"unknown kind": {func(s *v1alpha1.HostFleetSpec) { s.HostKind = "Mainframe" }, v1alpha1.ConditionPolicyValid, "UnknownHostKind"},
	} {
		t.Run(name, func(t *testing.T) {
			held := rackSpec(2)
			tc.edit(&held)

			w := newFleetFixture(t, held, "a")
			defer w.run("new")()

			f := w.waitForFleet("its conditions", func(f *v1alpha1.HostFleet) bool { return len(f.Status.Conditions) > 1 })
			kube.CheckCondition(t, f.Status.Conditions, tc.condition, metav1.ConditionFalse, tc.reason, "")

			if len(f.Status.Permits) > 0 {
				t.Errorf("the fleet has permits: %+v", f.Status.Permits)
			}
		})
	}
}

// racingReader changes an object during the first list of hosts of a reconcile.
type racingReader struct {
	client.Reader

	once   sync.Once
	change func()
}

func (s *racingReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	s.once.Do(s.change)

	return s.Reader.List(ctx, list, opts...)
}

// If spec.replicas is removed during a reconcile, the reconcile neither creates nor deletes a host.
func TestReplicasUnsetDuringReconcile(t *testing.T) {
	t.Parallel()

	for name, replicas := range map[string]int32{"one missing": 3, "one surplus": 1} {
		t.Run(name, func(t *testing.T) {
			w := newFleetFixture(t, v1alpha1.HostFleetSpec{HostKind: "LinuxMachine", Replicas: new(replicas), TemplateHost: "a"}, "a", "b")
			if replicas == 1 {
				// A fleet deletes only hosts that it created, and orders no host shortly after it
				// created one.
				made := &v1alpha1.LinuxMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "b"}}
				w.mergePatch(made, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationMadeByFleet+`":"racks"}}}`)
			}

			w.apiReader = &racingReader{Reader: env.Client, change: func() {
				w.mergePatch(&v1alpha1.HostFleet{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "racks"}},
					`{"spec":{"replicas":null}}`)
			}}
			defer w.run("new")()

			w.waitForFleet("a reconcile without spec.replicas", func(f *v1alpha1.HostFleet) bool {
				return f.Spec.Replicas == nil && f.Status.ObservedGeneration == f.Generation
			})

			var list v1alpha1.LinuxMachineList
			if err := env.Client.List(t.Context(), &list, client.InNamespace(w.namespace)); err != nil {
				t.Fatal(err)
			}

			got := map[string]bool{}
			for i := range list.Items {
				got[list.Items[i].Name] = list.Items[i].DeletionTimestamp.IsZero()
			}

			if diff := cmp.Diff(map[string]bool{"a": true, "b": true}, got); diff != "" {
				t.Errorf("hosts (-want +got):\n%s", diff)
			}
		})
	}
}

// mergePatch changes an object, as kubectl patch does.
func (w *fleetFixture) mergePatch(obj client.Object, with string) {
	w.t.Helper()

	if err := env.Client.Patch(w.t.Context(), obj, client.RawPatch(types.MergePatchType, []byte(with))); err != nil {
		w.t.Error(err)
	}
}
