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

// racks is a kind of host of which the configuration alone is known.
type racks struct {
	machine.Kind

	hash string
}

func (racks) Name() string               { return "LinuxMachine" }
func (racks) New() machine.Object        { return &v1alpha1.LinuxMachine{} }
func (racks) NewList() client.ObjectList { return &v1alpha1.LinuxMachineList{} }
func (k racks) Hash() string             { return k.hash }
func (racks) FleetName(host machine.Object) string {
	m, _ := host.(*v1alpha1.LinuxMachine)

	return m.Spec.FleetName
}
func (racks) HostKeys(machine.Object) machine.HostKeys { return machine.HostKeys{AcceptNew: true} }
func (racks) Like(host machine.Object) machine.Object {
	m, _ := host.(*v1alpha1.LinuxMachine)

	return &v1alpha1.LinuxMachine{Spec: m.Spec}
}

// fleetWorld is a fleet alone, whose hosts the test plays.
type fleetWorld struct {
	*world

	recorder *events.FakeRecorder
	// live is what the controller reads past its cache.
	live client.Reader
}

func newFleetWorld(t *testing.T, spec v1alpha1.HostFleetSpec, hosts ...string) *fleetWorld {
	t.Helper()
	t.Parallel()

	w := &fleetWorld{world: &world{t: t, namespace: env.Namespace(t)}, recorder: events.NewFakeRecorder(100), live: env.Client}
	env.Create(t, &v1alpha1.HostFleet{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "racks"}, Spec: spec})

	for _, name := range hosts {
		key := v1alpha1.LocalSecretKeySelector{Name: "none", Key: "key"}
		env.Create(t, &v1alpha1.LinuxMachine{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
			Spec: v1alpha1.LinuxMachineSpec{
				FleetName: "racks", Address: "192.0.2.1", SSHKeySecretRef: key, KubeconfigSecretRef: key,
			},
		})
		w.note(name, func(s *v1alpha1.LinuxMachineStatus) { s.Bootstrapped, s.HostConfigHash = true, "old" })
	}

	return w
}

// run runs the controller as the operator does, until the returned function is called.
func (w *fleetWorld) run(hash string) func() {
	w.t.Helper()

	return env.Manage(w.t, w.namespace, func(ctx context.Context, mgr ctrl.Manager) error {
		kind := racks{hash: hash}

		err := mgr.GetFieldIndexer().IndexField(ctx, kind.New(), machine.FleetIndex, func(obj client.Object) []string {
			host, _ := obj.(machine.Object)

			return []string{kind.FleetName(host)}
		})
		if err != nil {
			return err
		}

		return (&fleet.Reconciler{
			Kinds: []machine.Kind{kind}, Client: mgr.GetClient(), Live: w.live, Clock: clock.RealClock{}, Recorder: w.recorder,
			Runner: &step.Runner{Client: mgr.GetClient(), Controller: "hostfleet"},
			Policy: drift.Policy{MaxAttempts: 5, MaxBoots: 5, Base: time.Hour, Cap: time.Hour},
		}).SetupWithManager(mgr)
	})
}

// reaches waits until the fleet is as it should be, and gives it.
func (w *fleetWorld) reaches(what string, done func(*v1alpha1.HostFleet) bool) *v1alpha1.HostFleet {
	w.t.Helper()

	var last *v1alpha1.HostFleet

	w.eventually(what, func() string {
		if last = w.fleet(); done(last) {
			return ""
		}

		return fmt.Sprintf("%+v", last.Status)
	})

	return last
}

// permits tells whether so many hosts may be pushed to, all with this configuration.
func permits(f *v1alpha1.HostFleet, n int, hash string) bool {
	return len(f.Status.Permits) == n && !slices.ContainsFunc(f.Status.Permits, func(p v1alpha1.HostPermit) bool {
		return p.Hash != hash || p.What != string(drift.Update)
	})
}

func rackSpec(most int32) v1alpha1.HostFleetSpec {
	return v1alpha1.HostFleetSpec{
		HostKind: "LinuxMachine", Rollout: v1alpha1.HostRollout{MaxUnavailable: new(intstr.FromInt32(most)), Canary: new(int32(1))},
	}
}

// A configuration that a host refuses goes no further, is told of once, and goes on when a
// person says so.
func TestRefusedConfigurationStops(t *testing.T) {
	w := newFleetWorld(t, rackSpec(1), "a", "b")
	defer w.run("bad")()

	first := w.reaches("the canary's permit", func(f *v1alpha1.HostFleet) bool { return permits(f, 1, "bad") })
	canary := first.Status.Permits[0]
	other := map[string]string{"a": "b", "b": "a"}[canary.Host]

	w.note(canary.Host, func(s *v1alpha1.LinuxMachineStatus) {
		at := metav1.Now().Rfc3339Copy()
		s.LastPermit, s.FailedHostConfigHash, s.LastUpdateFailureTime, s.UpdateAttempts = canary.Number, "bad", &at, 1
	})

	stopped := w.reaches("the stop", func(f *v1alpha1.HostFleet) bool { return f.Status.StoppedHash == "bad" && permits(f, 0, "") })
	kube.Condition(t, stopped.Status.Conditions, v1alpha1.ConditionRolloutStopped, metav1.ConditionTrue, "RolloutStopped", "")

	// It is looked at again, and neither told again nor given to another host.
	w.note(other, func(s *v1alpha1.LinuxMachineStatus) { s.LostParts = []string{"agent"} })
	w.note(other, func(s *v1alpha1.LinuxMachineStatus) { s.LostParts = nil })

	resumed := w.fleet()
	resumed.Spec.ResumedAt = new(metav1.NewTime(time.Now().Add(2 * time.Second)))

	w.must(env.Client.Update(t.Context(), resumed))

	goesOn := w.reaches("the next permit", func(f *v1alpha1.HostFleet) bool { return permits(f, 1, "bad") && f.Status.Permits[0].Host == other })
	kube.Condition(t, goesOn.Status.Conditions, v1alpha1.ConditionRolloutStopped, metav1.ConditionFalse, "GoesOn", "")

	close(w.recorder.Events)

	told := 0
	for event := range w.recorder.Events {
		if strings.Contains(event, "RolloutStopped") {
			told++
		}
	}

	if told != 1 {
		t.Errorf("the stop was told of %d times, want once", told)
	}
}

// Nothing is permitted while a fleet is paused, or where its kind of host is not known.
func TestFleetsThatHoldBack(t *testing.T) {
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

			w := newFleetWorld(t, held, "a")
			defer w.run("new")()

			f := w.reaches("a word on it", func(f *v1alpha1.HostFleet) bool { return len(f.Status.Conditions) > 1 })
			kube.Condition(t, f.Status.Conditions, tc.condition, metav1.ConditionFalse, tc.reason, "")

			if len(f.Status.Permits) > 0 {
				t.Errorf("permits are out: %+v", f.Status.Permits)
			}
		})
	}
}

// slow is an API server in whose first list of hosts somebody is quicker than a pass.
type slow struct {
	client.Reader

	once sync.Once
	then func()
}

func (s *slow) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	s.once.Do(s.then)

	return s.Reader.List(ctx, list, opts...)
}

// A pass that began before the number of hosts was taken away makes none, and gives none back.
func TestReplicasTakenAwayInTheMidstOfAPass(t *testing.T) {
	t.Parallel()

	for name, replicas := range map[string]int32{"one too few": 3, "one too many": 1} {
		t.Run(name, func(t *testing.T) {
			w := newFleetWorld(t, v1alpha1.HostFleetSpec{HostKind: "LinuxMachine", Replicas: new(replicas), TemplateHost: "a"}, "a", "b")
			if replicas == 1 {
				// A fleet gives back what it made, and orders none for a while after that.
				made := &v1alpha1.LinuxMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "b"}}
				w.merge(made, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationMadeByFleet+`":"racks"}}}`)
			}

			w.live = &slow{Reader: env.Client, then: func() {
				w.merge(&v1alpha1.HostFleet{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "racks"}},
					`{"spec":{"replicas":null}}`)
			}}
			defer w.run("new")()

			w.reaches("a look at the fleet without a number", func(f *v1alpha1.HostFleet) bool {
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

// merge changes an object as kubectl patch does.
func (w *fleetWorld) merge(obj client.Object, with string) {
	w.t.Helper()

	if err := env.Client.Patch(w.t.Context(), obj, client.RawPatch(types.MergePatchType, []byte(with))); err != nil {
		w.t.Error(err)
	}
}
