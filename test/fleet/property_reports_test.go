// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

// testReconciliation checks that any change of any kind's spec is reconciled: the status observes the new
// generation, with a reason.
func testReconciliation(t *testing.T, w *fixture) {
	t.Helper()

	site := w.createSite("reconciled", false, fleet.Model())
	pool := w.NewPool(3)
	pool.Spec.TemplateRef.Name = site.Template.Name
	w.Create(pool)

	var count atomic.Int64

	// The kinds take turns, because with random kinds a short run would often leave one out.
	kinds := []string{"cluster", "template", "pool", "claim"}

	property.Check(t, "a change is reconciled", newOptions(6, 1), prop.ForAllNoShrink(func(n int64) string {
		run := count.Add(1) - 1
		kind := kinds[run%int64(len(kinds))]
		n = 21 + n%10 + run/int64(len(kinds))%2*10 // never the current value of the kind, nor a default

		var (
			obj  step.Object
			spec any
		)

		switch kind {
		case "cluster":
			obj, spec = site.Cluster.DeepCopy(), map[string]any{"limits": map[string]any{"clonesPerStorage": n}}
		case "template":
			obj, spec = site.Template.DeepCopy(), map[string]any{"resources": map[string]any{"memory": fmt.Sprintf("%dMi", 512+n)}}
		case "pool":
			obj, spec = pool.DeepCopy(), map[string]any{"scaling": map[string]any{"maxReplicas": n}}
		default:
			return w.checkNewClaim(site)
		}

		return firstProblem(
			func() string { return w.patchSpec(obj, spec) },
			func() string { return w.waitUntilReconciled(obj) },
		)
	}, gen.Int64Range(0, 1000)))
}

// checkNewClaim creates a claim, whose spec is immutable, and waits until it is reconciled.
func (w *fixture) checkNewClaim(site *fleet.Site) string {
	claim := site.NewClaim(w.Fleet, w.newName("made"))

	return firstProblem(
		func() string { return w.create(claim) },
		func() string { return w.waitUntilReconciled(claim) },
		func() string { return w.waitForPhase(claim, v1alpha1.MachineClaimBootstrapping) },
		func() string { return w.delete(claim) },
		func() string { return w.waitForDeletion(claim) },
	)
}

// patchSpec patches the object's spec, and checks that its generation has changed.
func (w *fixture) patchSpec(obj client.Object, spec any) string {
	text, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err.Error()
	}

	before := obj.GetGeneration()
	if err := w.Client.Patch(context.Background(), obj, client.RawPatch(types.MergePatchType, text)); err != nil {
		return err.Error()
	}

	if obj.GetGeneration() == before {
		return fmt.Sprintf("the change %s did not increase the generation", text)
	}

	return ""
}

// waitUntilReconciled waits until the status has observed the object's generation.
func (w *fixture) waitUntilReconciled(obj step.Object) string {
	return w.Await(obj.GetName()+" being reconciled", func() (bool, string) {
		if _, err := w.get(obj); err != nil {
			return false, err.Error()
		}

		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			return false, err.Error()
		}

		ready := meta.FindStatusCondition(*obj.StatusConditions(), step.Ready)
		observed, _, _ := unstructured.NestedInt64(fields, "status", "observedGeneration")
		ok := observed == obj.GetGeneration() && ready != nil && ready.ObservedGeneration == observed && ready.Reason != ""

		return ok, fmt.Sprintf("generation %d, observed %d: %s", obj.GetGeneration(), observed, describeConditions(obj))
	})
}

// ending is how a machine ends after its runner has started.
type ending string

const (
	byJob      ending = "its job is done"
	byPowerOff ending = "it is switched off"
	byLifetime ending = "its lifetime is over"
	byDeletion ending = "its claim is deleted"
)

// expectedEvents returns the reasons of the events that the ending causes.
func (e ending) expectedEvents() []string {
	common := []string{"Destroyed"}

	switch e {
	case byPowerOff:
		return append(common, "VMStopped")
	case byLifetime:
		return append(common, "MaxLifetime")
	default:
		return common
	}
}

// testObservability checks that the end of a machine and each problem create an event for its claim, and that every
// transition of its life changes a metric.
func testObservability(t *testing.T, w *fixture) {
	t.Helper()

	// The endings take turns, because with random endings a short run would often leave one out.
	endings := []ending{byJob, byPowerOff, byLifetime, byDeletion}

	var started, lived atomic.Int64

	life := func(after int64) string {
		how := endings[(started.Add(1)-1)%int64(len(endings))]
		claim := w.NewClaim(w.newName("seen"))
		claim.Spec.WorkloadConfig.Config.GitHub.Labels = []string{claim.Name}

		switch how {
		case byJob:
			w.GitHub.Queue(control.JobSpec{Labels: []string{claim.Name}})
		case byLifetime:
			claim.Spec.Lifecycle = &v1alpha1.Lifecycle{MaxLifetime: &metav1.Duration{Duration: 15 * time.Second}}
		default:
		}

		before := w.countTransitions()

		return firstProblem(
			func() string { return w.create(claim) },
			func() string {
				return w.waitForPhase(claim, v1alpha1.MachineClaimBootstrapping, v1alpha1.MachineClaimReady)
			},
			func() string {
				time.Sleep(time.Duration(after) * time.Millisecond)

				switch how {
				case byDeletion:
					return w.delete(claim)
				case byPowerOff:
					w.powerOff(claim)
				default:
				}

				return ""
			},
			func() string { return w.waitForDeletion(claim) },
			func() string { return w.waitForEvents(claim, how.expectedEvents()) },
			func() string {
				lived.Add(1)

				if now := w.countTransitions(); now <= before {
					return "no metric has changed"
				}

				return ""
			},
		)
	}

	property.Check(t, "events and metrics show each transition", newOptions(5, 16), prop.ForAllNoShrink(life, gen.Int64Range(0, 50)))

	if provisioned := w.countPhase("provisioned"); int64(provisioned) < lived.Load() {
		t.Errorf("%d machines were started, but the metric has %v", lived.Load(), provisioned)
	}

	for _, phase := range []string{"credential", "bootstrapped", "job", "destroyed"} {
		if w.countPhase(phase) == 0 {
			t.Errorf("the metric of phases has no %s", phase)
		}
	}

	if why := w.waitForCounts(); why != "" {
		t.Error(why)
	}
}

// waitForCounts waits until the metrics count as many machines as there are events, and checks that no event of a
// claim was emitted twice.
func (w *fixture) waitForCounts() string {
	once := map[string]func() float64{
		"VMStopped": nil,
		"Destroyed": func() float64 { return w.sumMetric("hyperfleet_machine_ended_total", "") },
	}

	return w.Await("events and metrics agreeing", func() (bool, string) {
		count := map[string]float64{}
		seen := map[string]bool{}

		for _, event := range w.listAllEvents() {
			if _, ok := once[event.Reason]; !ok || event.Regarding.Kind != "MachineClaim" {
				continue
			}

			key := event.Reason + " of " + event.Regarding.Name
			if seen[key] || event.Series != nil {
				return false, key + " was emitted twice"
			}

			seen[key] = true
			count[event.Reason]++
		}

		// A machine is counted at most once at each transition, also if the write that records it is deferred.
		for _, phase := range []string{"provisioned", "bootstrapped"} {
			if counted := w.countPhase(phase); counted > count["Destroyed"] {
				return false, fmt.Sprintf("%v machines %s in the metric, %v destroyed", counted, phase, count["Destroyed"])
			}
		}

		for reason, metric := range once {
			if metric != nil && metric() != count[reason] {
				return false, fmt.Sprintf("%v machines in the metric, %v events %s", metric(), count[reason], reason)
			}
		}

		return true, ""
	})
}

// powerOff powers the claim's machine off.
func (w *fixture) powerOff(claim *v1alpha1.MachineClaim) {
	for _, vm := range w.PVE.Snapshot().CreatedVMs() {
		if claim.Status.VMRef != nil && claim.Status.VMRef.VMID == strconv.Itoa(vm.VMID) {
			w.PVE.PowerOff(vm.VMID)
		}
	}
}

// waitForEvents waits until the claim has events with all of the reasons, each with a message.
func (w *fixture) waitForEvents(claim *v1alpha1.MachineClaim, reasons []string) string {
	return w.Await("the events of "+claim.Name, func() (bool, string) {
		var seen []string

		for _, event := range w.listAllEvents() {
			if event.Regarding.UID == claim.UID && event.Note != "" {
				seen = append(seen, event.Reason)
			}
		}

		for _, reason := range reasons {
			if !slices.Contains(seen, reason) {
				return false, fmt.Sprintf("%v, want all of %v", seen, reasons)
			}
		}

		return true, ""
	})
}

// listAllEvents returns all events of the fixture's namespace, or none if they cannot be read.
func (w *fixture) listAllEvents() []eventsv1.Event {
	var events eventsv1.EventList

	_ = w.Client.List(context.Background(), &events, client.InNamespace(w.Namespace))

	return events.Items
}

// sumMetric returns the sum of a metric over the series with the labels.
func (w *fixture) sumMetric(name, labels string) float64 {
	return scrape.SumOf(w.T, w.Registry, name, labels)
}

// countTransitions returns how many phases and ends of machines are in the metrics.
func (w *fixture) countTransitions() float64 {
	return w.countPhase("") + w.sumMetric("hyperfleet_machine_ended_total", "")
}

// countPhase returns how many machines have gone through a phase, or through any phase if it is "".
func (w *fixture) countPhase(phase string) float64 {
	labels := ""
	if phase != "" {
		labels = fmt.Sprintf("phase=%q", phase)
	}

	return w.sumMetric("hyperfleet_machine_phase_duration_seconds_count", labels)
}
