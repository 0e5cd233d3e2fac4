// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// verificationLifetime is how long a verified ownership counts for the next change of the same deletion.
// The time is long enough to stop a machine, and too short for the ID to be freed and used for another
// machine.
const verificationLifetime = 5 * time.Second

// Delete deletes a machine and its cloud-init ISO; see hypervisor.Provider.
func (p *Provider) Delete(ctx context.Context, ref hypervisor.MachineRef) error {
	if ref.Owner.UID == "" {
		return errors.New("delete machine: its owner has no UID")
	}

	if p.isRecentlyDeleted(ref.Owner.UID) {
		return p.newNotFoundError(&machine{id: ref.ID, owner: ref.Owner})
	}

	m := p.ensureMachine(ref.Owner, ref.ID, "")

	m.mu.Lock()
	defer m.mu.Unlock()

	if !m.isDeleting {
		// A verification from the creation of the machine does not count for the deletion.
		m.isDeleting, m.verifiedAt = true, time.Time{}
		p.updatePlacement(m, func(pl *placement) { pl.isDeleting = true })
	}

	for range maxSteps {
		isDone, err := p.runDeletionStep(ctx, m)
		if err != nil || isDone {
			return err
		}
	}

	return nil
}

// runDeletionStep runs one step of the deletion. isDone is true if the current call of Delete must end.
func (p *Provider) runDeletionStep(ctx context.Context, m *machine) (isDone bool, err error) {
	if m.task.isPending() {
		return true, nil
	}

	switch m.phase {
	case phaseUnknown:
		return false, p.inspectForDeletion(ctx, m)
	case phaseReserved:
		p.leaveCloneQueue(m)
		m.phase = phaseDeleted

		return false, nil
	case phaseCloning, phaseResizing, phaseStarting:
		// The result of the task may be unknown, so the actual state decides.
		p.leaveTaskPhase(m)

		return false, nil
	case phaseCloned, phasePrepared, phaseConfigured, phaseStopped:
		return p.destroy(ctx, m)
	case phaseRunning:
		return p.stop(ctx, m)
	case phaseDestroying:
		return false, p.finishDestroy(m)
	case phaseDeleted:
		return true, p.deleteClaimISO(ctx, m)
	}

	return true, fmt.Errorf("delete machine %d: unknown phase %d", m.id, m.phase)
}

// inspectForDeletion finds out what has to be deleted. It does not change a machine of another owner, but
// deletes the claim's own cloud-init ISO.
func (p *Provider) inspectForDeletion(ctx context.Context, m *machine) error {
	err := p.inspect(ctx, m)
	if !hypervisor.Is(err, hypervisor.IDTaken) {
		return err
	}

	if err := p.deleteClaimISO(ctx, m); err == nil || !hypervisor.Is(err, hypervisor.NotFound) {
		return err
	}

	return p.newNotOwnedError(m)
}

func (p *Provider) newNotOwnedError(m *machine) error {
	return hypervisor.Errorf(hypervisor.NotOwned, "NotOwned",
		"machine %d on node %s does not carry the ownership record of claim %s/%s (uid %s) in its notes "+
			"and was not touched", m.id, m.node, m.owner.Namespace, m.owner.Name, m.owner.UID)
}

// leaveTaskPhase moves the machine out of a phase with a task, so that the deletion can continue.
func (p *Provider) leaveTaskPhase(m *machine) {
	exit := exitUnknown
	if m.task != nil {
		exit, _ = m.task.result()
	}

	previous, wasAdopted := m.phase, m.isTaskAdopted
	m.task, m.queueKey, m.isTaskAdopted = nil, "", false

	p.updatePlacement(m, func(pl *placement) { pl.needsClone = false })

	switch {
	case !isTaskSuccess(exit), wasAdopted:
		// A failed task, or one that this process did not start, does not show in which state the machine is.
		p.requireInspection(m)
	case previous == phaseStarting:
		p.setRunning(m, p.clock.Now())
	case previous == phaseCloning, previous == phaseResizing:
		m.phase = phaseCloned
	}
}

// verifyOwnership reads the ownership record right before a change, unless the record was verified within
// verificationLifetime. hasChanged is true if the machine has another phase now, at which the caller must look.
func (p *Provider) verifyOwnership(ctx context.Context, m *machine) (hasChanged bool, err error) {
	if p.isWithin(m.verifiedAt, verificationLifetime) {
		return false, nil
	}

	config, err := p.readConfig(ctx, m)
	if hypervisor.Is(err, hypervisor.NotFound) {
		return p.handleMoved(ctx, m)
	}

	if hasReason(err, reasonPermissionDenied) || err == nil && config["lock"] == lockDestroyed {
		// The next step inspects the machine again.
		p.requireInspection(m)

		return true, nil
	}

	if err != nil && p.isLostWithNode(ctx, m) {
		m.phase = phaseDeleted

		return true, nil
	}

	if err != nil {
		return false, err
	}

	if !p.isOwn(m, config) {
		p.requireInspection(m)

		return false, p.newNotOwnedError(m)
	}

	p.recordConfig(m, config)

	return false, nil
}

// handleMoved handles a machine that is not on its node: the machine was migrated or deleted.
func (p *Provider) handleMoved(ctx context.Context, m *machine) (isGone bool, err error) {
	vms, _, err := p.vmCache.get(ctx, 0)
	if err != nil {
		return false, err
	}

	r, ok := vms[m.id]
	if ok && r.Node != m.node {
		m.node = r.Node

		return false, p.newBusyError(m, "Migrated", "machine %d was migrated to node %s", m.id, m.node)
	}

	if err := p.confirmAbsent(ctx, m); err != nil {
		return false, err
	}

	m.phase = phaseDeleted

	return true, nil
}

// stop powers the machine off immediately, because the machine is no longer needed. Its results are those of
// runDeletionStep.
func (p *Provider) stop(ctx context.Context, m *machine) (isDone bool, err error) {
	if p.isWithin(m.stoppedAt, confirmationLifetime) {
		m.phase = phaseStopped

		return false, nil
	}

	if err := p.rejectHAManaged(ctx, m); err != nil {
		return true, err
	}

	if hasChanged, err := p.verifyOwnership(ctx, m); err != nil || hasChanged {
		return false, err
	}

	upid, err := p.client.changePower(ctx, m.node, m.id, "stop")
	if err != nil {
		return true, p.handleChangeError(m, err)
	}

	m.phase, m.message = phaseStopped, "is being stopped"
	m.stoppedAt = time.Time{}
	m.task = p.watcher.watchTask(upid, m.owner, nil)

	return true, nil
}

// rejectHAManaged returns an error if somebody has added the machine to the HA manager, because the HA
// manager would start the machine again.
func (p *Provider) rejectHAManaged(ctx context.Context, m *machine) error {
	vms, _, err := p.vmCache.get(ctx, p.watcher.idleListAge)
	if err != nil {
		return err
	}

	if vms[m.id].HAState == "" {
		return nil
	}

	return hypervisor.Errorf(hypervisor.Rejected, "HAManaged",
		"machine %d on node %s is managed by the HA manager: remove it from HA with: ha-manager remove vm:%d",
		m.id, m.node, m.id)
}

// handleChangeError handles the error of a stop call or a destroy call. Unless Proxmox rejected the call,
// the machine is inspected again.
func (p *Provider) handleChangeError(m *machine, err error) error {
	if !hypervisor.Is(err, hypervisor.Rejected) {
		p.requireInspection(m)
	}

	return err
}

// destroy deletes the machine with its disks and starts the deletion of its cloud-init ISO. Its results are those of
// runDeletionStep.
func (p *Provider) destroy(ctx context.Context, m *machine) (isDone bool, err error) {
	// A stop task has ended. If the stop failed, Proxmox rejects the destroy call with the reason.
	m.task = nil

	if hasChanged, err := p.verifyOwnership(ctx, m); err != nil || hasChanged {
		return false, err
	}

	upid, err := p.client.destroyVM(ctx, m.node, m.id)
	if hypervisor.Is(err, hypervisor.NotFound) {
		_, err = p.handleMoved(ctx, m)

		return false, err
	}

	if hasReason(err, reasonPermissionDenied) {
		return true, p.inspectDestroy(ctx, m, err)
	}

	if err != nil {
		return true, p.handleChangeError(m, err)
	}

	p.watcher.unwatchMachine(m.owner.UID)
	p.updatePlacement(m, func(pl *placement) { pl.isAccounted = true })

	m.phase, m.message = phaseDestroying, "is being destroyed"
	m.task = p.watcher.watchTask(upid, m.owner, nil)

	if m.isoState == isoReady {
		return true, p.deleteISO(ctx, m)
	}

	return true, nil
}

// finishDestroy processes the result of the destroy task. After a failure, the next step inspects the machine
// again. If the VM was already deleted, or the result is unknown, finishDestroy returns no error.
func (p *Provider) finishDestroy(m *machine) error {
	exit, _ := m.task.result()
	m.task = nil

	if isTaskSuccess(exit) {
		m.phase = phaseDeleted

		return nil
	}

	p.requireInspection(m)

	kind, reason := classifyText(exit)
	if kind == hypervisor.NotFound || isTaskOutcomeUnknown(exit) {
		return nil
	}

	if kind == hypervisor.Busy {
		return p.newBusyError(m, reason, "destroy machine %d on node %s: %s", m.id, m.node, exit)
	}

	return hypervisor.Errorf(kind, cmp.Or(reason, "DestroyFailed"), "destroy machine %d on node %s: %s", m.id, m.node, exit)
}

// deleteClaimISO deletes the cloud-init ISO and the snippets of a machine that is deleted. It returns
// NotFound when nothing is left.
func (p *Provider) deleteClaimISO(ctx context.Context, m *machine) error {
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

	if err := p.deleteSnippets(m.owner.UID); err != nil {
		return err
	}

	p.dropMachine(m)
	p.recordDeletion(m.owner.UID)

	return p.newNotFoundError(m)
}

// finishISOTask processes the result of an upload or of a deletion of the ISO.
func (p *Provider) finishISOTask(m *machine) {
	exit, _ := m.isoTask.result()
	m.isoTask = nil

	switch {
	case !isTaskSuccess(exit):
		m.isoState = isoUnknown
	case m.isoState == isoDeleting:
		m.isoState = isoDeleted
	default:
		m.isoState = isoReady
	}
}

// deleteISO deletes the claim's ISO. The name of the ISO contains the operator, the cluster and the claim.
func (p *Provider) deleteISO(ctx context.Context, m *machine) error {
	if m.volid == "" {
		m.isoState = isoDeleted

		return nil
	}

	upid, err := p.client.deleteVolume(ctx, cmp.Or(m.isoNode, m.node), m.volid)
	if err != nil {
		m.isoState = isoUnknown

		return err
	}

	m.isoState = isoDeleting
	if upid == "" {
		m.isoState = isoDeleted

		return nil
	}

	m.isoTask = p.watcher.watchTask(upid, m.owner, nil)

	return nil
}

// findISO looks for the claim's ISO on the nodes that may have it.
func (p *Provider) findISO(ctx context.Context, m *machine) error {
	nodes, err := p.listUsableNodes(ctx)
	if err != nil {
		return err
	}

	// The ISO is on the node of its machine. If that node is unknown, all usable nodes are searched.
	if index := slices.IndexFunc(nodes, func(n nodeInfo) bool { return n.Node == m.node && !n.isOffline() }); index >= 0 {
		nodes = nodes[index : index+1]
	}

	found, err := p.listISOsOnNodes(ctx, nodes)
	if err != nil {
		return err
	}

	m.isoState = isoDeleted

	for _, iso := range found {
		if iso.uid == sanitizeName(m.owner.UID) {
			m.isoState, m.volid, m.isoNode = isoReady, iso.volid, iso.node
		}
	}

	return nil
}
