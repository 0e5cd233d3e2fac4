// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

func TestMachinesAreSpreadOverTemplates(t *testing.T) {
	t.Parallel()

	w := newPoolWorld(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.Placement = &v1alpha1.Placement{TemplateRefs: []v1alpha1.LocalObjectReference{{Name: "two"}, {Name: "three"}}}
	})
	w.template("two")
	w.queue(4)
	w.pass(0)
	w.count(map[string]int{"one": 2, "two": 2})
	w.condition("TemplateReady", metav1.ConditionTrue, "SomeTemplatesNotReady", `there is no HypervisorMachineTemplate "three"`)

	// The first one's cluster breaks: the pool goes on with the other.
	w.ready(read(w, "", w.namespace+"-one", &v1alpha1.HypervisorCluster{}), metav1.ConditionFalse)
	w.queue(2)
	w.pass(time.Second)
	w.count(map[string]int{"one": 2, "two": 4})
	w.pass(10 * time.Second) // what a pool says anew by the same reason is in no hurry
	w.condition("TemplateReady", metav1.ConditionTrue, "SomeTemplatesNotReady", "is not ready: as the test says")
}

// count makes sure of how many claims are made from each template.
func (w *poolWorld) count(want map[string]int) {
	w.Helper()

	got := map[string]int{}
	for _, claim := range w.claims() {
		got[claim.Spec.TemplateRef.Name]++
	}

	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.Errorf("machines by template: %v, want %v", got, want)
	}
}

func TestPackedMachinesMoveOnWhenAClusterIsFull(t *testing.T) {
	t.Parallel()

	w := newPoolWorld(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.Placement = &v1alpha1.Placement{
			Strategy: v1alpha1.PlacementPack, TemplateRefs: []v1alpha1.LocalObjectReference{{Name: "two"}},
		}
	})
	w.template("two")
	w.queue(3)
	w.pass(0)
	w.count(map[string]int{"one": 3})

	full := func(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
		status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionFalse, Reason: "NoCapacity", Message: "no node has room",
			LastTransitionTime: metav1.NewTime(now.Time),
		}}
	}
	claims := w.claims()
	w.is(&claims[0], full)
	w.is(&claims[1], prepared)
	w.is(&claims[2], prepared)

	// The one that waits is made elsewhere, and so are others for a while.
	w.pass(time.Second)
	w.finishDeletions()
	w.count(map[string]int{"one": 2, "two": 1})
	w.queue(1)
	w.pass(time.Second)
	w.count(map[string]int{"one": 2, "two": 2})

	// Where nothing else has room, it stays where it is.
	for _, claim := range w.claims() {
		if claim.Spec.TemplateRef.Name == "two" {
			w.is(&claim, full)
		}
	}

	w.pass(time.Second)
	w.count(map[string]int{"one": 2, "two": 2})

	// Later the first one is tried again.
	w.pass(2 * time.Minute)
	w.finishDeletions()
	w.count(map[string]int{"one": 4})

	for _, claim := range w.claims() {
		if claim.Spec.Placement != v1alpha1.PlacementPack {
			t.Errorf("claim %s is placed by %q", claim.Name, claim.Spec.Placement)
		}
	}
}

func TestAChangedTemplateReplacesWhatHasNoJob(t *testing.T) {
	t.Parallel()

	w := newPoolWorld(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.Scaling = v1alpha1.Scaling{MinReplicas: 6, MaxReplicas: 20, Warm: &v1alpha1.Warm{Stopped: 2}}
	})
	w.pass(0)

	old := map[string]bool{}
	claims := w.want(6, 2)
	runs := ""

	for i := range claims {
		old[claims[i].Name] = true

		switch {
		case claims[i].Spec.Standby:
			w.is(&claims[i], prepared)
		case runs == "":
			runs = claims[i].Name
			w.is(&claims[i], busy)
		default:
			w.is(&claims[i], idle)
		}
	}

	w.pass(time.Second)
	w.want(6, 2)

	template := read(w, w.namespace, "one", &v1alpha1.HypervisorMachineTemplate{})
	template.Spec.Resources.CPU = 4

	if err := env.Client.Update(t.Context(), template); err != nil {
		t.Fatal(err)
	}

	left := func() int {
		n := 0

		for _, claim := range w.claims() {
			if old[claim.Name] {
				n++
			}
		}

		return n
	}

	for want := 6; want >= 2; want -= 2 {
		w.pass(time.Second)

		if got := left(); got != want {
			t.Errorf("%d machines of the old template are left, want %d", got, want)
		}

		// Until the next ones are up, no more go.
		w.pass(time.Second)

		if got := left(); got != want {
			t.Errorf("%d of the old template are left while new ones start, want %d", got, want)
		}

		w.finishDeletions()
		w.pass(time.Second)

		for _, claim := range w.claims() {
			switch {
			case old[claim.Name]:
			case claim.Spec.Standby:
				w.is(&claim, prepared)
			default:
				w.is(&claim, idle)
			}
		}
	}

	w.pass(time.Second)
	w.finishDeletions()

	if claims := w.claims(); left() != 1 || !slices.ContainsFunc(claims, func(c v1alpha1.MachineClaim) bool { return c.Name == runs }) {
		t.Errorf("%d of the old template are left, want the busy one %s", left(), runs)
	}
}

func TestLimitsOfAPool(t *testing.T) {
	t.Parallel()

	minute := &metav1.Duration{Duration: time.Minute}
	cases := map[string]struct {
		change func(*v1alpha1.RunnerPoolSpec)
		state  func(*v1alpha1.MachineClaimStatus, *metav1.MicroTime)
		// kept right before the limit, gone after it.
		before, after time.Duration
		replaced      bool
	}{
		"scaleDownDelay": {
			change: func(s *v1alpha1.RunnerPoolSpec) { s.Scaling.MinReplicas, s.Scaling.ScaleDownDelay = 0, minute },
			state:  idle, before: 50 * time.Second, after: 15 * time.Second,
		},
		"idleTimeout replaces one of the minimum": {
			change: func(s *v1alpha1.RunnerPoolSpec) { s.Lifecycle = &v1alpha1.Lifecycle{IdleTimeout: minute} },
			state:  idle, before: 50 * time.Second, after: 15 * time.Second, replaced: true,
		},
		"maxLifetime counts from the creation": {
			change: func(s *v1alpha1.RunnerPoolSpec) { s.Lifecycle = &v1alpha1.Lifecycle{MaxLifetime: minute} },
			state:  prepared, before: 50 * time.Second, after: 15 * time.Second, replaced: true,
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newPoolWorld(t, func(p *v1alpha1.RunnerPool) { p.Spec.Scaling.MinReplicas = 1 })
			w.pass(0)

			first := w.want(1, 0)[0]
			w.is(&first, test.state)
			w.update(test.change)
			w.pass(test.before)

			if claims := w.claims(); len(claims) != 1 || claims[0].Name != first.Name {
				t.Errorf("it went too early: %v", claims)
			}

			w.pass(test.after)
			w.finishDeletions()
			w.pass(0)

			claims := w.claims()
			if slices.ContainsFunc(claims, func(c v1alpha1.MachineClaim) bool { return c.Name == first.Name }) {
				t.Error("it is still there")
			}

			if (len(claims) == 1) != test.replaced {
				t.Errorf("%d machines are left, replaced: %t", len(claims), test.replaced)
			}
		})
	}
}

// A machine that dies on its way gives its job back to the pool at once.
func TestADeadMachineIsReplaced(t *testing.T) {
	t.Parallel()

	w := newPoolWorld(t, nil)
	w.queue(1)
	w.pass(0)

	dead := w.want(1, 0)[0]
	w.is(&dead, died)

	after := w.pass(0).RequeueAfter
	w.condition("Scaling", metav1.ConditionTrue, "BackingOff", "1 machine failed in a row")

	if after <= 0 || after > 2*time.Second {
		t.Errorf("looks again after %s, want the pause after one failure", after)
	}

	w.pass(after)
	w.want(2, 0)
}
