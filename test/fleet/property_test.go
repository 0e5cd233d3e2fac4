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

	"github.com/leanovate/gopter"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/kit/step"
	simgithub "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// propertyRuns is how often each property is tried.
const propertyRuns = 100

// hold tries a property with so many runs side by side, all in one operator's world. The
// property says what is wrong, or "".
func hold(t *testing.T, name string, workers int, holds gopter.Prop) {
	t.Helper()

	parameters := gopter.DefaultTestParameters()
	parameters.MinSuccessfulTests = propertyRuns
	parameters.Workers = workers
	parameters.MaxShrinkCount = 0 // a run takes a second, and what it takes is small already
	properties := gopter.NewProperties(parameters)
	properties.Property(name, holds)
	properties.TestingRun(t, property.Reporter(t))
}

// world is a fleet for the runs of a property.
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

// newWorld starts an operator with one cluster and one template. guest is what machines
// do; nil is the job.
func newWorld(t *testing.T, guest func(pve.GuestVM), change func(*fleet.Fleet)) *world {
	t.Helper()

	w := &world{booted: map[string]boot{}, clones: map[string]map[string]bool{}}
	if guest == nil {
		guest = fleet.Guest(t)
	}

	model := fleet.Model()
	model.Limits.ClonesPerStorage = 0
	model.Guest.Script = func(vm pve.GuestVM) {
		w.sawBoot(vm)
		guest(vm)
	}

	// A hundred runs side by side would wait for GitHub's pace of registrations.
	w.Fleet = fleet.New(t, env, fleet.Options{Model: model, GitHub: simgithub.Options{Unlimited: true}})
	w.Patience = 2 * time.Minute // lives share the machine with each other, and with other tests
	// Many runs look at the same time, and a look costs more than what is looked at.
	w.Poll = 100 * time.Millisecond
	w.Runners.ClusterInterval = 400 * time.Millisecond

	cluster := w.NewCluster()
	cluster.Spec.Limits = &v1alpha1.HypervisorLimits{ClonesPerStorage: 16, CallsPerNode: 16}

	if change != nil {
		change(w.Fleet)
	}

	w.CreateCluster(cluster)
	w.Create(w.NewTemplate())
	t.Cleanup(w.PVE.OnCall(func(c pve.Call) {
		if c.Phase == pve.After && c.VMID != 0 && c.Method != http.MethodGet {
			w.sawMachines()
		}
	}))
	w.Start()
	w.EventuallyReady(w.NewTemplate())

	return w
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

func (w *world) sawMachines() {
	state := w.PVE.Snapshot()

	w.mu.Lock()
	defer w.mu.Unlock()

	for _, vm := range state.Made() {
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

	now := w.PVE.Snapshot()
	for _, vm := range now.Made() {
		if strings.Contains(vm.Config["description"], string(claim.UID)) {
			out = append(out, fmt.Sprintf("VM %d %s", vm.VMID, vm.Status))
		}
	}

	for _, iso := range now.ISOs() {
		if strings.Contains(iso.VolID, string(claim.UID)) {
			out = append(out, iso.VolID)
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
