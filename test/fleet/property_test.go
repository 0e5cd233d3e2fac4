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

// TestPropertyMachines checks that any claim has at most one machine, which goes through its phases once and
// leaves nothing behind, whatever happens to it. All properties share one operator.
//
// Feature: hyperfleet-operator, Property 6: VM Lifecycle Management
// Feature: hyperfleet-operator, Property 7: Resource Cleanup with Finalizers
// Feature: hyperfleet-operator, Property 8: Retry and Error Handling
// Feature: hyperfleet-operator, Property 18: Observability and Events
// Feature: hyperfleet-operator, Property 27: VM Shutdown Detection and Cleanup
func TestPropertyMachines(t *testing.T) { //nolint:tparallel // its properties share a fleet
	t.Parallel()

	w := newFixture(t, nil)

	t.Run("properties", func(t *testing.T) {
		for name, holds := range map[string]func(*testing.T, *fixture){
			"lifecycle": testLifecycle, "cleanup": testCleanup, "retry": testRetries, "observability": testObservability, "shutdown": testShutdown,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				holds(t, w)
			})
		}
	})
	w.EventuallyClean()
}

// TestPropertySpecs checks that valid specs of clusters, templates and pools are reconciled, and that everything
// else is reported. All properties share one operator.
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

	m := &providerRecorder{configs: map[string]hypervisor.Config{}}
	w := newFixture(t, func(f *fleet.Fleet) {
		f.Runners.TemplateInterval = 2 * time.Second
		f.Hypervisors = map[string]hypervisor.Factory{"proxmox": m.newConnection, "other": m.failOther}
	})
	s := newSitePool(w, 3)

	t.Run("properties", func(t *testing.T) {
		for name, holds := range map[string]func(*testing.T){
			"connections":      func(t *testing.T) { t.Helper(); testConnections(t, s) },
			"templates":        func(t *testing.T) { t.Helper(); testTemplates(t, w) },
			"resolution":       func(t *testing.T) { t.Helper(); testResolution(t, w) },
			"reconciled":       func(t *testing.T) { t.Helper(); testReconciliation(t, w) },
			"external secrets": func(t *testing.T) { t.Helper(); testExternalSecrets(t, w) },
			"provider":         func(t *testing.T) { t.Helper(); testProvider(t, w, m) },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				holds(t)
			})
		}
	})

	if m.calledOther.Load() {
		t.Error("the wrong provider was called")
	}

	w.EventuallyClean()
}

// newOptions returns the options of a property whose runs take seconds and therefore run in parallel.
func newOptions(brief, workers int) property.Options {
	options := property.Options{Brief: brief}
	options.Workers = min(workers, options.RunCount())

	return options
}

// fixture is a fleet for the runs of properties.
type fixture struct {
	*fleet.Fleet

	count atomic.Int64
	mu    sync.Mutex
	// booted has the state of each machine at its boot, and clones all machines that each claim has had, both
	// by the UID of the claim.
	booted map[string]bootState
	clones map[string]map[string]bool
}

// bootState is a VM and its cloud-init ISO at the boot of the guest.
type bootState struct {
	vm    pve.VMState
	drive map[string][]byte
}

// newFixture starts an operator with one cluster and one template, whose machines run jobs.
func newFixture(t *testing.T, change func(*fleet.Fleet)) *fixture {
	t.Helper()

	w := &fixture{booted: map[string]bootState{}, clones: map[string]map[string]bool{}}
	model := fleet.Model()
	model.Limits.ClonesPerStorage = 0

	// GitHub's rate limit of registrations would slow down parallel runs.
	w.Fleet = newFastFleet(t, fleet.Options{
		Model: model, GitHub: simgithub.Options{Unlimited: true},
		Guest: func(vm pve.GuestVM, run func(pve.GuestVM)) {
			w.recordBoot(vm)
			run(vm)
		},
	})
	w.Runners.ClusterInterval = 2 * time.Second

	if change != nil {
		change(w.Fleet)
	}

	cluster := w.NewCluster()
	raiseLimits(cluster)
	w.CreateCluster(cluster)
	w.Create(w.NewTemplate())
	w.watchClones(w.PVE)
	w.Start()
	w.EventuallyReady(w.NewTemplate())

	return w
}

// raiseLimits raises a cluster's limits for parallel runs.
func raiseLimits(cluster *v1alpha1.HypervisorCluster) {
	cluster.Spec.Limits = &v1alpha1.HypervisorLimits{ClonesPerStorage: 16, CallsPerNode: 16}
}

// watchClones counts the machines that are created on a hypervisor.
func (w *fixture) watchClones(server *pve.Server) {
	w.T.Cleanup(server.OnCall(func(c pve.Call) {
		if c.Phase == pve.PhaseAfter && c.VMID != 0 && c.Method != http.MethodGet {
			w.recordClones(server)
		}
	}))
}

// createSite adds another cluster. Its machines do nothing unless runsJobs is true.
func (w *fixture) createSite(name string, runsJobs bool, model pve.Model) *fleet.Site {
	model.Limits.ClonesPerStorage = 0

	if !runsJobs {
		model.Guest.Script = func(vm pve.GuestVM) { <-vm.Context.Done() }
	}

	site := w.NewSite(name, model, raiseLimits)
	w.watchClones(site.PVE)
	w.EventuallyReady(site.Cluster)

	return site
}

// newName returns a unique name.
func (w *fixture) newName(prefix string) string { return fmt.Sprintf("%s-%d", prefix, w.count.Add(1)) }

// recordBoot records the state of a VM at its boot.
func (w *fixture) recordBoot(vm pve.GuestVM) {
	state, _ := w.PVE.Snapshot().VM(vm.VMID)

	record, err := proxmox.ParseRecord(state.Config["description"])
	if err != nil {
		return
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.booted[record.MachineClaim.UID] = bootState{vm: state, drive: vm.Drive}
}

// recordClones records the VMs of each claim.
func (w *fixture) recordClones(server *pve.Server) {
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

// getBoot returns the state of the claim's machine at its boot.
func (w *fixture) getBoot(claim *v1alpha1.MachineClaim) (bootState, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()

	b, ok := w.booted[string(claim.UID)]

	return b, ok
}

// countMachines returns how many machines the claim has had.
func (w *fixture) countMachines(claim *v1alpha1.MachineClaim) int {
	w.mu.Lock()
	defer w.mu.Unlock()

	return len(w.clones[string(claim.UID)])
}

// create creates an object, and returns the error as a message.
func (w *fixture) create(obj client.Object) string {
	if err := w.Client.Create(context.Background(), obj); err != nil {
		return fmt.Sprintf("create %s: %v", obj.GetName(), err)
	}

	return ""
}

// get reads an object. It returns false if the object does not exist.
func (w *fixture) get(obj client.Object) (bool, error) {
	err := w.Client.Get(context.Background(), client.ObjectKeyFromObject(obj), obj)
	if apierrors.IsNotFound(err) {
		return false, nil
	}

	return err == nil, err
}

// delete deletes an object, and returns the error as a message.
func (w *fixture) delete(obj client.Object) string {
	if err := client.IgnoreNotFound(w.Client.Delete(context.Background(), obj)); err != nil {
		return fmt.Sprintf("delete %s: %v", obj.GetName(), err)
	}

	return ""
}

// waitForPhase waits until a claim is in one of the phases, or deleted.
func (w *fixture) waitForPhase(claim *v1alpha1.MachineClaim, phases ...v1alpha1.MachineClaimPhase) string {
	return w.Await(fmt.Sprintf("%s being %v", claim.Name, phases), func() (bool, string) {
		there, err := w.get(claim)
		if err != nil {
			return false, err.Error()
		}

		return !there || slices.Contains(phases, claim.Status.Phase), describeConditions(claim)
	})
}

// waitForDeletion waits until the object is deleted.
func (w *fixture) waitForDeletion(obj step.Object) string {
	return w.Await(obj.GetName()+" being deleted", func() (bool, string) {
		there, err := w.get(obj)
		if err != nil {
			return false, err.Error()
		}

		return !there, describeConditions(obj)
	})
}

// waitForReady waits until the Ready condition for the object's current generation is as wanted.
func (w *fixture) waitForReady(obj step.Object, want bool) string {
	return w.Await(fmt.Sprintf("%s being ready=%t", obj.GetName(), want), func() (bool, string) {
		if _, err := w.get(obj); err != nil {
			return false, err.Error()
		}

		ready := meta.FindStatusCondition(*obj.StatusConditions(), step.Ready)

		return ready != nil && (ready.Status == "True") == want && ready.Status != "Unknown" &&
			ready.ObservedGeneration == obj.GetGeneration(), describeConditions(obj)
	})
}

// describeConditions formats the object's conditions.
func describeConditions(obj step.Object) string {
	var out []string

	for _, c := range *obj.StatusConditions() {
		out = append(out, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}

	return strings.Join(out, "; ")
}

// findClaimLeftovers describes what exists of a claim outside the API server.
func (w *fixture) findClaimLeftovers(claim *v1alpha1.MachineClaim) string {
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

// firstProblem calls the functions until one returns a problem, and returns this problem.
func firstProblem(problems ...func() string) string {
	for _, problem := range problems {
		if text := problem(); text != "" {
			return text
		}
	}

	return ""
}
