// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

const (
	// maxVanished bounds how often a machine that is not where it was made is looked for anew
	// without the caller being told.
	maxVanished = 3
	// maxDenials bounds how often that is done of one that its node alone denies: by the pauses of
	// a claim half a minute.
	maxDenials = 5
	// maxMoves bounds the steps of one call of advance; there are fewer phases.
	maxMoves = 12
)

type seedFunc = func(context.Context) (hypervisor.Seed, error)

// Ensure makes the machine; see hypervisor.Provider.
func (p *Provider) Ensure(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Machine, error) {
	spec.Standby = true

	return p.advance(ctx, spec, nil)
}

// Start makes and starts the machine; see hypervisor.Provider.
func (p *Provider) Start(ctx context.Context, spec hypervisor.MachineSpec, seed seedFunc) (hypervisor.Machine, error) {
	spec.Standby = false

	return p.advance(ctx, spec, seed)
}

// advance takes the machine as far as it gets without waiting: until it is prepared if it is
// on standby, else until it runs.
func (p *Provider) advance(ctx context.Context, spec hypervisor.MachineSpec, seed seedFunc) (hypervisor.Machine, error) {
	if spec.Owner.UID == "" || spec.ID == 0 {
		return hypervisor.Machine{}, errors.New("make machine: it needs an owner's uid and a reserved id")
	}

	if err := p.ids.Seed(ctx, p.options.Claimed); err != nil {
		return hypervisor.Machine{}, err
	}

	m := p.machineOf(spec.Owner, spec.ID, spec.Node)

	m.mu.Lock()
	defer m.mu.Unlock()

	if p.ids.Confirm(spec.ID, spec.Owner.UID) && m.phase == phaseUnknown {
		// Reserved by this process and not used since: nothing to look for.
		m.phase, m.isoState = phaseReserved, isoNone
		m.id, m.node = spec.ID, spec.Node
	}

	if m.phase == phaseReserved && m.id != spec.ID {
		m.id, m.node, m.phase = spec.ID, spec.Node, phaseUnknown
	}

	p.note(m, func(at *placement) {
		at.id, at.node, at.memory = m.id, m.node, spec.Shape.Memory
		at.toClone = m.phase < phaseCloned
		at.held = spec.Standby || m.phase == phasePrepared
	})

	for range maxMoves {
		state, err := p.move(ctx, m, spec, seed)
		if err != nil {
			return m.view(hypervisor.StateCreating, m.message), p.afterError(ctx, m, err)
		}

		if state != "" {
			return m.view(state, m.message), nil
		}
	}

	return m.view(hypervisor.StateCreating, m.message), nil
}

// afterError cleans up behind an error: an id of another's is given up, and a machine
// that went away while it was made, perhaps with its node, is looked for.
func (p *Provider) afterError(ctx context.Context, m *machine, err error) error {
	aside := hypervisor.Is(err, hypervisor.IDTaken) || hypervisor.Is(err, hypervisor.Busy)
	if !aside && m.phase > phaseReserved && p.lost(ctx, m) {
		p.invalidate(m)

		return p.busy(m, reasonNodeLost, "node %s was removed from the cluster, and machine %d with it (%v)", m.node, m.id, err)
	}

	if m.denials < maxDenials && p.client.outdated(ctx, err, p.config.ResourcePool) {
		m.denials++
		p.invalidate(m)

		return p.busy(m, reasonDenied, "node %s denies what is granted, as one does that has been away (%v)", m.node, err)
	}

	if hypervisor.Is(err, hypervisor.NotFound) && reasonIs(err, reasonGone) {
		p.invalidate(m)

		m.vanished++
		if m.vanished <= maxVanished {
			return p.busy(m, "Vanished", "machine %d went away from node %s while it was made", m.id, m.node)
		}
	}

	if hypervisor.Is(err, hypervisor.IDTaken) {
		p.leaveGate(m)
		p.forget(m)

		if !reasonIs(err, reasonAside) {
			p.ids.Reject(m.id, m.owner.UID)
		}
	}

	return err
}

// move takes one step. An empty state asks for the next.
func (p *Provider) move(ctx context.Context, m *machine, spec hypervisor.MachineSpec, seed seedFunc,
) (hypervisor.State, error) {
	if m.work.pending() {
		return hypervisor.StateCreating, p.uploadISO(ctx, m, spec, seed)
	}

	switch m.phase {
	case phaseUnknown:
		return "", p.look(ctx, m)
	case phaseReserved:
		return p.startClone(ctx, m, spec, seed)
	case phaseCloning:
		return "", p.cloneEnded(ctx, m)
	case phaseCloned:
		return p.configure(ctx, m, spec, seed)
	case phaseResizing:
		return "", p.growEnded(ctx, m, spec)
	case phasePrepared:
		return p.release(ctx, m, spec)
	case phaseConfigured:
		return p.start(ctx, m, spec)
	case phaseStarting:
		return "", p.startEnded(ctx, m)
	case phaseRunning, phaseStopped:
		// It was started, and is never started again.
		out, err := p.observe(ctx, m, false)

		return out.State, err
	case phaseDestroying, phaseGone:
		m.message = "it is being removed"

		return hypervisor.StateDeleting, nil
	}

	return "", fmt.Errorf("create machine %d: unknown phase %d", m.id, m.phase)
}

// Reserve chooses an id and a node; see hypervisor.Provider.
func (p *Provider) Reserve(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Reservation, error) {
	var out hypervisor.Reservation

	if spec.Owner.UID == "" {
		return out, errors.New("reserve an id: the machine's owner has no uid")
	}

	if err := p.ids.Seed(ctx, p.options.Claimed); err != nil {
		return out, err
	}

	if id, at, ok := p.ids.Reserved(spec.Owner.UID); ok {
		out.ID, out.Node = id, at.node

		return out, nil
	}

	snap, _, err := p.listing.get(ctx, p.watch.listBusy)
	if err != nil {
		return out, err
	}

	if id, ok, err := p.adoptable(ctx, snap, spec.Owner.UID); err != nil {
		return out, err
	} else if ok {
		out.ID, out.Node = id, snap[id].Node

		return out, nil
	}

	candidates, err := p.candidates(ctx, snap, spec)
	if err != nil {
		return out, err
	}

	// Of machines that are placed at the same time, each counts what the others were promised.
	p.admission.Lock()
	defer p.admission.Unlock()

	chosen, err := p.place(candidates, snap, spec)
	if err != nil {
		return out, err
	}

	out.Node = chosen.Node

	promised := promise{node: chosen.Node, memory: spec.Shape.Memory}
	if spec.Standby {
		promised.memory = 0
	}

	out.ID, err = p.ids.Reserve(spec.Owner.UID, promised, func(id int) bool {
		_, used := snap[id]

		return used
	})

	return out, err
}

// candidates are the nodes that a machine could be placed on.
func (p *Provider) candidates(ctx context.Context, snap snapshot, spec hypervisor.MachineSpec) ([]candidate, error) {
	templates, err := p.resolve(ctx, snap, spec.Template)
	if err != nil {
		return nil, err
	}

	nodes, err := p.nodeLoads(ctx, snap)
	if err != nil {
		return nil, err
	}

	var all []candidate

	for _, n := range nodes {
		t, ok := templateFor(templates, n.Name)
		if !ok {
			continue
		}

		all = append(all, candidate{
			Node: n.Name, Template: t, Online: n.Online, Trouble: n.Trouble, Cores: n.Total.CPU,
			unpromised: n.unpromised, TotalMemory: n.Total.Memory,
		})
		p.weighStorage(ctx, &all[len(all)-1], spec)
	}

	return all, nil
}

// place chooses the node for a machine by what is promised now; p.admission is held until that
// machine's part is promised too.
func (p *Provider) place(all []candidate, snap snapshot, spec hypervisor.MachineSpec) (candidate, error) {
	promised, queue := p.promises(snap)

	for i := range all {
		c := &all[i]
		c.FreeMemory, c.Queue = max(0, c.unpromised-promised[c.Node]), queue[c.Node]
	}

	chosen, err := choose(all, spec)
	if err == nil {
		p.health.admit(spec.Owner.UID, chosen.Sites...)
	}

	return chosen, err
}

// weighStorage sees whether the storage that a machine would go to is there and has room, and
// whether the place is set aside.
func (p *Provider) weighStorage(ctx context.Context, c *candidate, spec hypervisor.MachineSpec) {
	if !c.Online {
		return
	}

	name := p.targetStorage(c.Template, spec.Shape)

	storage, err := p.storageOf(ctx, c.Node, name)

	switch {
	case err != nil:
		c.Trouble = err.Error()
	case !storage.usable():
		c.Trouble = fmt.Sprintf("has no storage %s now: it is not active", name)
	}

	c.Online = c.Trouble == ""
	c.Roomy = storage.Avail >= max(spec.Shape.Disk, c.Template.DiskBytes)
	onNode, onStorage := nodeSite(c.Node, c.Template.ID), storageSite(storage.gate(c.Node))
	c.Sites = []site{onNode, onStorage}
	c.Full, c.Aside = p.health.aside(spec.Owner.UID, onStorage), p.health.aside(spec.Owner.UID, onNode)
}

// startClone takes a place at the storage and asks for the clone.
func (p *Provider) startClone(ctx context.Context, m *machine, spec hypervisor.MachineSpec, seed seedFunc,
) (hypervisor.State, error) {
	if m.node == "" {
		return "", hypervisor.Errorf(hypervisor.IDTaken, "NoNode", "id %d was reserved without a node", m.id)
	}

	if why, err := p.unreachable(ctx, m.node); err != nil {
		return "", err
	} else if why != "" {
		return hypervisor.StateCreating, p.abandon(ctx, m, why)
	}

	params, template, gate, err := p.cloneParams(ctx, m, spec)
	if reasonIs(err, reasonNotOnNode) {
		return hypervisor.StateCreating, p.abandon(ctx, m, err.Error())
	}

	if err != nil {
		return "", err
	}

	m.gate = gate
	m.at = origin{template: template.ID, storage: gate}

	if why := p.health.aside(m.owner.UID, m.sites()...); why != "" {
		return hypervisor.StateCreating, p.abandon(ctx, m, why)
	}

	entered, ahead := p.gates.enter(gate, m.owner, spec.Standby)
	if !entered {
		m.message = fmt.Sprintf("waits for a place to clone on storage %s, %d before it", gate, ahead)
		p.watch.kick()

		return hypervisor.StateCreating, nil
	}

	m.created = p.clock.Now()

	upid, err := p.client.clone(ctx, template.Node, template.ID, params)
	if err != nil {
		p.leaveGate(m)

		return "", p.cloneRefused(m, err)
	}

	owner := m.owner
	m.phase, m.message = phaseCloning, "is being cloned"
	m.work = p.watch.add(upid, owner, func() { p.gates.leave(gate, owner) })

	return hypervisor.StateCreating, p.uploadISO(ctx, m, spec, seed)
}

// cloneRefused decides what a failed clone call means. Where the outcome is unknown or
// the id is in use, the next step looks.
func (p *Provider) cloneRefused(m *machine, err error) error {
	switch {
	case hypervisor.Is(err, hypervisor.IDTaken):
		p.invalidate(m)

		// It may be our own, from a call whose answer was lost.
		m.vanished++
		if m.vanished <= maxVanished {
			return nil
		}

		return err
	case hypervisor.Is(err, hypervisor.Busy), hypervisor.Is(err, hypervisor.Rejected), hypervisor.Is(err, hypervisor.NoCapacity):
		return err
	default:
		p.invalidate(m)
		p.blame(m, hypervisor.KindOf(err), err.Error())

		return err
	}
}

// abandon gives up the node of a machine of which nothing is there yet, for another one. Its
// cloud-init ISO, which may be, goes first.
func (p *Provider) abandon(ctx context.Context, m *machine, why string) error {
	if m.isoTask.pending() {
		return nil
	}

	if m.isoTask != nil {
		p.isoTaskEnded(m)
	}

	if m.isoState == isoUnknown {
		if err := p.findISO(ctx, m); err != nil {
			return err
		}
	}

	if m.isoState == isoReady {
		return p.deleteISO(ctx, m)
	}

	return hypervisor.Errorf(hypervisor.IDTaken, reasonAside, "machine %d is not made on node %s: %s", m.id, m.node, why)
}

func (p *Provider) leaveGate(m *machine) {
	if m.gate != "" {
		p.gates.leave(m.gate, m.owner)
		m.gate = ""
	}
}

// cloneParams are the parameters of the clone call.
func (p *Provider) cloneParams(ctx context.Context, m *machine, spec hypervisor.MachineSpec,
) (params map[string]string, template hypervisor.Template, gate string, err error) {
	snap, _, err := p.listing.get(ctx, p.watch.listQuiet)
	if err != nil {
		return nil, template, "", err
	}

	templates, err := p.resolve(ctx, snap, spec.Template)
	if err != nil {
		return nil, template, "", err
	}

	template, ok := templateFor(templates, m.node)
	if !ok {
		return nil, template, "", hypervisor.Errorf(hypervisor.Rejected, reasonNotOnNode,
			"%s is no longer there", refText(spec.Template))
	}

	description, err := p.id.record(m.id, spec.Owner, p.clock.Now()).Encode()
	if err != nil {
		return nil, template, "", err
	}

	storage := p.targetStorage(template, spec.Shape)
	params = map[string]string{"newid": strconv.Itoa(m.id), "description": description, "full": "1"}

	if spec.Hostname != "" {
		params["name"] = spec.Hostname
		m.name = spec.Hostname
	}

	if p.config.ResourcePool != "" {
		params["pool"] = p.config.ResourcePool
	}

	if spec.Shape.Linked {
		params["full"] = "0"
	} else if storage != "" {
		params["storage"] = storage
	}

	if template.Node != m.node {
		params["target"] = m.node
	}

	gate, err = p.gateKey(ctx, template.Node, storage)

	return params, template, gate, err
}

// cloneEnded takes the clone's result. Proxmox removes a clone that failed, so that the
// same id is free again; what is there decides, not the task alone.
func (p *Provider) cloneEnded(_ context.Context, m *machine) error {
	exit, _ := m.work.result()
	adopted := m.adopted
	m.work, m.gate, m.adopted = nil, "", false

	p.note(m, func(at *placement) { at.toClone = false })

	if adopted {
		p.invalidate(m)

		return nil
	}

	if taskSucceeded(exit) {
		m.phase = phaseCloned

		return nil
	}

	p.invalidate(m)

	return p.taskFailed(m, "CloneFailed", fmt.Sprintf("clone machine %d", m.id), exit)
}

// taskFailed is the error of a task that failed, which its place bears. doing says what was
// attempted; reason is that of the error where the task's text tells none.
func (p *Provider) taskFailed(m *machine, reason, doing, exit string) error {
	kind, known := kindOfText(exit)
	if kind == hypervisor.Busy || taskLost(exit) {
		return p.busy(m, cmp.Or(known, "TaskLost"), "%s on node %s: %s", doing, m.node, exit)
	}

	p.blame(m, kind, exit)

	return hypervisor.Errorf(kind, cmp.Or(known, reason), "%s on node %s: %s", doing, m.node, exit)
}

// busy says that it is worth trying again soon.
func (p *Provider) busy(m *machine, reason, format string, args ...any) error {
	m.message = fmt.Sprintf(format, args...)

	return &hypervisor.Error{
		Kind: hypervisor.Busy, Reason: reason, Message: m.message, After: p.client.jitter(busyAfter),
	}
}

// start powers the machine on, for the first and only time.
func (p *Provider) start(ctx context.Context, m *machine, spec hypervisor.MachineSpec) (hypervisor.State, error) {
	if spec.Standby {
		return hypervisor.StatePrepared, nil
	}

	upid, err := p.client.power(ctx, m.node, m.id, "start")
	if err != nil {
		if !hypervisor.Is(err, hypervisor.Busy) && !hypervisor.Is(err, hypervisor.Rejected) {
			p.invalidate(m)
		}

		return "", err
	}

	m.phase, m.message = phaseStarting, "is being started"
	m.work = p.watch.add(upid, m.owner, nil)

	return hypervisor.StateCreating, nil
}

// startEnded takes the start's result. A start task may fail though the machine runs,
// so its status decides.
func (p *Provider) startEnded(ctx context.Context, m *machine) error {
	exit, _ := m.work.result()
	m.work = nil

	if taskSucceeded(exit) {
		p.setRunning(m, p.clock.Now())
		p.health.worked(m.sites()...)

		return nil
	}

	if err := p.judgeStarted(ctx, m); err != nil {
		p.invalidate(m)

		return err
	}

	if m.phase != phaseConfigured {
		return nil
	}

	return p.taskFailed(m, "StartFailed", fmt.Sprintf("start machine %d", m.id), exit)
}

// since tells whether t lies no longer than d ago.
func (p *Provider) since(t time.Time, d time.Duration) bool {
	return !t.IsZero() && p.clock.Since(t) < d
}
