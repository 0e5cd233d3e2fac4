// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// startPool starts a fleet whose pool has this scaling.
func startPool(t *testing.T, scaling v1alpha1.Scaling) *fleet.Fleet {
	t.Helper()

	f := newFastFleet(t, fleet.Options{})
	pool := f.NewPool(0)
	pool.Spec.Scaling = scaling
	createAndStart(f, f.NewTemplate(), pool)

	return f
}

// eventuallyPool waits until done returns true for the pool's status.
func eventuallyPool(f *fleet.Fleet, what string, done func(v1alpha1.RunnerPoolStatus) bool) {
	f.T.Helper()
	f.Eventually(what, func() (bool, string) {
		pool := f.NewPool(0)
		if err := f.Client.Get(f.T.Context(), client.ObjectKeyFromObject(pool), pool); err != nil {
			return false, err.Error()
		}

		pool.Status.Conditions = nil

		return done(pool.Status), fmt.Sprintf("%+v", pool.Status)
	})
}

// scaleToZero sets the pool to zero replicas, and waits until nothing is left.
func scaleToZero(f *fleet.Fleet) {
	f.T.Helper()

	pool := f.NewPool(0)
	updateObject(f, pool, func() {
		pool.Spec.Scaling = v1alpha1.Scaling{MaxReplicas: pool.Spec.Scaling.MaxReplicas, ScaleDownDelay: &metav1.Duration{}}
	})
	f.EventuallyClean()
}

// TestWarmMachinesTakeJobsAndAreReplaced checks that idle runners take jobs, and that the pool replaces them.
func TestWarmMachinesTakeJobsAndAreReplaced(t *testing.T) {
	t.Parallel()

	f := startPool(t, v1alpha1.Scaling{MaxReplicas: 6, Warm: &v1alpha1.Warm{Idle: 2}})
	warm := func(s v1alpha1.RunnerPoolStatus) bool { return s.ReadyReplicas-s.BusyReplicas == 2 && s.Replicas >= 2 }
	eventuallyPool(f, "two runners being ready", warm)

	release := holdJobs(t, f, 2)
	eventuallyPool(f, "two idle runners in addition to two busy ones", func(s v1alpha1.RunnerPoolStatus) bool {
		return s.BusyReplicas == 2 && s.ReadyReplicas == 4
	})
	release()
	f.EventuallyJobsDone(2)
	eventuallyPool(f, "two runners being ready after the jobs", warm)
	scaleToZero(f)
}

// TestMachinesOnStandbyAreStartedForJobs checks that machines on standby have no credential and no cloud-init ISO,
// start for jobs even after a restart of the operator, and are replaced.
func TestMachinesOnStandbyAreStartedForJobs(t *testing.T) {
	t.Parallel()

	f := startPool(t, v1alpha1.Scaling{MaxReplicas: 6, Warm: &v1alpha1.Warm{Stopped: 2}})
	eventuallyPool(f, "two machines on standby", func(s v1alpha1.RunnerPoolStatus) bool { return s.StandbyReplicas == 2 })

	// Machines on standby are not started, and have no credential and no cloud-init ISO.
	if left := strings.Join(f.FindLeftovers(), ", "); strings.Contains(left, "runner ") || strings.Contains(left, "cloud-init ISO ") ||
		strings.Contains(left, "running") || strings.Count(left, "VM ") != 2 {
		t.Errorf("leftovers: %s, want two VMs that are not running", left)
	}

	claims := listClaims(f)
	for i := range claims {
		f.EventuallyCondition(&claims[i], v1alpha1.ConditionProvisioned, metav1.ConditionFalse, "Standby")
	}

	// A restarted operator continues with the same machines.
	f.Stop()
	f.Start()

	queueJobs(f, 2)
	f.EventuallyJobsDone(2)

	for _, claim := range claims {
		f.EventuallyEvent("Activated MachineClaim/" + claim.Name + ":")
	}

	eventuallyPool(f, "two new machines on standby", func(s v1alpha1.RunnerPoolStatus) bool {
		return s.StandbyReplicas == 2 && s.Replicas == 0
	})

	if made := f.CountClones(); made != 4 {
		t.Errorf("%d VMs were created for 2 jobs and 2 on standby, want 4", made)
	}

	scaleToZero(f)
}

// TestTemplateChangeReplacesIdleMachines checks that a changed template replaces idle machines at once, and busy
// machines after their job.
func TestTemplateChangeReplacesIdleMachines(t *testing.T) {
	t.Parallel()

	f := startPool(t, v1alpha1.Scaling{MinReplicas: 2, MaxReplicas: 4})
	eventuallyPool(f, "two runners being ready", func(s v1alpha1.RunnerPoolStatus) bool { return s.ReadyReplicas == 2 })

	release := holdJobs(t, f, 1)
	eventuallyPool(f, "one being busy", func(s v1alpha1.RunnerPoolStatus) bool { return s.BusyReplicas == 1 })

	template := f.NewTemplate()
	updateObject(f, template, func() { template.Spec.Resources.CPU = 1 })
	f.EventuallyEvent("TemplateChanged")
	release()
	f.EventuallyJobsDone(1)
	f.Eventually("two machines of the new template", func() (bool, string) {
		cores := map[string]int{}

		for _, vm := range listRunning(f) {
			cores[vm.Config["cores"]]++
		}

		return cores["1"] == 2 && len(cores) == 1, fmt.Sprint(cores)
	})

	if made := f.CountClones(); made != 4 {
		t.Errorf("%d VMs were created, want 2 and their 2 replacements", made)
	}

	scaleToZero(f)
}

// TestNewestTemplateReplacesIdleMachines checks that machines are cloned from a new template as soon as it has the tags,
// without a change of an object, and that a busy machine ends its job first.
func TestNewestTemplateReplacesIdleMachines(t *testing.T) {
	t.Parallel()

	model := fleet.Model()
	model.Templates = slices.Clone(model.Templates)
	model.Templates[0].Config = map[string]string{"tags": "runner", "meta": "creation-qemu=10.1.2,ctime=100"}
	fresh := model.Templates[0]
	fresh.Name, fresh.VMID = "runner-fresh", 9011
	fresh.Config = map[string]string{"tags": "candidate", "meta": "creation-qemu=10.1.2,ctime=200", "keyboard": "de"}
	model.Templates = append(model.Templates, fresh)
	model.ACL = slices.Clone(model.ACL)

	for i := range model.Nodes {
		for _, principal := range []string{pve.DefaultUser, pve.DefaultTokenID} {
			model.ACL = append(model.ACL, pve.ACL{Path: fmt.Sprintf("/vms/%d", 9011+i), Principal: principal, Role: "HyperFleetTemplate"})
		}
	}

	f := newFastFleet(t, fleet.Options{Model: model})
	template, pool := f.NewTemplate(), f.NewPool(0)
	template.Spec.Template.Proxmox = &v1alpha1.ProxmoxTemplate{TemplateTags: []string{"runner"}, Newest: true}
	pool.Spec.Scaling = v1alpha1.Scaling{MinReplicas: 2, MaxReplicas: 4}
	createAndStart(f, template, pool)
	eventuallyPool(f, "two runners being ready", func(s v1alpha1.RunnerPoolStatus) bool { return s.ReadyReplicas == 2 })

	release := holdJobs(t, f, 1)
	eventuallyPool(f, "one being busy", func(s v1alpha1.RunnerPoolStatus) bool { return s.BusyReplicas == 1 })

	for i := range model.Nodes {
		f.PVE.SetTags(9011+i, "runner")
	}

	f.EventuallyEvent("TemplateSelected")
	f.EventuallyEvent("TemplateChanged")
	eventuallyPool(f, "the busy machine remaining", func(s v1alpha1.RunnerPoolStatus) bool { return s.BusyReplicas == 1 })
	release()
	f.EventuallyJobsDone(1)
	f.Eventually("two machines of the new template", func() (bool, string) {
		keyboards := map[string]int{}
		for _, vm := range listRunning(f) {
			keyboards[vm.Config["keyboard"]]++
		}

		return keyboards["de"] == 2 && len(keyboards) == 1, fmt.Sprint(keyboards)
	})

	if made := f.CountClones(); made != 4 {
		t.Errorf("%d VMs were created, want 2 and their 2 replacements", made)
	}

	scaleToZero(f)
}

// TestAnOpenWindowKeepsMachines checks that an open window of a schedule sets the minimum number of machines.
func TestAnOpenWindowKeepsMachines(t *testing.T) {
	t.Parallel()

	// The window is always open, because it is longer than its period.
	f := startPool(t, v1alpha1.Scaling{MaxReplicas: 3, Schedules: []v1alpha1.Schedule{{
		Name: "always", Start: "0 0 * * *", TimeZone: "Europe/Berlin",
		Duration: metav1.Duration{Duration: 49 * time.Hour}, MinReplicas: 2,
	}}})
	eventuallyPool(f, "two runners being ready", func(s v1alpha1.RunnerPoolStatus) bool {
		return s.ReadyReplicas == 2 && s.DesiredReplicas == 2
	})
	scaleToZero(f)
}
