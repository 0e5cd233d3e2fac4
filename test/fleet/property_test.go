// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/kit/step"
	simgithub "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// Whatever a claim asks for, and whatever becomes of its machine: it lives its life once, and
// leaves nothing. All in one operator's world.
//
// Feature: hyperfleet-operator, Property 6: VM Lifecycle Management
// Feature: hyperfleet-operator, Property 7: Resource Cleanup with Finalizers
// Feature: hyperfleet-operator, Property 8: Retry and Error Handling
// Feature: hyperfleet-operator, Property 18: Observability and Events
// Feature: hyperfleet-operator, Property 27: VM Shutdown Detection and Cleanup
func TestPropertyMachines(t *testing.T) { //nolint:tparallel // its properties share a fleet
	t.Parallel()

	w := newWorld(t, nil)

	t.Run("properties", func(t *testing.T) {
		for name, holds := range map[string]func(*testing.T, *world){
			"lifecycle": lifecycle, "cleanup": cleanup, "retry": retries, "observability": observability, "shutdown": shutdown,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				holds(t, w)
			})
		}
	})
	w.EventuallyClean()
}

// Whatever the specs of clusters, templates and pools say, and whatever they refer to: what
// can be done is done, and what can't be is said. All in one operator's world.
//
// Feature: hyperfleet-operator, Property 1: Hypervisor Connection Management
// Feature: hyperfleet-operator, Property 2: Multi-Hypervisor Support
// Feature: hyperfleet-operator, Property 3: Template Validation and Management
// Feature: hyperfleet-operator, Property 4: Template Reference Resolution
// Feature: hyperfleet-operator, Property 16: Reconciliation Behavior
// Feature: hyperfleet-operator, Property 23: External Secret Integration
// Feature: hyperfleet-operator, Property 25: Provider Selection and Configuration
func TestPropertySpecs(t *testing.T) { //nolint:tparallel // its properties share a fleet
	t.Parallel()

	m := &made{configs: map[string]hypervisor.Config{}}
	w := newWorld(t, func(f *fleet.Fleet) {
		f.Runners.TemplateInterval = 2 * time.Second
		f.Hypervisors = map[string]hypervisor.Factory{"proxmox": m.factory, "other": m.other}
	})
	s := newSites(w, 3)

	t.Run("properties", func(t *testing.T) {
		for name, holds := range map[string]func(*testing.T){
			"connections":      func(t *testing.T) { t.Helper(); connections(t, s) },
			"templates":        func(t *testing.T) { t.Helper(); templates(t, w) },
			"resolution":       func(t *testing.T) { t.Helper(); resolution(t, w) },
			"reconciled":       func(t *testing.T) { t.Helper(); reconciled(t, w) },
			"external secrets": func(t *testing.T) { t.Helper(); externalSecrets(t, w) },
			"provider":         func(t *testing.T) { t.Helper(); provider(t, w, m) },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				holds(t)
			})
		}
	})

	if m.misled.Load() {
		t.Error("the provider of another name was chosen")
	}

	w.EventuallyClean()
}

// lives are how a property is tried whose runs take a second each: side by side.
func lives(brief, workers int) property.Options {
	options := property.Options{Brief: brief}
	options.Workers = min(workers, options.RunCount())

	return options
}

// world is a fleet for the runs of properties.
type world struct {
	*fleet.Fleet

	count atomic.Int64
	mu    sync.Mutex
	// booted is what each machine was when its guest came up, by claim uid; clones are
	// all machines that each claim ever had.
	booted map[string]boot
	clones map[string]map[string]bool
}

type boot struct {
	vm    pve.VMState
	drive map[string][]byte
}

// newWorld starts an operator with one cluster and one template, whose machines run the job.
func newWorld(t *testing.T, change func(*fleet.Fleet)) *world {
	t.Helper()

	w := &world{booted: map[string]boot{}, clones: map[string]map[string]bool{}}
	model := fleet.Model()
	model.Limits.ClonesPerStorage = 0

	// Runs side by side would wait for GitHub's pace of registrations.
	w.Fleet = quick(t, fleet.Options{
		Model: model, GitHub: simgithub.Options{Unlimited: true},
		Guest: func(vm pve.GuestVM, run func(pve.GuestVM)) {
			w.sawBoot(vm)
			run(vm)
		},
	})
	// Many runs look at the same time, and a look costs more than what is looked at.
	w.PollInterval = 100 * time.Millisecond
	w.Runners.ClusterInterval = 2 * time.Second

	if change != nil {
		change(w.Fleet)
	}

	cluster := w.NewCluster()
	manyAtOnce(cluster)
	w.CreateCluster(cluster)
	w.Create(w.NewTemplate())
	w.watch(w.PVE)
	w.Start()
	w.EventuallyReady(w.NewTemplate())

	return w
}

// manyAtOnce lets a cluster make the machines of runs side by side.
func manyAtOnce(cluster *v1alpha1.HypervisorCluster) {
	cluster.Spec.Limits = &v1alpha1.HypervisorLimits{ClonesPerStorage: 16, CallsPerNode: 16}
}

// watch counts the machines that are made on a hypervisor.
func (w *world) watch(server *pve.Server) {
	w.T.Cleanup(server.OnCall(func(c pve.Call) {
		if c.Phase == pve.PhaseAfter && c.VMID != 0 && c.Method != http.MethodGet {
			w.sawMachines(server)
		}
	}))
}

// site is one more cluster, whose machines may do nothing.
func (w *world) site(name string, works bool, model pve.Model) *fleet.Site {
	model.Limits.ClonesPerStorage = 0

	if !works {
		model.Guest.Script = func(vm pve.GuestVM) { <-vm.Context.Done() }
	}

	site := w.NewSite(name, model, manyAtOnce)
	w.watch(site.PVE)
	w.EventuallyReady(site.Cluster)

	return site
}

// name makes a name that no other run has.
func (w *world) name(prefix string) string { return fmt.Sprintf("%s-%d", prefix, w.count.Add(1)) }

func (w *world) sawBoot(vm pve.GuestVM) {
	state, _ := w.PVE.Snapshot().VM(vm.VMID)

	record, err := proxmox.ParseRecord(state.Config["description"])
	if err != nil {
		return
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.booted[record.MachineClaim.UID] = boot{vm: state, drive: vm.Drive}
}

func (w *world) sawMachines(server *pve.Server) {
	state := server.Snapshot()

	w.mu.Lock()
	defer w.mu.Unlock()

	for _, vm := range state.CreatedVMs() {
		record, err := proxmox.ParseRecord(vm.Config["description"])
		if err != nil || vm.Lock == "clone" {
			continue
		}

		uid := record.MachineClaim.UID
		if w.clones[uid] == nil {
			w.clones[uid] = map[string]bool{}
		}

		w.clones[uid][vm.Config["smbios1"]] = true
	}
}

// boot is what the claim's machine was when it came up.
func (w *world) boot(claim *v1alpha1.MachineClaim) (boot, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()

	b, ok := w.booted[string(claim.UID)]

	return b, ok
}

// machines is how many the claim ever had.
func (w *world) machines(claim *v1alpha1.MachineClaim) int {
	w.mu.Lock()
	defer w.mu.Unlock()

	return len(w.clones[string(claim.UID)])
}

// make makes an object and says what was wrong with that.
func (w *world) make(obj client.Object) string {
	if err := w.Client.Create(context.Background(), obj); err != nil {
		return fmt.Sprintf("create %s: %v", obj.GetName(), err)
	}

	return ""
}

// get reads an object anew; false says that it is gone.
func (w *world) get(obj client.Object) (bool, error) {
	err := w.Client.Get(context.Background(), client.ObjectKeyFromObject(obj), obj)
	if apierrors.IsNotFound(err) {
		return false, nil
	}

	return err == nil, err
}

// remove deletes an object.
func (w *world) remove(obj client.Object) string {
	if err := client.IgnoreNotFound(w.Client.Delete(context.Background(), obj)); err != nil {
		return fmt.Sprintf("delete %s: %v", obj.GetName(), err)
	}

	return ""
}

// awaitPhase waits until a claim has got as far as one of the phases, or is gone.
func (w *world) awaitPhase(claim *v1alpha1.MachineClaim, phases ...v1alpha1.MachineClaimPhase) string {
	return w.Await(fmt.Sprintf("%s being %v", claim.Name, phases), func() (bool, string) {
		there, err := w.get(claim)
		if err != nil {
			return false, err.Error()
		}

		return !there || slices.Contains(phases, claim.Status.Phase), state(claim)
	})
}

// awaitGone waits until the object is gone.
func (w *world) awaitGone(obj step.Object) string {
	return w.Await(obj.GetName()+" being gone", func() (bool, string) {
		there, err := w.get(obj)
		if err != nil {
			return false, err.Error()
		}

		return !there, state(obj)
	})
}

// awaitReady waits until an object's Ready says so of its present generation.
func (w *world) awaitReady(obj step.Object, want bool) string {
	return w.Await(fmt.Sprintf("%s being ready=%t", obj.GetName(), want), func() (bool, string) {
		if _, err := w.get(obj); err != nil {
			return false, err.Error()
		}

		ready := meta.FindStatusCondition(*obj.StatusConditions(), step.Ready)

		return ready != nil && (ready.Status == "True") == want && ready.Status != "Unknown" &&
			ready.ObservedGeneration == obj.GetGeneration(), state(obj)
	})
}

// state tells an object's conditions.
func state(obj step.Object) string {
	var out []string

	for _, c := range *obj.StatusConditions() {
		out = append(out, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}

	return strings.Join(out, "; ")
}

// leftOf says what there is of a claim outside the API server.
func (w *world) leftOf(claim *v1alpha1.MachineClaim) string {
	var out []string

	for _, server := range w.Servers() {
		now := server.Snapshot()
		for _, vm := range now.CreatedVMs() {
			if strings.Contains(vm.Config["description"], string(claim.UID)) {
				out = append(out, fmt.Sprintf("VM %d %s", vm.VMID, vm.Status))
			}
		}

		for _, iso := range now.ISOs() {
			if strings.Contains(iso.VolID, string(claim.UID)) {
				out = append(out, iso.VolID)
			}
		}
	}

	for _, runner := range w.GitHub.State().Runners {
		if claim.Status.BootstrapInfo != nil && runner.Name == claim.Status.BootstrapInfo.RunnerName {
			out = append(out, "runner "+runner.Name)
		}
	}

	return strings.Join(out, ", ")
}

// first is the first of the problems.
func first(problems ...func() string) string {
	for _, problem := range problems {
		if text := problem(); text != "" {
			return text
		}
	}

	return ""
}
