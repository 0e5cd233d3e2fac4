// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// patience is what a Fleet has unless a test says otherwise.
const (
	patience = 3 * time.Minute
	poll     = 50 * time.Millisecond
)

// Eventually waits until done says so; what it says last is in the failure.
func (f *Fleet) Eventually(what string, done func() (bool, string)) {
	f.T.Helper()

	if problem := f.Await(what, done); problem != "" {
		f.T.Fatalf("%s\n%s", problem, f.Describe())
	}
}

// Await is Eventually that says what did not come about, for goroutines that must not
// end the test.
func (f *Fleet) Await(what string, done func() (bool, string)) string {
	most := f.Patience
	if property.Soaking() {
		most *= 5 // eighty lives go on at a time
	}

	deadline := time.Now().Add(most)

	for {
		ok, last := done()
		if ok {
			return ""
		}

		if time.Now().After(deadline) {
			return fmt.Sprintf("%s did not come about: %s", what, last)
		}

		time.Sleep(f.Poll)
	}
}

// EventuallyReady waits until an object is Ready.
func (f *Fleet) EventuallyReady(obj step.Object) {
	f.T.Helper()
	f.EventuallyCondition(obj, step.Ready, metav1.ConditionTrue, "")
}

// EventuallyCondition waits until an object's condition has the status and, if one is
// named, the reason; it gives the message.
func (f *Fleet) EventuallyCondition(obj step.Object, condition string, status metav1.ConditionStatus, reason string) string {
	f.T.Helper()

	var message string

	f.Eventually(fmt.Sprintf("%s of %s being %s %s", condition, obj.GetName(), status, reason), func() (bool, string) {
		if err := f.Client.Get(f.T.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
			return false, err.Error()
		}

		found := meta.FindStatusCondition(*obj.StatusConditions(), condition)
		if found == nil {
			return false, "no such condition"
		}

		message = found.Message

		return found.Status == status && (reason == "" || found.Reason == reason),
			fmt.Sprintf("%s %s: %s", found.Status, found.Reason, found.Message)
	})

	return message
}

// Leftovers says what there still is of this operator's, on all sides.
func (f *Fleet) Leftovers() []string {
	f.T.Helper()

	var out []string

	for _, server := range f.Servers() {
		now := server.Snapshot()

		for _, vm := range now.VMs {
			if !vm.Foreign && !vm.Template && strings.Contains(vm.Config["description"], `"`+f.OperatorUID+`"`) {
				out = append(out, fmt.Sprintf("VM %d %s (%s)", vm.VMID, vm.Name, vm.Status))
			}
		}

		for _, volume := range now.ISOs() {
			out = append(out, strings.TrimSpace("cloud-init ISO "+volume.VolID+" "+volume.Node))
		}
	}

	for _, runner := range f.GitHub.State().Runners {
		out = append(out, "runner "+runner.Name)
	}

	var claims v1alpha1.MachineClaimList
	if err := f.Client.List(f.T.Context(), &claims, client.InNamespace(f.Namespace)); err != nil {
		out = append(out, err.Error())
	}

	for i := range claims.Items {
		out = append(out, fmt.Sprintf("claim %s %s", claims.Items[i].Name, claims.Items[i].Status.Phase))
	}

	return out
}

// VMsMade says how many clones the hypervisor was asked for and made.
func (f *Fleet) VMsMade() int {
	f.T.Helper()

	made := 0

	for _, task := range f.PVE.Snapshot().Tasks {
		if task.Type == "qmclone" && (task.Exit == "OK" || strings.HasPrefix(task.Exit, "WARNINGS")) {
			made++
		}
	}

	return made
}

// EventuallyClean waits until nothing of this operator's is left.
func (f *Fleet) EventuallyClean() {
	f.T.Helper()
	f.Eventually("nothing being left", func() (bool, string) {
		left := f.Leftovers()

		return len(left) == 0, strings.Join(left, ", ")
	})
}

// JobsDone says how many of the forge's jobs were completed with success.
func (f *Fleet) JobsDone() int {
	done := 0

	for _, job := range f.GitHub.State().Jobs {
		if job.Status == "completed" && job.Conclusion == "success" {
			done++
		}
	}

	return done
}

// EventuallyDone waits until so many jobs were completed with success.
func (f *Fleet) EventuallyDone(jobs int) {
	f.T.Helper()
	f.Eventually(fmt.Sprintf("%d jobs being done", jobs), func() (bool, string) {
		done := f.JobsDone()

		return done >= jobs, fmt.Sprintf("%d are", done)
	})
}

// Describe tells the state of the fleet's objects, for failures.
func (f *Fleet) Describe() string {
	var out strings.Builder

	var (
		clusters  v1alpha1.HypervisorClusterList
		templates v1alpha1.HypervisorMachineTemplateList
		pools     v1alpha1.RunnerPoolList
		claims    v1alpha1.MachineClaimList
		jobs      v1alpha1.RunnerJobList
	)

	for _, list := range []client.ObjectList{&clusters, &templates, &pools, &claims, &jobs} {
		if err := f.Client.List(f.T.Context(), list, client.InNamespace(f.Namespace)); err != nil {
			fmt.Fprintln(&out, err)

			continue
		}

		_ = meta.EachListItem(list, func(item runtime.Object) error {
			if obj, ok := item.(step.Object); ok {
				describe(&out, obj)
			}

			return nil
		})
	}

	return out.String()
}

func describe(out *strings.Builder, obj step.Object) {
	fmt.Fprintf(out, "%T %s\n", obj, obj.GetName())

	for _, c := range *obj.StatusConditions() {
		fmt.Fprintf(out, "    %s=%s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
	}
}

// Events gives what was told in the fleet's namespace and of its cluster, whose events are
// where Kubernetes puts those of objects without a namespace.
func (f *Fleet) Events() []string {
	f.T.Helper()

	return append(
		f.events(client.InNamespace(f.Namespace)),
		f.events(client.InNamespace(metav1.NamespaceDefault), client.MatchingFields{"regarding.name": f.Cluster})...)
}

func (f *Fleet) events(where ...client.ListOption) []string {
	f.T.Helper()

	var events eventsv1.EventList
	if err := f.Client.List(f.T.Context(), &events, where...); err != nil {
		f.T.Fatalf("list events: %v", err)
	}

	var out []string

	for i := range events.Items {
		event := &events.Items[i]
		out = append(out, event.Reason+" "+event.Regarding.Kind+"/"+event.Regarding.Name+": "+event.Note)
	}

	return out
}

// EventuallyEvent waits until something was told for a reason; what it was told of may follow.
func (f *Fleet) EventuallyEvent(reason string) {
	f.T.Helper()
	f.Eventually("an event "+reason, func() (bool, string) {
		events := f.Events()

		return slices.ContainsFunc(events, func(e string) bool { return strings.HasPrefix(e, reason+" ") }), strings.Join(events, "\n")
	})
}
