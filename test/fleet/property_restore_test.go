// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/kit/property"
	simgithub "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

const (
	// restoresPerHistory is the number of restores in one history.
	restoresPerHistory = 4
	// maxHeldJobs is the number of jobs that run during restores.
	maxHeldJobs = 2
)

// TestPropertyRunnerRestores checks that whatever is restored, in whatever order, no machine, address or job is given out
// twice, all jobs succeed, nobody's VM is changed, and the statuses are true in the end without a person.
func TestPropertyRunnerRestores(t *testing.T) {
	t.Parallel()

	property.Check(t, "no restore of runners gives anything out twice", property.Options{Runs: 25, Brief: 2, Workers: 5},
		prop.ForAllNoShrink(func(seed uint64) string { return newRunnerHistory(t, seed).run() }, gen.UInt64()))
}

// runnerHistory is a pool that goes through random jobs, restores and restarts.
type runnerHistory struct {
	*fleet.Fleet

	t      *testing.T
	random *rand.Rand
	steps  []string
	// jobs is the number of queued jobs, and releases end those that are held.
	jobs     int
	releases []func()
	// older and olderVMs are a backup of objects and of the hypervisor.
	older    backup
	olderVMs []pve.VMState
	// untouchable has the descriptions of VMs that are nobody's, by their IDs.
	untouchable map[int]string

	mu sync.Mutex
	// running has the address of each running guest by its VM ID, and boots how often the machine of a claim was started.
	running  map[int]string
	boots    map[string]int
	booted   map[string]string
	problems []string
}

func newRunnerHistory(t *testing.T, seed uint64) *runnerHistory {
	t.Helper()

	h := &runnerHistory{
		t: t, random: rand.New(rand.NewPCG(seed, 0)), untouchable: map[int]string{},
		running: map[int]string{}, boots: map[string]int{}, booted: map[string]string{},
	}
	h.Fleet = newFastFleet(t, fleet.Options{
		GitHub: simgithub.Options{Unlimited: true}, Guest: func(vm pve.GuestVM, run func(pve.GuestVM)) {
			h.boot(vm)
			run(vm)
			h.mu.Lock()
			delete(h.running, vm.VMID)
			h.mu.Unlock()
		},
	})
	h.Networking = true

	return h
}

// boot records the start of a guest, and that it has an address or a claim that another one has.
func (h *runnerHistory) boot(vm pve.GuestVM) {
	address := findAddress(string(vm.Drive["network-config"]))
	state, _ := findVM(h.Fleet, vm.VMID)
	record, err := proxmox.ParseRecord(state.Config["description"])

	h.mu.Lock()
	defer h.mu.Unlock()

	if err != nil || record.VMID != vm.VMID {
		h.problems = append(h.problems, fmt.Sprintf("VM %d was started and has no record", vm.VMID))
	}

	for other, used := range h.running {
		if used == address {
			h.problems = append(h.problems, fmt.Sprintf("VM %d was started with %s of VM %d", vm.VMID, address, other))
		}
	}

	h.boots[record.MachineClaim.UID]++
	if n := h.boots[record.MachineClaim.UID]; n > 1 {
		h.problems = append(h.problems, fmt.Sprintf("a machine of claim %s was started %d times", record.MachineClaim.Name, n))
	}

	h.running[vm.VMID], h.booted[record.MachineClaim.UID] = address, address
}

// run runs one history, and returns what is wrong at its end.
func (h *runnerHistory) run() string {
	const maxReplicas = 6

	pool := h.NewPool(maxReplicas)
	pool.Spec.Scaling.MinReplicas = int32(h.random.IntN(3))

	createAndStart(h.Fleet, newPooledTemplate(h.Fleet, newAddressPool("10.9.0.10-10.9.0.29")), pool)
	h.EventuallyReady(pool)
	h.backUp()

	for range restoresPerHistory {
		for range h.random.IntN(3) {
			h.change()
		}

		h.restore()
		h.runJob()
	}

	for _, release := range h.releases {
		release()
	}

	h.EventuallyJobsDone(h.jobs)
	h.Eventually("the statuses being true after "+fmt.Sprint(h.steps), h.isTrue)
	h.finish()

	h.mu.Lock()
	defer h.mu.Unlock()

	if len(h.problems) > 0 {
		return fmt.Sprint(h.problems, h.steps)
	}

	return ""
}

// change makes one random change that is no restore.
func (h *runnerHistory) change() {
	switch h.random.IntN(4) {
	case 0:
		if len(h.releases) < maxHeldJobs {
			h.steps = append(h.steps, "hold a job")
			h.releases = append(h.releases, holdJobs(h.t, h.Fleet, 1))
			h.jobs++
		}
	case 1:
		h.steps = append(h.steps, "back up")
		h.backUp()
	case 2:
		h.steps = append(h.steps, "restart")
		h.Stop()
		h.Start()
	default:
		h.runJob()
	}
}

// runJob runs a job, which shows that the pool works.
func (h *runnerHistory) runJob() {
	h.steps = append(h.steps, "run a job")
	h.jobs++
	queueJobs(h.Fleet, 1)
	h.Eventually("the success of a job after "+fmt.Sprint(h.steps), func() (bool, string) {
		done := h.CountSuccessfulJobs()

		return done >= h.jobs-len(h.releases), h.Describe()
	})
}

func (h *runnerHistory) backUp() {
	h.older, h.olderVMs = takeBackup(h.Fleet), h.PVE.Snapshot().CreatedVMs()
}

// restore restores something. The operator runs meanwhile only if the objects keep their UIDs.
func (h *runnerHistory) restore() {
	kinds := map[string]func(){
		"restore with new UIDs":                      func() { restoreWithNewUIDs(h.Fleet, takeBackup(h.Fleet)) },
		"empty the statuses":                         func() { emptyStatus(h.Fleet, takeBackup(h.Fleet)) },
		"empty the statuses and annotations":         func() { loseAddresses(h.Fleet) },
		"restore the backup of etcd":                 h.restoreOlder,
		"lose a claim":                               h.loseClaim,
		"restore the backup of the hypervisor":       h.restoreVMs,
		"empty the statuses under a live operator":   func() { emptyStatus(h.Fleet, takeBackup(h.Fleet)) },
		"restore the hypervisor under live operator": h.restoreVMs,
	}
	names := slices.Sorted(maps.Keys(kinds))
	name := names[h.random.IntN(len(names))]
	h.steps = append(h.steps, name)

	if isLive := strings.Contains(name, "live"); !isLive {
		h.Stop()
		defer h.Start()
	}

	kinds[name]()
}

// restoreOlder brings objects to the state of the backup, as far as the API server permits it: objects that were created
// since are gone, those that exist have their older status, and those that are gone come back with new UIDs.
func (h *runnerHistory) restoreOlder() {
	current := map[string]client.Object{}
	for _, object := range takeBackup(h.Fleet).objects() {
		current[fmt.Sprintf("%T %s", object, object.GetName())] = object
	}

	for _, object := range h.older.objects() {
		object, _ = object.DeepCopyObject().(client.Object)
		key := fmt.Sprintf("%T %s", object, object.GetName())
		existing := current[key]
		delete(current, key)

		if existing != nil && existing.GetUID() != object.GetUID() {
			continue // it cannot get its old UID again
		}

		status, _ := object.DeepCopyObject().(client.Object)

		if existing == nil {
			object.SetUID("")
			object.SetResourceVersion("")
			object.SetDeletionTimestamp(nil)
			h.Create(object)
			existing = object
		}

		status.SetUID(existing.GetUID())
		status.SetResourceVersion(existing.GetResourceVersion())

		if err := h.Client.Status().Update(h.t.Context(), status); err != nil {
			h.t.Fatal(err)
		}
	}

	for _, object := range current {
		updateObject(h.Fleet, object, func() { object.SetFinalizers(nil) })
		deleteObject(h.Fleet, object)
	}
}

// loseClaim removes a claim whose machine may run.
func (h *runnerHistory) loseClaim() {
	claims := listClaims(h.Fleet)
	if len(claims) == 0 {
		return
	}

	lost := &claims[h.random.IntN(len(claims))]
	updateObject(h.Fleet, lost, func() { lost.SetFinalizers(nil) })
	deleteObject(h.Fleet, lost)
}

// restoreVMs brings back the VMs of the backup: at their own ID if it is free, and as copies at other IDs. It also
// creates a VM without a record.
func (h *runnerHistory) restoreVMs() {
	const foreign, copies = 300_000, 310_000

	for _, vm := range h.olderVMs {
		if _, exists := findVM(h.Fleet, vm.VMID); !exists && h.untouchable[vm.VMID] == "" {
			restoreVM(h.Fleet, vm.VMID, vm.Name, vm.Config["description"])
		}

		if len(h.untouchable) < restoresPerHistory {
			h.restoreUntouchable(copies+len(h.untouchable), vm.Name, vm.Config["description"])
		}
	}

	h.restoreUntouchable(foreign+len(h.untouchable), "accounting", "the accounting server")
}

func (h *runnerHistory) restoreUntouchable(id int, name, description string) {
	restoreVM(h.Fleet, id, name, description)
	h.untouchable[id] = description
}

// isTrue returns whether the statuses of the claims say what is at the hypervisor, and a description.
func (h *runnerHistory) isTrue() (bool, string) {
	claims := map[string]v1alpha1.MachineClaim{}
	for _, claim := range listClaims(h.Fleet) {
		claims[string(claim.UID)] = claim
	}

	owners := map[string]int{}

	for _, vm := range h.PVE.Snapshot().CreatedVMs() {
		record, err := proxmox.ParseRecord(vm.Config["description"])
		if err != nil || record.VMID != vm.VMID {
			continue
		}

		claim, exists := claims[record.MachineClaim.UID]
		if !exists {
			return false, fmt.Sprintf("VM %d belongs to no claim", vm.VMID)
		}

		if other := owners[record.MachineClaim.UID]; other != 0 {
			return false, fmt.Sprintf("VMs %d and %d belong to one claim", vm.VMID, other)
		}

		owners[record.MachineClaim.UID] = vm.VMID

		if claim.Status.VMRef == nil || toInt(claim.Status.VMRef.VMID) != vm.VMID {
			return false, fmt.Sprintf("claim %s has VM %d and says %v", claim.Name, vm.VMID, claim.Status.VMRef)
		}

		h.mu.Lock()
		address := h.booted[record.MachineClaim.UID]
		h.mu.Unlock()

		if info := claim.Status.NetworkInfo; address != "" && (info == nil || !slices.Equal(info.Addresses, []string{address})) {
			return false, fmt.Sprintf("claim %s was started with %s and says %+v", claim.Name, address, info)
		}
	}

	for uid, claim := range claims {
		if isReady := claim.Status.Phase == v1alpha1.MachineClaimReady; isReady && owners[uid] == 0 {
			return false, fmt.Sprintf("claim %s is ready and has no VM", claim.Name)
		}
	}

	return true, ""
}

// finish deletes everything, and checks that all jobs succeeded and that what is nobody's is left.
func (h *runnerHistory) finish() {
	for _, job := range h.GitHub.State().Jobs {
		if job.Conclusion != "success" {
			h.t.Errorf("job %d ended with %s after %v", job.ID, job.Conclusion, h.steps)
		}
	}

	deletePoolAndClaims(h.Fleet)
	h.Eventually("the deletion of everything else after "+fmt.Sprint(h.steps), func() (bool, string) {
		leftovers := slices.DeleteFunc(h.FindLeftovers(), func(text string) bool {
			return slices.ContainsFunc(slices.Collect(maps.Keys(h.untouchable)), func(id int) bool {
				return strings.HasPrefix(text, fmt.Sprintf("VM %d ", id))
			})
		})

		return len(leftovers) == 0, strings.Join(leftovers, ", ")
	})

	for id, description := range h.untouchable {
		if vm, exists := findVM(h.Fleet, id); !exists || strings.TrimSpace(vm.Config["description"]) != strings.TrimSpace(description) {
			h.t.Errorf("VM %d, which is nobody's, was changed or deleted after %v", id, h.steps)
		}
	}

	h.Stop()
}
