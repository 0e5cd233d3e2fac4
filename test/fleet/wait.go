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

// Defaults of Fleet.Timeout and Fleet.PollInterval.
const (
	defaultTimeout      = 3 * time.Minute
	defaultPollInterval = 100 * time.Millisecond
)

// Eventually waits until done returns true. If that takes too long, it fails the test with the last text that
// done has returned.
func (f *Fleet) Eventually(description string, done func() (bool, string)) {
	f.T.Helper()

	if problem := f.Await(description, done); problem != "" {
		f.T.Fatalf("%s\n%s", problem, f.Describe())
	}
}

// Await is Eventually for goroutines that must not end the test. It returns "" when done returns true, or a
// message if that takes too long.
func (f *Fleet) Await(description string, done func() (bool, string)) string {
	timeout := f.Timeout
	if property.IsSoak() {
		timeout *= 5 // eighty lifecycles run at the same time
	}

	deadline := time.Now().Add(timeout)

	for {
		ok, last := done()
		if ok {
			return ""
		}

		if time.Now().After(deadline) {
			return fmt.Sprintf("timed out waiting for %s: %s", description, last)
		}

		time.Sleep(f.PollInterval)
	}
}

// EventuallyReady waits until condition Ready of an object is True.
func (f *Fleet) EventuallyReady(obj step.Object) {
	f.T.Helper()
	f.EventuallyCondition(obj, step.Ready, metav1.ConditionTrue, "")
}

// EventuallyCondition waits until an object's condition has the status, and the reason if it is not empty. It
// returns the condition's message.
func (f *Fleet) EventuallyCondition(obj step.Object, condition string, status metav1.ConditionStatus, reason string) string {
	f.T.Helper()

	var message string

	f.Eventually(fmt.Sprintf("%s of %s being %s %s", condition, obj.GetName(), status, reason), func() (bool, string) {
		if err := f.Client.Get(f.T.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
			return false, err.Error()
		}

		found := meta.FindStatusCondition(*obj.StatusConditions(), condition)
		if found == nil {
			return false, "the object has no such condition"
		}

		message = found.Message

		return found.Status == status && (reason == "" || found.Reason == reason),
			fmt.Sprintf("%s %s: %s", found.Status, found.Reason, found.Message)
	})

	return message
}

// FindLeftovers describes everything that still exists of this operator: VMs, cloud-init ISOs, runners and
// claims.
func (f *Fleet) FindLeftovers() []string {
	f.T.Helper()

	var out []string

	for _, server := range f.Servers() {
		state := server.Snapshot()

		for _, vm := range state.VMs {
			if !vm.Foreign && !vm.Template && strings.Contains(vm.Config["description"], `"`+f.OperatorUID+`"`) {
				out = append(out, fmt.Sprintf("VM %d %s (%s)", vm.VMID, vm.Name, vm.Status))
			}
		}

		for _, volume := range state.ISOs() {
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

// CountClones returns the number of clone tasks of the hypervisor that succeeded.
func (f *Fleet) CountClones() int {
	f.T.Helper()

	clones := 0

	for _, task := range f.PVE.Snapshot().Tasks {
		if task.Type == "qmclone" && (task.Exit == "OK" || strings.HasPrefix(task.Exit, "WARNINGS")) {
			clones++
		}
	}

	return clones
}

// EventuallyClean waits until FindLeftovers finds nothing.
func (f *Fleet) EventuallyClean() {
	f.T.Helper()
	f.Eventually("the deletion of all leftovers", func() (bool, string) {
		leftovers := f.FindLeftovers()

		return len(leftovers) == 0, strings.Join(leftovers, ", ")
	})
}

// CountSuccessfulJobs returns the number of jobs that the CI platform has completed with success.
func (f *Fleet) CountSuccessfulJobs() int {
	done := 0

	for _, job := range f.GitHub.State().Jobs {
		if job.Status == "completed" && job.Conclusion == "success" {
			done++
		}
	}

	return done
}

// EventuallyJobsDone waits until at least so many jobs are completed with success.
func (f *Fleet) EventuallyJobsDone(jobs int) {
	f.T.Helper()
	f.Eventually(fmt.Sprintf("the success of %d jobs", jobs), func() (bool, string) {
		done := f.CountSuccessfulJobs()

		return done >= jobs, fmt.Sprintf("%d jobs have succeeded", done)
	})
}

// Describe returns the conditions of the fleet's objects, for failure messages.
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
				describeObject(&out, obj)
			}

			return nil
		})
	}

	return out.String()
}

func describeObject(out *strings.Builder, obj step.Object) {
	fmt.Fprintf(out, "%T %s\n", obj, obj.GetName())

	for _, c := range *obj.StatusConditions() {
		fmt.Fprintf(out, "    %s=%s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
	}
}

// Events returns the events in the fleet's namespace and those of its HypervisorCluster. Kubernetes stores
// events of cluster-scoped objects in namespace default.
func (f *Fleet) Events() []string {
	f.T.Helper()

	return append(
		f.listEvents(client.InNamespace(f.Namespace)),
		f.listEvents(client.InNamespace(metav1.NamespaceDefault), client.MatchingFields{"regarding.name": f.Cluster})...)
}

func (f *Fleet) listEvents(where ...client.ListOption) []string {
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

// EventuallyEvent waits for an event with a reason. The reason may be followed by the object's kind and name.
func (f *Fleet) EventuallyEvent(reason string) {
	f.T.Helper()
	f.Eventually("an event "+reason, func() (bool, string) {
		events := f.Events()

		return slices.ContainsFunc(events, func(e string) bool { return strings.HasPrefix(e, reason+" ") }), strings.Join(events, "\n")
	})
}
