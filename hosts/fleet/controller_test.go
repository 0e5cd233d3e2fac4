// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
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

var env *kube.Env

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	kube.Main(m, func(e *kube.Env) { env = e },
		kube.WithCRDs("../../deploy/crds"), kube.WithScheme(v1alpha1.AddToScheme))
}

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

// world is one fleet, whose hosts the test plays.
type world struct {
	*testing.T

	namespace string
	recorder  *events.FakeRecorder
	// live is what the controller reads past its cache.
	live client.Reader
}

func newWorld(t *testing.T, spec v1alpha1.HostFleetSpec, hosts ...string) *world {
	t.Helper()
	t.Parallel()

	w := &world{T: t, namespace: env.Namespace(t), recorder: events.NewFakeRecorder(100), live: env.Client}
	env.Create(t, &v1alpha1.HostFleet{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "racks"}, Spec: spec})

	for _, name := range hosts {
		key := v1alpha1.LocalSecretKeySelector{Name: "none", Key: "key"}
		env.Create(t, &v1alpha1.LinuxMachine{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
			Spec: v1alpha1.LinuxMachineSpec{
				FleetName: "racks", Address: "192.0.2.1", SSHKeySecretRef: key, KubeconfigSecretRef: key,
			},
		})
		w.change(name, func(s *v1alpha1.HostStatus) { s.Bootstrapped, s.HostConfigHash = true, "old" })
	}

	return w
}

// run runs the controller as the operator does, until the returned function is called.
func (w *world) run(hash string) func() {
	w.Helper()

	return env.Manage(w.T, w.namespace, func(ctx context.Context, mgr ctrl.Manager) error {
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

func (w *world) change(name string, edit func(*v1alpha1.HostStatus)) {
	w.Helper()

	var host v1alpha1.LinuxMachine
	if err := env.Client.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, &host); err != nil {
		w.Fatal(err)
	}

	edit(&host.Status.HostStatus)

	if err := env.Client.Status().Update(w.Context(), &host); err != nil {
		w.Fatal(err)
	}
}

func (w *world) read() *v1alpha1.HostFleet {
	w.Helper()

	var out v1alpha1.HostFleet
	if err := env.Client.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: "racks"}, &out); err != nil {
		w.Fatal(err)
	}

	return &out
}

// reach waits until the fleet is as it should be, and gives it.
func (w *world) reach(what string, done func(*v1alpha1.HostFleet) bool) *v1alpha1.HostFleet {
	w.Helper()

	var last *v1alpha1.HostFleet

	err := wait.PollUntilContextTimeout(w.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		last = w.read()

		return done(last), nil
	})
	if err != nil {
		w.Fatalf("%s: %v: %+v", what, err, last.Status)
	}

	return last
}

// permits tells whether so many hosts may be pushed to, all with this configuration.
func permits(f *v1alpha1.HostFleet, n int, hash string) bool {
	return len(f.Status.Permits) == n && !slices.ContainsFunc(f.Status.Permits, func(p v1alpha1.HostPermit) bool {
		return p.Hash != hash || p.What != string(drift.Update)
	})
}

// took has hosts take what they have a permit for.
func (w *world) took(hash string, permits ...v1alpha1.HostPermit) {
	w.Helper()

	for _, permit := range permits {
		w.change(permit.Host, func(s *v1alpha1.HostStatus) { s.HostConfigHash, s.LastPermit = hash, permit.Number })
	}
}

func spec(most int32) v1alpha1.HostFleetSpec {
	return v1alpha1.HostFleetSpec{
		HostKind: "LinuxMachine", Rollout: v1alpha1.HostRollout{MaxUnavailable: new(intstr.FromInt32(most)), Canary: new(int32(1))},
	}
}

// A configuration goes to the canary alone, then to as many hosts at a time as may be away,
// and permits outlive the program that gave them.
func TestRolloutThroughRestarts(t *testing.T) {
	w := newWorld(t, spec(2), "a", "b", "c", "d")
	stop := w.run("new")

	first := w.reach("the canary's permit", func(f *v1alpha1.HostFleet) bool { return permits(f, 1, "new") })
	kube.Condition(t, first.Status.Conditions, v1alpha1.ConditionRolledOut, metav1.ConditionFalse, "RollingOut", "")
	w.took("new", first.Status.Permits...)

	second := w.reach("two permits", func(f *v1alpha1.HostFleet) bool { return permits(f, 2, "new") })
	stop()

	stop = w.run("new")
	defer stop()

	kept, done := second.Status.Permits[0], second.Status.Permits[1]
	w.took("new", done)

	third := w.reach("the next host's permit", func(f *v1alpha1.HostFleet) bool {
		return permits(f, 2, "new") && !slices.Contains(f.Status.Permits, done)
	})
	if !slices.Contains(third.Status.Permits, kept) {
		t.Errorf("permit %+v was out, and is another one: %+v", kept, third.Status.Permits)
	}

	w.took("new", third.Status.Permits...)

	last := w.reach("the end", func(f *v1alpha1.HostFleet) bool { return f.Status.Converged == 4 && permits(f, 0, "") })
	kube.Condition(t, last.Status.Conditions, v1alpha1.ConditionRolledOut, metav1.ConditionTrue, "Converged", "")

	if last.Status.LastPermit != 4 || last.Status.HostConfigHash != "new" || last.Status.Hosts != 4 || last.Status.Drifted != 0 {
		t.Errorf("status is %+v", last.Status)
	}
}

// A configuration that a host refuses goes no further, is told of once, and goes on when a
// person says so.
func TestRefusedConfigurationStops(t *testing.T) {
	w := newWorld(t, spec(1), "a", "b")
	defer w.run("bad")()

	first := w.reach("the canary's permit", func(f *v1alpha1.HostFleet) bool { return permits(f, 1, "bad") })
	canary := first.Status.Permits[0]
	other := map[string]string{"a": "b", "b": "a"}[canary.Host]

	w.change(canary.Host, func(s *v1alpha1.HostStatus) {
		at := metav1.Now().Rfc3339Copy()
		s.LastPermit, s.FailedHostConfigHash, s.LastUpdateFailureTime, s.UpdateAttempts = canary.Number, "bad", &at, 1
	})

	stopped := w.reach("the stop", func(f *v1alpha1.HostFleet) bool { return f.Status.StoppedHash == "bad" && permits(f, 0, "") })
	kube.Condition(t, stopped.Status.Conditions, v1alpha1.ConditionRolloutStopped, metav1.ConditionTrue, "RolloutStopped", "")

	// It is looked at again, and neither told again nor given to another host.
	w.change(other, func(s *v1alpha1.HostStatus) { s.LostParts = []string{"agent"} })
	w.change(other, func(s *v1alpha1.HostStatus) { s.LostParts = nil })

	resumed := w.read()
	resumed.Spec.ResumedAt = new(metav1.NewTime(time.Now().Add(2 * time.Second)))

	if err := env.Client.Update(t.Context(), resumed); err != nil {
		t.Fatal(err)
	}

	goesOn := w.reach("the next permit", func(f *v1alpha1.HostFleet) bool { return permits(f, 1, "bad") && f.Status.Permits[0].Host == other })
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
			held := spec(2)
			tc.edit(&held)

			w := newWorld(t, held, "a")
			defer w.run("new")()

			f := w.reach("a word on it", func(f *v1alpha1.HostFleet) bool { return len(f.Status.Conditions) > 1 })
			kube.Condition(t, f.Status.Conditions, tc.condition, metav1.ConditionFalse, tc.reason, "")

			if len(f.Status.Permits) > 0 {
				t.Errorf("permits are out: %+v", f.Status.Permits)
			}
		})
	}
}
