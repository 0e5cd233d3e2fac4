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

// phase is how far a machine is, as far as this process knows.
type phase int

const (
	// phaseUnknown: look first. A new process knows nothing, and a call whose outcome is
	// unknown leads back here.
	phaseUnknown phase = iota
	// phaseReserved: there is nothing on the hypervisor.
	phaseReserved
	// phaseCloning: its clone task runs, or another that holds its lock.
	phaseCloning
	// phaseCloned: it is whole and ours, and still has the template's options.
	phaseCloned
	// phaseResizing: its options are written, the task that grows its disk runs.
	phaseResizing
	// phasePrepared: its options are written but for its cloud-init ISO; it was never started.
	phasePrepared
	// phaseConfigured: its options are written; it was never started.
	phaseConfigured
	// phaseStarting: its start task runs.
	phaseStarting
	// phaseRunning: it was started.
	phaseRunning
	// phaseStopped: it was started and has stopped.
	phaseStopped
	// phaseDestroying: its destroy task runs.
	phaseDestroying
	// phaseGone: it is gone; its cloud-init ISO may not be.
	phaseGone
)

// Locks of machines whose clone runs, and of which nothing is left but the lock. Neither
// has a record yet or any more.
const (
	lockClone     = "clone"
	lockDestroyed = "destroyed"
)

// isoState is how far a machine's ISO is.
type isoState int

const (
	isoUnknown isoState = iota
	isoNone
	isoUploading
	isoReady
	isoDeleting
	isoGone
)

// machine is what this process knows of one claim's machine. The hypervisor is the
// truth; this only saves calls.
type machine struct {
	// mu is held while a call about the machine is under way.
	mu sync.Mutex

	owner hypervisor.Owner
	id    int
	node  string
	name  string
	phase phase
	// at is what it is cloned from and to.
	at origin
	// placed tells, without mu, where the machine will be and what it takes, until the
	// listing shows it running.
	placed placement

	// work is the task that the phase waits for; adopted says that it was found, not
	// begun: what it leaves is looked at.
	work    *task
	adopted bool
	// gate is the storage whose place or turn it has.
	gate    string
	created time.Time
	started time.Time
	mac, ip string
	// verified is when its record was last read and found ours; stopped when its status
	// was last confirmed to be stopped, running likewise.
	verified, stopped, running time.Time
	// invalidatedAt is since when it isn't known what is there.
	invalidatedAt time.Time
	vanished      int
	denials       int
	message       string

	isoState isoState
	isoTask  *task
	volid    string
	// isoAt is the node by which its ISO is reached; empty for that of the machine.
	isoAt string
	// iso is the built cloud-init ISO, kept until it is uploaded.
	iso []byte

	agentNext time.Time
	diskDone  bool
	// held says that its options were written without a cloud-init ISO.
	held bool
	// leaving says that Delete was called.
	leaving bool
}

// origin is the template that a machine is cloned from, and the storage that it goes to.
type origin struct {
	template int
	storage  string
}

// placement is what a machine takes of a node.
type placement struct {
	id     int
	node   string
	memory int64
	// toClone says that its clone has not ended.
	toClone bool
	// held says that it is not to be started yet, and takes no memory.
	held bool
	// done says that the listing accounts for it, or that it is gone.
	done bool
	// leaving says that Delete was called.
	leaving bool
}

// machineOf gives the entry of a claim's machine, making one if needed.
func (p *Provider) machineOf(owner hypervisor.Owner, id int, node string) *machine {
	p.mu.Lock()
	defer p.mu.Unlock()

	m, ok := p.machines[owner.UID]
	if !ok {
		m = &machine{owner: owner, id: id, node: node}
		p.machines[owner.UID] = m

		delete(p.gone, safeName(owner.UID))
	}

	return m
}

// forget drops a machine that is gone for good. Whose it was is kept until the listing
// does not show it any more (prune), so that nobody looks for it in between.
func (p *Provider) forget(m *machine) {
	p.watch.forget(m.owner.UID)
	p.ids.Release(m.id, m.owner.UID)

	p.mu.Lock()
	defer p.mu.Unlock()

	if p.machines[m.owner.UID] == m {
		delete(p.machines, m.owner.UID)
	}
}

// goneFor is how long a removal is remembered. Whoever asks for it again within that time
// has not read the news yet.
const goneFor = time.Minute

// rememberGone keeps that nothing of the owner's is left.
func (p *Provider) rememberGone(uid string) {
	now, kept := p.clock.Now(), max(goneFor, p.isosAge())

	p.mu.Lock()
	defer p.mu.Unlock()

	for old, at := range p.gone {
		if now.Sub(at) >= kept {
			delete(p.gone, old)
		}
	}

	p.gone[safeName(uid)] = now
}

// removed says whether nothing of the owner's was left a moment ago.
func (p *Provider) removed(uid string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	at, ok := p.gone[safeName(uid)]

	return ok && p.since(at, goneFor)
}

// removedSince says whether nothing of the owner's was left at some time after at.
func (p *Provider) removedSince(uid string, at time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	gone, ok := p.gone[safeName(uid)]

	return ok && at.Before(gone)
}

// listingLag is how long after its end a machine may still be listed (pvestatd tells of
// machines every ten seconds).
const listingLag = 10 * time.Second

// recall forgets a removal after which the owner's machine or cloud-init ISO is listed: it was made
// again, by an operator that did not know yet that it leads no more. Listed is when it was
// there.
func (p *Provider) recall(uid string, listed time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if at, ok := p.gone[safeName(uid)]; ok && !listed.Before(at) {
		delete(p.gone, safeName(uid))
	}
}

// note keeps what the machine takes of its node, for placement.
func (p *Provider) note(m *machine, change func(*placement)) {
	p.mu.Lock()
	defer p.mu.Unlock()

	change(&m.placed)
}

// view is the machine for the caller.
func (m *machine) view(state hypervisor.State, message string) hypervisor.Machine {
	return hypervisor.Machine{
		ID: m.id, Name: m.name, Node: m.node, Owner: m.owner, State: state,
		Created: m.created, Cloned: m.phase >= phaseCloned && m.phase < phaseDestroying,
		MAC: m.mac, IP: m.ip, Message: message,
	}
}

// look finds out how far a machine is, from the hypervisor alone. It sets m.phase.
func (p *Provider) look(ctx context.Context, m *machine) error {
	snap, _, err := p.listing.get(ctx, p.lookAge(m))
	if err != nil {
		return err
	}

	found, listed := snap[m.id]
	if !listed {
		if id, ok, err := p.adoptable(ctx, snap, m.owner.UID); err != nil {
			return err
		} else if ok {
			found, listed = snap[id], true
			m.id = id
		}
	}

	if listed {
		m.node = found.Node
	}

	if m.node == "" || !listed && !p.member(ctx, m.node) {
		// Neither listed nor placed: no node could be asked for it.
		if found, err := p.findMaking(ctx, m); err != nil || found {
			return err
		}

		return p.absent(ctx, m)
	}

	config, err := p.readConfig(ctx, m)

	switch {
	case !listed && (hypervisor.Is(err, hypervisor.NotFound) || reasonIs(err, reasonDenied)):
		return p.lookHidden(ctx, m)
	case hypervisor.Is(err, hypervisor.NotFound):
		// Listed a moment ago: it has just gone, or moved to another node.
		p.invalidate(m)

		return p.busy(m, "Moved", "machine %d is no longer on node %s", m.id, m.node)
	case reasonIs(err, reasonDenied):
		return p.findDestroy(ctx, m, err)
	case err != nil:
		return err
	}

	return p.judge(ctx, m, config)
}

// lookAge is how old a listing may be for a look: younger than the call whose outcome is
// unknown, and than what this process made for another claim under the id. What another
// process did was over before this one began.
func (p *Provider) lookAge(m *machine) time.Duration {
	if p.ids.HeldByOther(m.id, m.owner.UID) {
		return 0
	}

	if m.invalidatedAt.IsZero() {
		return p.watch.listBusy
	}

	return max(0, min(p.watch.listBusy, p.clock.Since(m.invalidatedAt)))
}

// invalidate sends the machine back to be looked for.
func (p *Provider) invalidate(m *machine) {
	m.phase, m.verified, m.invalidatedAt = phaseUnknown, time.Time{}, p.clock.Now()
}

// readConfig reads the machine's configuration.
func (p *Provider) readConfig(ctx context.Context, m *machine) (vmConfig, error) {
	return p.client.config(ctx, m.node, m.id)
}

// judge decides from a configuration how far the machine is.
func (p *Provider) judge(ctx context.Context, m *machine, config vmConfig) error {
	if p.mine(m, config) {
		if config["lock"] != "" {
			return p.judgeLocked(ctx, m, config["lock"])
		}

		p.learn(m, config)

		if !p.configured(m, config) {
			m.phase = phaseCloned
			if m.held = p.prepared(config); m.held {
				m.phase = phasePrepared
			}

			return nil
		}

		return p.judgeStarted(ctx, m)
	}

	if _, err := ParseRecord(config["description"]); err != nil && config["lock"] == lockClone {
		return p.judgeLocked(ctx, m, lockClone)
	}

	if config["lock"] == lockDestroyed {
		return p.findDestroy(ctx, m, p.busy(m, "Destroyed", "machine %d on node %s has just been destroyed", m.id, m.node))
	}

	return p.taken(m, config["name"])
}

// taken gives up an id that is another machine's.
func (p *Provider) taken(m *machine, name string) error {
	p.ids.Reject(m.id, m.owner.UID)

	return hypervisor.Errorf(hypervisor.IDTaken, reasonTaken,
		"id %d on node %s belongs to another machine (%s)", m.id, m.node, name)
}

// mine tells whether a configuration carries this claim's record, and notes when.
func (p *Provider) mine(m *machine, config vmConfig) bool {
	record, err := ParseRecord(config["description"])
	if err != nil || !p.id.owns(record, m.id) || record.MachineClaim.UID != m.owner.UID {
		return false
	}

	m.verified = p.clock.Now()
	m.created = record.CreatedAt
	m.owner = record.Owner()
	p.remember(m.id, config, record, true)

	return true
}

// learn takes over what a configuration says.
func (p *Provider) learn(m *machine, config vmConfig) {
	m.name, m.mac = config["name"], macOf(config["net0"])

	for name, option := range config {
		if diskSlot.MatchString(name) && p.ownISO(m, option) {
			m.volid = volumeOf(option)
		}
	}
}

// configured tells whether the config write of this machine has been made: it sets the
// operator's tag and, with nocloud, attaches the ISO, in one call.
func (p *Provider) configured(m *machine, config vmConfig) bool {
	return p.prepared(config) && (config["cicustom"] != "" || p.attached(m, config))
}

// prepared tells whether the config write of this machine has been made, perhaps without
// its cloud-init ISO: then it is held.
func (p *Provider) prepared(config vmConfig) bool {
	return hasOperatorTag(p.id, config["tags"]) && config["onboot"] != "1"
}

// attached tells whether the machine has its cloud-init ISO.
func (p *Provider) attached(m *machine, config vmConfig) bool {
	for name, option := range config {
		if diskSlot.MatchString(name) && p.ownISO(m, option) {
			return true
		}
	}

	return false
}

// made is the phase of a machine whose options were written and whose disk is as wanted.
func (m *machine) made() phase {
	if m.held {
		return phasePrepared
	}

	return phaseConfigured
}

// judgeStarted finds out whether a configured machine runs, has run, or waits for its
// first start. Its status alone can't tell the last two apart: the node's record of
// start tasks does.
func (p *Provider) judgeStarted(ctx context.Context, m *machine) error {
	status, err := p.client.status(ctx, m.node, m.id)

	switch {
	case hypervisor.Is(err, hypervisor.NotFound):
		// It went since its configuration was read; its cloud-init ISO may be there.
		p.invalidate(m)

		return p.busy(m, "Moved", "machine %d is no longer on node %s", m.id, m.node)
	case reasonIs(err, reasonDenied):
		return p.findDestroy(ctx, m, err)
	case err != nil:
		return err
	}

	if status.Status == statusRunning {
		p.setRunning(m, p.clock.Now())
		m.running = p.clock.Now()

		return nil
	}

	tasks, err := p.client.history(ctx, m.node, m.id)
	if err != nil {
		return err
	}

	p.judgeHistory(m, tasks)

	return nil
}

// judgeHistory decides from a node's tasks about an id, newest first, whether the
// machine was started. What lies before the last destruction was another machine: ids
// are reused. The order is the node's own, so that no clocks are compared.
func (p *Provider) judgeHistory(m *machine, tasks []listedTask) {
	m.phase = phaseConfigured

	for _, t := range tasks {
		switch {
		case t.Type == taskDestroy && t.done() && taskSucceeded(t.Status):
			return
		case t.Type != "qmstart":
		case !t.done():
			m.phase, m.work = phaseStarting, p.watch.add(t.UPID, m.owner, nil)

			return
		case taskSucceeded(t.Status), taskLost(t.Status):
			m.phase, m.stopped = phaseStopped, p.clock.Now()

			return
		}
	}
}

// setRunning notes that the machine was started.
func (p *Provider) setRunning(m *machine, since time.Time) {
	m.phase, m.work = phaseRunning, nil
	m.started = since
	m.agentNext = since.Add(agentFirst)
	p.note(m, func(at *placement) { at.toClone = false })
	p.watch.run(m.owner, m.id, since, m.ip == "")
}

// reasonIs tells whether an error carries a reason.
func reasonIs(err error, reason string) bool {
	e, ok := errors.AsType[*hypervisor.Error](err)

	return ok && e.Reason == reason
}
