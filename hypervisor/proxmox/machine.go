// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// phase is the progress of a machine, as far as this process knows.
type phase int

const (
	// phaseUnknown means that the machine must be inspected first. A new process starts in this phase, and
	// so does a machine after a call with an unknown outcome.
	phaseUnknown phase = iota
	// phaseReserved means that the hypervisor has no VM for the machine.
	phaseReserved
	// phaseCloning means that the clone task runs, or another task that holds the machine's lock.
	phaseCloning
	// phaseCloned means that the clone is complete and ours, and still has the template's options.
	phaseCloned
	// phaseResizing means that the options are written and the task that grows the disk runs.
	phaseResizing
	// phasePrepared means that the options are written without a cloud-init ISO. The machine was never
	// started.
	phasePrepared
	// phaseConfigured means that all options are written. The machine was never started.
	phaseConfigured
	// phaseStarting means that the start task runs.
	phaseStarting
	// phaseRunning means that the machine was started.
	phaseRunning
	// phaseStopped means that the machine was started and has stopped.
	phaseStopped
	// phaseDestroying means that the destroy task runs.
	phaseDestroying
	// phaseDeleted means that the VM is deleted. The cloud-init ISO may still exist.
	phaseDeleted
)

// Locks of VMs without a record: lockClone while the clone runs, and lockDestroyed if nothing but the lock
// is left.
const (
	lockClone     = "clone"
	lockDestroyed = "destroyed"
)

// isoState is the progress of a machine's ISO.
type isoState int

const (
	// isoUnknown means that the storages have to be searched for the ISO.
	isoUnknown isoState = iota
	// isoNone means that no process has uploaded an ISO for the machine.
	isoNone
	isoUploading
	isoReady
	isoDeleting
	isoDeleted
)

// machine is what this process knows of the machine of one claim. The hypervisor is the source of truth,
// and this state only saves calls.
type machine struct {
	// mu is held during each call that concerns the machine.
	mu sync.Mutex

	owner hypervisor.Owner
	id    int
	node  string
	name  string
	phase phase
	// origin is the template and the target storage of the clone.
	origin origin
	// placement holds the node and the resources of the machine until the list shows the machine as
	// running. It is guarded by Provider.mu instead of mu.
	placement placement

	// task is the task that the phase waits for. isTaskAdopted is true if this process found the task and did not
	// start it. In that case the result of the task is inspected.
	task          *task
	isTaskAdopted bool
	// queueKey is the clone queue in which the machine waits or has a slot.
	queueKey  string
	createdAt time.Time
	startedAt time.Time
	mac, ip   string
	// verifiedAt is the time at which the ownership record was last read and verified. stoppedAt is the
	// time at which the machine was last confirmed as stopped, and runningAt the time at which it was last
	// confirmed as running.
	verifiedAt, stoppedAt, runningAt time.Time
	// unknownSince is the time since which the state of the VM is unknown.
	unknownSince   time.Time
	disappearances int
	denials        int
	message        string

	isoState isoState
	isoTask  *task
	volid    string
	// isoNode is the node through which the ISO can be deleted. If it is empty, that is the machine's node.
	isoNode string
	// isoImage is the cloud-init ISO. It is kept until it is uploaded.
	isoImage []byte

	nextAgentQuery time.Time
	isDiskGrown    bool
	// lacksISO is true if the options were written without a cloud-init ISO.
	lacksISO bool
	// isDeleting is true after Delete was called.
	isDeleting bool
}

// origin is the template of a clone and the clone queue of its target storage.
type origin struct {
	template int
	storage  string
}

// placement is what a machine occupies on a node.
type placement struct {
	id     int
	node   string
	memory int64
	// devices are the devices of the node that the machine gets.
	devices deviceCounts
	// needsClone is true until the clone has ended.
	needsClone bool
	// isOnStandby is true if the machine is not to be started yet and occupies no memory.
	isOnStandby bool
	// isAccounted is true if the list accounts for the machine, or if the machine is deleted.
	isAccounted bool
	// isDeleting is true after Delete was called.
	isDeleting bool
}

// ensureMachine returns the entry of a claim's machine. It adds an entry if there is none.
func (p *Provider) ensureMachine(owner hypervisor.Owner, id int, node string) *machine {
	p.mu.Lock()
	defer p.mu.Unlock()

	m, ok := p.machines[owner.UID]
	if !ok {
		m = &machine{owner: owner, id: id, node: node}
		p.machines[owner.UID] = m

		delete(p.deletedAt, sanitizeName(owner.UID))
	}

	return m
}

// dropMachine drops the entry of a deleted machine. The owner stays in knownVMs until the list no longer
// shows the VM (see pruneKnown), so that the VM is not read again in between.
func (p *Provider) dropMachine(m *machine) {
	p.watcher.unwatchMachine(m.owner.UID)
	p.ids.Release(m.id, m.owner.UID)

	p.mu.Lock()
	defer p.mu.Unlock()

	if p.machines[m.owner.UID] == m {
		delete(p.machines, m.owner.UID)
	}
}

// deletionLifetime is how long a deletion is remembered. A caller that deletes the machine again within
// this time has not yet observed the deletion.
const deletionLifetime = time.Minute

// recordDeletion records that nothing of the owner is left.
func (p *Provider) recordDeletion(uid string) {
	now, lifetime := p.clock.Now(), max(deletionLifetime, p.isoListMaxAge())

	p.mu.Lock()
	defer p.mu.Unlock()

	for other, deletedAt := range p.deletedAt {
		if now.Sub(deletedAt) >= lifetime {
			delete(p.deletedAt, other)
		}
	}

	p.deletedAt[sanitizeName(uid)] = now
}

// isRecentlyDeleted reports whether nothing of the owner was left within the last deletionLifetime.
func (p *Provider) isRecentlyDeleted(uid string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	deletedAt, ok := p.deletedAt[sanitizeName(uid)]

	return ok && p.isWithin(deletedAt, deletionLifetime)
}

// isDeletedAfter reports whether a deletion of the owner's machine ended after a time.
func (p *Provider) isDeletedAfter(uid string, t time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	deletedAt, ok := p.deletedAt[sanitizeName(uid)]

	return ok && t.Before(deletedAt)
}

// listLag is how long a deleted machine may still be listed. pvestatd reports machines every ten seconds.
const listLag = 10 * time.Second

// clearDeletion removes the record of a deletion if the owner's machine or cloud-init ISO was listed after
// the deletion. In that case another operator, which did not know yet that it was no longer the leader,
// created the machine again. listedAt is the time at which the machine or the ISO existed.
func (p *Provider) clearDeletion(uid string, listedAt time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if deletedAt, ok := p.deletedAt[sanitizeName(uid)]; ok && !listedAt.Before(deletedAt) {
		delete(p.deletedAt, sanitizeName(uid))
	}
}

func (p *Provider) updatePlacement(m *machine, change func(*placement)) {
	p.mu.Lock()
	defer p.mu.Unlock()

	change(&m.placement)
}

// toMachine returns the machine for the caller.
func (m *machine) toMachine(state hypervisor.State, message string) hypervisor.Machine {
	return hypervisor.Machine{
		ID: m.id, Name: m.name, Node: m.node, Owner: m.owner, State: state,
		CreatedAt: m.createdAt, Cloned: m.phase >= phaseCloned && m.phase < phaseDestroying,
		MAC: m.mac, IP: m.ip, Message: message,
	}
}

// inspect determines the phase of a machine from the hypervisor alone, and sets m.phase.
func (p *Provider) inspect(ctx context.Context, m *machine) error {
	vms, _, err := p.vmCache.get(ctx, p.inspectionMaxAge(m))
	if err != nil {
		return err
	}

	vm, isListed := vms[m.id]
	if !isListed {
		if id, ok, err := p.findByClaim(ctx, vms, m.owner.UID); err != nil {
			return err
		} else if ok {
			vm, isListed = vms[id], true
			m.id = id
		}
	}

	if isListed {
		m.node = vm.Node
	}

	if m.node == "" || !isListed && !p.isClusterMember(ctx, m.node) {
		// The machine is neither listed nor placed, so the node to query is unknown.
		if found, err := p.adoptVMTask(ctx, m); err != nil || found {
			return err
		}

		return p.confirmAbsent(ctx, m)
	}

	config, err := p.readConfig(ctx, m)

	switch {
	case !isListed && (hypervisor.Is(err, hypervisor.NotFound) || hasReason(err, reasonPermissionDenied)):
		return p.inspectHidden(ctx, m)
	case hypervisor.Is(err, hypervisor.NotFound):
		// The list has just shown the machine, so the machine was deleted or migrated since then.
		p.requireInspection(m)

		return p.newBusyError(m, "Moved", "machine %d is no longer on node %s", m.id, m.node)
	case hasReason(err, reasonPermissionDenied): // the machine may have left its pool because it is being destroyed
		return p.inspectDestroy(ctx, m, err)
	case err != nil:
		return err
	}

	return p.evaluateConfig(ctx, m, config)
}

// inspectionMaxAge returns the maximum age of the cached list for an inspection. If a call of this process had
// an unknown outcome, the list must be newer than that call. If another claim uses the same ID, the list must
// be new. Calls of an earlier process need no such limit, because they had ended before this process read its
// first list.
func (p *Provider) inspectionMaxAge(m *machine) time.Duration {
	if p.ids.IsHeldByOther(m.id, m.owner.UID) {
		return 0
	}

	if m.unknownSince.IsZero() {
		return p.watcher.busyListAge
	}

	return max(0, min(p.watcher.busyListAge, p.clock.Since(m.unknownSince)))
}

// requireInspection makes the next step inspect the machine, after its task has ended.
func (p *Provider) requireInspection(m *machine) {
	if !m.task.isPending() {
		m.task = nil
	}

	m.phase, m.verifiedAt, m.unknownSince = phaseUnknown, time.Time{}, p.clock.Now()
}

func (p *Provider) readConfig(ctx context.Context, m *machine) (vmConfig, error) {
	return p.client.readConfig(ctx, m.node, m.id)
}

// evaluateConfig determines the phase of the machine from its configuration.
func (p *Provider) evaluateConfig(ctx context.Context, m *machine, config vmConfig) error {
	if p.isOwn(m, config) {
		if config["lock"] != "" {
			return p.inspectLocked(ctx, m, config["lock"])
		}

		p.recordConfig(m, config)

		if !p.isConfigured(m, config) {
			m.phase = phaseCloned
			if m.lacksISO = p.isPrepared(config); m.lacksISO {
				m.phase = phasePrepared
			}

			return nil
		}

		return p.evaluateStarted(ctx, m)
	}

	if _, err := ParseRecord(config["description"]); err != nil && config["lock"] == lockClone {
		return p.inspectLocked(ctx, m, lockClone)
	}

	if config["lock"] == lockDestroyed {
		return p.inspectDestroy(ctx, m, p.newBusyError(m, "Destroyed", "machine %d on node %s was just destroyed", m.id, m.node))
	}

	return p.rejectID(m, config["name"])
}

// rejectID gives up an ID that belongs to another machine, and returns an IDTaken error.
func (p *Provider) rejectID(m *machine, name string) error {
	p.ids.MarkTaken(m.id, m.owner.UID)

	return hypervisor.Errorf(hypervisor.IDTaken, reasonIDTaken,
		"id %d on node %s belongs to another machine (%s)", m.id, m.node, name)
}

// isOwn reports whether a configuration has this claim's ownership record. If it has, isOwn updates the
// machine from the record and sets verifiedAt.
func (p *Provider) isOwn(m *machine, config vmConfig) bool {
	record, err := ParseRecord(config["description"])
	if err != nil || !p.id.owns(record, m.id) || record.MachineClaim.UID != m.owner.UID {
		return false
	}

	m.verifiedAt = p.clock.Now()
	m.createdAt = record.CreatedAt
	m.owner = record.Owner()
	const isOwn = true

	p.cacheVM(m.id, config, record, isOwn)

	return true
}

// recordConfig copies the name, the MAC address and the ISO from the configuration.
func (p *Provider) recordConfig(m *machine, config vmConfig) {
	m.name, m.mac = config["name"], parseMAC(config["net0"])

	for name, option := range config {
		if diskSlotPattern.MatchString(name) && p.isOwnISO(m, option) {
			m.volid = parseVolume(option)
		}
	}
}

// isConfigured reports whether the options of the machine are written. One call sets the operator's tag
// and, with the source nocloud, attaches the ISO.
func (p *Provider) isConfigured(m *machine, config vmConfig) bool {
	return p.isPrepared(config) && (config["cicustom"] != "" || p.hasISO(m, config))
}

// isPrepared reports whether the options of the machine are written. The cloud-init ISO may still be
// missing, and then the machine is on standby.
func (p *Provider) isPrepared(config vmConfig) bool {
	return hasOperatorTag(p.id, config["tags"]) && config["onboot"] != "1"
}

// hasISO reports whether the machine's cloud-init ISO is attached.
func (p *Provider) hasISO(m *machine, config vmConfig) bool {
	for name, option := range config {
		if diskSlotPattern.MatchString(name) && p.isOwnISO(m, option) {
			return true
		}
	}

	return false
}

// configuredPhase returns the phase of a machine whose options are written and whose disk has the right
// size.
func (m *machine) configuredPhase() phase {
	if m.lacksISO {
		return phasePrepared
	}

	return phaseConfigured
}

// evaluateStarted determines whether a configured machine runs, has run, or was never started. The status of
// a machine that has run is the same as that of a machine that was never started, so the node's start tasks of
// the machine decide between these two.
func (p *Provider) evaluateStarted(ctx context.Context, m *machine) error {
	status, err := p.client.readStatus(ctx, m.node, m.id)

	switch {
	case hypervisor.Is(err, hypervisor.NotFound):
		// The machine was deleted or migrated after its configuration was read. It must not be reported as
		// deleted, because it may run on another node, or its cloud-init ISO may still exist.
		p.requireInspection(m)

		return p.newBusyError(m, "Moved", "machine %d is no longer on node %s", m.id, m.node)
	case hasReason(err, reasonPermissionDenied): // the machine may have left its pool because it is being destroyed
		return p.inspectDestroy(ctx, m, err)
	case err != nil:
		return err
	}

	if status.Status == statusRunning {
		p.setRunning(m, p.clock.Now())
		m.runningAt = p.clock.Now() // the status was just read

		return nil
	}

	tasks, err := p.client.listTasksOfVM(ctx, m.node, m.id)
	if err != nil {
		return err
	}

	p.evaluateTasks(m, tasks)

	return nil
}

// evaluateTasks determines from the tasks of an ID on a node, newest first, whether the machine was
// started. Tasks before the latest deletion belong to another machine, because IDs are reused. The order of
// the tasks comes from the node, so that no clocks are compared.
func (p *Provider) evaluateTasks(m *machine, tasks []listedTask) {
	m.phase = phaseConfigured

	for _, t := range tasks {
		switch {
		case t.Type == taskDestroy && t.isDone() && isTaskSuccess(t.Status):
			return
		case t.Type != "qmstart":
		case !t.isDone():
			m.phase, m.task = phaseStarting, p.watcher.watchTask(t.UPID, m.owner, nil)

			return
		case isTaskSuccess(t.Status), isTaskOutcomeUnknown(t.Status):
			m.phase, m.stoppedAt = phaseStopped, p.clock.Now()

			return
		}
	}
}

// setRunning sets the phase to running and starts to watch the machine. It does not set m.runningAt, because
// only a read of the machine's status confirms that the machine runs.
func (p *Provider) setRunning(m *machine, since time.Time) {
	m.phase, m.task = phaseRunning, nil
	m.startedAt = since
	m.nextAgentQuery = since.Add(firstAgentDelay)
	p.updatePlacement(m, func(pl *placement) { pl.needsClone = false })
	p.watcher.watchMachine(m.owner, m.id, since, m.ip == "")
}

func hasReason(err error, reason string) bool {
	e, ok := errors.AsType[*hypervisor.Error](err)

	return ok && e.Reason == reason
}
