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
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

const (
	// maxDisappearances limits how often a machine that disappears during its creation is inspected again
	// before the error is returned.
	maxDisappearances = 3
	// maxDenials limits the retries after a node denies a privilege that the connected node grants. With
	// the back-off of a claim, the retries take half a minute.
	maxDenials = 5
	// maxSteps limits the steps of one call of advance or Delete. There are fewer phases.
	maxSteps = 12
)

type seedFunc = func(context.Context) (hypervisor.Seed, error)

// Ensure creates the machine; see hypervisor.Provider.
func (p *Provider) Ensure(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Machine, error) {
	spec.Standby = true

	return p.advance(ctx, spec, nil)
}

// Start creates and starts the machine; see hypervisor.Provider.
func (p *Provider) Start(ctx context.Context, spec hypervisor.MachineSpec, seed seedFunc) (hypervisor.Machine, error) {
	spec.Standby = false

	return p.advance(ctx, spec, seed)
}

// advance runs the steps of a machine that need no waiting. It ends when the machine is prepared if the
// machine is on standby, and when the machine runs otherwise.
func (p *Provider) advance(ctx context.Context, spec hypervisor.MachineSpec, seed seedFunc) (hypervisor.Machine, error) {
	if spec.Owner.UID == "" || spec.ID == 0 {
		return hypervisor.Machine{}, errors.New("create machine: the spec needs the UID of an owner and a reserved id")
	}

	if err := p.loadClaimed(ctx); err != nil {
		return hypervisor.Machine{}, err
	}

	m := p.ensureMachine(spec.Owner, spec.ID, spec.Node)

	m.mu.Lock()
	defer m.mu.Unlock()

	if p.ids.Confirm(spec.ID, spec.Owner.UID) && m.phase == phaseUnknown {
		// This process has reserved the ID and not used it since, so there is nothing to inspect.
		m.phase, m.isoState = phaseReserved, isoNone
		m.id, m.node = spec.ID, spec.Node
	}

	if m.phase == phaseReserved && m.id != spec.ID {
		m.id, m.node, m.phase = spec.ID, spec.Node, phaseUnknown
	}

	p.updatePlacement(m, func(pl *placement) {
		pl.id, pl.node, pl.memory = m.id, m.node, spec.Shape.Memory
		pl.devices = newDeviceCounts(spec.Shape.Devices)
		pl.needsClone = m.phase < phaseCloned
		pl.isOnStandby = spec.Standby || m.phase == phasePrepared
	})

	for range maxSteps {
		state, err := p.runStep(ctx, m, spec, seed)
		if err != nil {
			return m.toMachine(hypervisor.StateCreating, m.message), p.handleStepError(ctx, m, err)
		}

		if state != "" {
			return m.toMachine(state, m.message), nil
		}
	}

	return m.toMachine(hypervisor.StateCreating, m.message), nil
}

// handleStepError handles the error of a step. It gives up an ID that belongs to another machine. A machine
// that disappeared during its creation, perhaps together with its node, is inspected again in the next
// call.
func (p *Provider) handleStepError(ctx context.Context, m *machine, err error) error {
	hasKnownCause := hypervisor.Is(err, hypervisor.IDTaken) || hypervisor.Is(err, hypervisor.Busy)
	if !hasKnownCause && m.phase > phaseReserved && p.isLostWithNode(ctx, m) {
		p.requireInspection(m)

		return p.newBusyError(m, reasonNodeLost, "node %s was removed from the cluster, and machine %d with it (%v)", m.node, m.id, err)
	}

	if m.denials < maxDenials && p.client.isDenialOutdated(ctx, err, p.config.ResourcePool) {
		m.denials++
		p.requireInspection(m)

		return p.newBusyError(m, reasonPermissionDenied,
			"node %s denies a privilege that is granted, because it has outdated permissions (%v)", m.node, err)
	}

	if hypervisor.Is(err, hypervisor.NotFound) && hasReason(err, reasonNotFound) {
		p.requireInspection(m)

		m.disappearances++
		if m.disappearances <= maxDisappearances {
			return p.newBusyError(m, "VMNotFound", "machine %d disappeared from node %s during its creation", m.id, m.node)
		}
	}

	if hypervisor.Is(err, hypervisor.IDTaken) {
		p.leaveCloneQueue(m)
		p.dropMachine(m)

		if !hasReason(err, reasonNodeExcluded) {
			p.ids.MarkTaken(m.id, m.owner.UID)
		}
	}

	return err
}

// runStep runs one step. If the returned state is empty, the caller must run the next step.
func (p *Provider) runStep(ctx context.Context, m *machine, spec hypervisor.MachineSpec, seed seedFunc,
) (hypervisor.State, error) {
	if m.task.isPending() {
		return hypervisor.StateCreating, p.ensureISO(ctx, m, spec, seed)
	}

	switch m.phase {
	case phaseUnknown:
		return "", p.inspect(ctx, m)
	case phaseReserved:
		return p.startClone(ctx, m, spec, seed)
	case phaseCloning:
		return "", p.finishClone(m)
	case phaseCloned:
		return p.configure(ctx, m, spec, seed)
	case phaseResizing:
		return "", p.finishGrow(ctx, m, spec)
	case phasePrepared:
		return p.releaseStandby(ctx, m, spec)
	case phaseConfigured:
		return p.start(ctx, m, spec)
	case phaseStarting:
		return "", p.finishStart(ctx, m)
	case phaseRunning, phaseStopped:
		// The machine was started, and is never started again.
		const powerOffReported = false

		out, err := p.observe(ctx, m, powerOffReported)

		return out.State, err
	case phaseDestroying, phaseDeleted:
		m.message = "is being deleted"

		return hypervisor.StateDeleting, nil
	}

	return "", fmt.Errorf("create machine %d: unknown phase %d", m.id, m.phase)
}

// startClone takes a clone slot of the storage and sends the clone call.
func (p *Provider) startClone(ctx context.Context, m *machine, spec hypervisor.MachineSpec, seed seedFunc,
) (hypervisor.State, error) {
	if m.node == "" {
		return "", hypervisor.Errorf(hypervisor.IDTaken, "NoNode", "id %d was reserved without a node", m.id)
	}

	if reason, err := p.explainUnusableNode(ctx, m.node); err != nil {
		return "", err
	} else if reason != "" {
		return hypervisor.StateCreating, p.abandonNode(ctx, m, reason)
	}

	params, template, queueKey, err := p.buildCloneParams(ctx, m, spec)
	if hasReason(err, reasonTemplateNotOnNode) {
		return hypervisor.StateCreating, p.abandonNode(ctx, m, err.Error())
	}

	if err != nil {
		return "", err
	}

	m.queueKey = queueKey
	m.origin = origin{template: template.ID, storage: queueKey}

	if reason := p.breaker.exclusionReason(m.owner.UID, m.breakerTargets()...); reason != "" {
		return hypervisor.StateCreating, p.abandonNode(ctx, m, reason)
	}

	hasSlot, ahead := p.cloneQueues.acquire(queueKey, m.owner, spec.Standby)
	if !hasSlot {
		m.message = fmt.Sprintf("waits for a clone slot on storage %s, machines ahead of it: %d", queueKey, ahead)
		p.watcher.ensureRunning()

		return hypervisor.StateCreating, nil
	}

	m.createdAt = p.clock.Now()

	upid, err := p.client.cloneTemplate(ctx, template.Node, template.ID, params)
	if err != nil {
		p.leaveCloneQueue(m)

		return "", p.handleCloneError(m, err)
	}

	owner := m.owner
	m.phase, m.message = phaseCloning, "is being cloned"
	m.task = p.watcher.watchTask(upid, owner, func() { p.cloneQueues.release(queueKey, owner) })

	return hypervisor.StateCreating, p.ensureISO(ctx, m, spec, seed)
}

// handleCloneError handles the error of a clone call. If the outcome is unknown or the ID is in use, the
// next step inspects the machine.
func (p *Provider) handleCloneError(m *machine, err error) error {
	switch {
	case hypervisor.Is(err, hypervisor.IDTaken):
		p.requireInspection(m)

		// The VM may be the machine itself, created by a call whose response was lost.
		m.disappearances++
		if m.disappearances <= maxDisappearances {
			return nil
		}

		return err
	case hypervisor.Is(err, hypervisor.Busy), hypervisor.Is(err, hypervisor.Rejected), hypervisor.Is(err, hypervisor.NoCapacity):
		return err
	default:
		p.requireInspection(m)
		p.recordTargetFailure(m, m.origin.storage, hypervisor.KindOf(err), errclass.ReasonOf(err, ""), err.Error())

		return err
	}
}

// abandonNode gives up the node of a machine that has no VM yet, so that another node can be chosen. It
// first deletes the machine's cloud-init ISO, if there is one.
func (p *Provider) abandonNode(ctx context.Context, m *machine, reason string) error {
	if m.isoTask.isPending() {
		return nil
	}

	if m.isoTask != nil {
		p.finishISOTask(m)
	}

	if m.isoState == isoUnknown {
		if err := p.findISO(ctx, m); err != nil {
			return err
		}
	}

	if m.isoState == isoReady {
		return p.deleteISO(ctx, m)
	}

	return hypervisor.Errorf(hypervisor.IDTaken, reasonNodeExcluded,
		"machine %d is not created on node %s: %s", m.id, m.node, reason)
}

func (p *Provider) leaveCloneQueue(m *machine) {
	if m.queueKey != "" {
		p.cloneQueues.release(m.queueKey, m.owner)
		m.queueKey = ""
	}
}

// buildCloneParams returns the parameters of the clone call, the template, and the clone queue of the
// storage.
func (p *Provider) buildCloneParams(ctx context.Context, m *machine, spec hypervisor.MachineSpec,
) (params map[string]string, template hypervisor.Template, queueKey string, err error) {
	vms, _, err := p.vmCache.get(ctx, p.watcher.idleListAge)
	if err != nil {
		return nil, template, "", err
	}

	// A claim of a restored backup may have an address that was allocated again since.
	if err := p.checkAddresses(ctx, vms, spec); err != nil {
		return nil, template, "", err
	}

	templates, err := p.findTemplates(ctx, vms, spec.Template)
	if err != nil {
		return nil, template, "", err
	}

	template, ok := selectTemplate(templates, m.node)
	if !ok {
		return nil, template, "", hypervisor.Errorf(hypervisor.Rejected, reasonTemplateNotOnNode,
			"%s is no longer available", formatRef(spec.Template))
	}

	description, err := p.id.newRecord(m.id, spec, p.clock.Now()).Encode()
	if err != nil {
		return nil, template, "", err
	}

	storage := p.selectStorage(template, spec.Shape)
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

	queueKey, err = p.cloneQueueKey(ctx, template.Node, storage)

	return params, template, queueKey, err
}

// finishClone processes the result of the clone task. Proxmox deletes a failed clone, and the same ID is
// free again. If the task has failed or was adopted, the next step inspects the machine.
func (p *Provider) finishClone(m *machine) error {
	exit, _ := m.task.result()
	wasAdopted := m.isTaskAdopted
	m.task, m.queueKey, m.isTaskAdopted = nil, "", false

	p.updatePlacement(m, func(pl *placement) { pl.needsClone = false })

	if wasAdopted { // the task may be another one than a clone
		p.requireInspection(m)

		return nil
	}

	if isTaskSuccess(exit) {
		m.phase = phaseCloned

		return nil
	}

	p.requireInspection(m)

	return p.handleTaskFailure(m, m.origin.storage, "CloneFailed", fmt.Sprintf("clone machine %d", m.id), exit)
}

// handleTaskFailure returns the error of a failed task and records the failure with the breaker, see
// recordTargetFailure. operation names what was attempted. reason is the reason of the error if the text of the task has
// no known reason.
func (p *Provider) handleTaskFailure(m *machine, storage, reason, operation, exit string) error {
	kind, knownReason := classifyText(exit)
	if kind == hypervisor.Busy || isTaskOutcomeUnknown(exit) {
		return p.newBusyError(m, cmp.Or(knownReason, "TaskLost"), "%s on node %s: %s", operation, m.node, exit)
	}

	if isDeviceFailure(knownReason) {
		p.recordDeviceFailure(m, exit)
	} else {
		p.recordTargetFailure(m, storage, kind, knownReason, exit)
	}

	return hypervisor.Errorf(kind, cmp.Or(knownReason, reason), "%s on node %s: %s", operation, m.node, exit)
}

// newBusyError returns an error that is worth a retry soon, and sets the machine's message.
func (p *Provider) newBusyError(m *machine, reason, format string, args ...any) error {
	m.message = fmt.Sprintf(format, args...)

	return &hypervisor.Error{
		Kind: hypervisor.Busy, Reason: reason, Message: m.message, RetryAfter: jitter(busyRetryDelay),
	}
}

// start powers the machine on for the first and only time, unless it is a standby machine.
func (p *Provider) start(ctx context.Context, m *machine, spec hypervisor.MachineSpec) (hypervisor.State, error) {
	if spec.Standby {
		return hypervisor.StatePrepared, nil
	}

	upid, err := p.client.changePower(ctx, m.node, m.id, "start")
	if err != nil {
		// After another error, the machine may have been started.
		if !hypervisor.Is(err, hypervisor.Busy) && !hypervisor.Is(err, hypervisor.Rejected) {
			p.requireInspection(m)
		}

		return "", err
	}

	m.phase, m.message = phaseStarting, "is being started"
	m.task = p.watcher.watchTask(upid, m.owner, nil)

	return hypervisor.StateCreating, nil
}

// finishStart processes the result of the start task. A start task can fail although the machine runs, so
// after a failure the status of the machine decides.
func (p *Provider) finishStart(ctx context.Context, m *machine) error {
	ended := m.task

	exit, _ := ended.result()
	if isTaskSuccess(exit) {
		p.setRunning(m, p.clock.Now())
		p.breaker.recordSuccess(m.breakerTargets()...)

		return nil
	}

	// If the status cannot be read, the next step reads it again. Without the result of the task, the failure would be
	// lost, and the machine would be started once more than its caller allows.
	if err := p.evaluateStarted(ctx, m); err != nil {
		return err
	}

	if m.task == ended {
		m.task = nil
	}

	if m.phase != phaseConfigured {
		return nil
	}

	return p.handleTaskFailure(m, m.origin.storage, "StartFailed", fmt.Sprintf("start machine %d", m.id), exit)
}

// isWithin reports whether t is set and less than d ago.
func (p *Provider) isWithin(t time.Time, d time.Duration) bool {
	return !t.IsZero() && p.clock.Since(t) < d
}
