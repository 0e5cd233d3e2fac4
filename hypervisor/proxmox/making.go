// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// cloneLogPattern matches the line of a clone's log that names the new VM: the first line in Proxmox VE 9
// (PVE::API2::Qemu), and the names of new volumes in older versions.
var cloneLogPattern = regexp.MustCompile(`with ID (\d+)$|\bvm-(\d+)-(?:disk|cloudinit)`)

// vmTasks maps the UPIDs of running clone and destroy tasks of all principals. While such a task runs, its
// VM may be invisible.
type vmTasks map[string]vmTask

// vmTask is a running clone or destroy task. The ID of a clone task is the ID of the template. Only the log
// of the task names the new VM.
type vmTask struct {
	upid, node string
	// target is the ID of the VM. It is 0 until the log names the VM.
	target    int
	isOwn     bool
	isDestroy bool
}

// forVM returns the task that clones or destroys a VM. isUnsure is true if no task has the VM as its target,
// but a running clone task of this principal has an unknown target.
func (c vmTasks) forVM(id int) (match vmTask, ok, isUnsure bool) {
	for _, t := range c {
		if t.target == id {
			return t, true, false
		}

		isUnsure = isUnsure || t.isOwn && t.target == 0
	}

	return match, false, isUnsure
}

// listVMTasks returns the running clone and destroy tasks of all nodes that are not offline. A clone task runs
// on the node of the template, which may have no machines. Only a process that did not start the task itself
// needs this list.
func (p *Provider) listVMTasks(ctx context.Context) (vmTasks, error) {
	nodes, _, err := p.nodeCache.get(ctx, nodesMaxAge)
	if err != nil {
		return nil, err
	}

	out := vmTasks{}

	for _, n := range nodes {
		if n.isOffline() {
			continue
		}

		tasks, err := p.client.listRunningTasks(ctx, n.Node)
		if err != nil {
			return nil, err
		}

		for _, t := range tasks {
			switch t.Type {
			case taskClone:
				if out[t.UPID], err = p.inspectCloneTask(ctx, n.Node, t); err != nil {
					return nil, err
				}
			case taskDestroy:
				id, _ := strconv.Atoi(t.ID)
				out[t.UPID] = vmTask{upid: t.UPID, node: n.Node, target: id, isOwn: true, isDestroy: true}
			}
		}
	}

	p.mu.Lock()
	p.lastVMTasks = out
	p.mu.Unlock()

	return out, nil
}

// inspectCloneTask finds out which VM a clone task creates. It reads the task's log until the log names the
// VM.
func (p *Provider) inspectCloneTask(ctx context.Context, node string, t listedTask) (vmTask, error) {
	p.mu.Lock()
	known := p.lastVMTasks[t.UPID]
	p.mu.Unlock()

	if known.target != 0 {
		return known, nil
	}

	out := vmTask{upid: t.UPID, node: node, isOwn: t.isStartedBy(p.client.principal())}

	lines, err := p.client.readTaskLog(ctx, node, t.UPID)
	if hypervisor.Is(err, hypervisor.NotFound) || hasReason(err, reasonPermissionDenied) {
		return out, nil
	}

	for _, line := range lines {
		if found := cloneLogPattern.FindStringSubmatch(line); found != nil {
			out.target, _ = strconv.Atoi(found[1] + found[2])

			break
		}
	}

	return out, err
}

// adoptVMTask looks for a task that clones or destroys the machine. Another process may have started the
// task, or this process with a call that got no response. adoptVMTask adopts the task and reports whether
// it found one.
func (p *Provider) adoptVMTask(ctx context.Context, m *machine) (found bool, err error) {
	running, _, err := p.vmTaskCache.get(ctx, p.inspectionMaxAge(m))
	if err != nil {
		return false, err
	}

	t, ok, isUnsure := running.forVM(m.id)

	switch {
	case isUnsure:
		return false, p.newBusyError(m, reasonLocked,
			"a clone task has just started, and its log does not show yet whether the task creates machine %d", m.id)
	case !ok:
		return false, nil
	case !t.isOwn:
		return false, p.rejectID(m, "from a clone task of another user")
	}

	m.phase, m.message, m.isTaskAdopted = phaseCloning, "is being cloned", true
	if t.isDestroy {
		m.phase, m.message, m.isTaskAdopted = phaseDestroying, "is being destroyed", false
	}

	m.task = p.watcher.watchTask(t.upid, m.owner, nil)

	return true, nil
}

// Types of the tasks that clone VMs, destroy VMs and delete ISOs.
const (
	taskClone     = "qmclone"
	taskDestroy   = "qmdestroy"
	taskDeleteISO = "imgdel"
)

// inspectDestroy determines whether the machine is being destroyed or is already deleted. Call it if a call is
// denied: near the end of a destroy task, the VM has no record and is no longer in its pool, so a principal
// that has privileges only on the pool cannot see the VM. If no task destroys the VM and the VM is still
// listed, inspectDestroy returns fallback.
func (p *Provider) inspectDestroy(ctx context.Context, m *machine, fallback error) error {
	tasks, err := p.client.listRunningTasks(ctx, m.node)
	if err != nil {
		return err
	}

	for _, t := range tasks {
		if t.Type == taskDestroy && t.ID == strconv.Itoa(m.id) {
			m.phase, m.message = phaseDestroying, "is being destroyed"
			m.task = p.watcher.watchTask(t.UPID, m.owner, nil)

			return nil
		}
	}

	// The task may have ended between the list of the tasks and this list of the VMs.
	vms, _, err := p.vmCache.get(ctx, 0)
	if err != nil {
		return err
	}

	if _, isListed := vms[m.id]; !isListed {
		return p.confirmAbsent(ctx, m)
	}

	return fallback
}

// confirmAbsent records that the machine does not exist. The principal must have the privilege to see the machine
// before and after the VMs are listed: without it, a VM that exists is not listed. The machine may also have another
// ID than the recorded one.
func (p *Provider) confirmAbsent(ctx context.Context, m *machine) error {
	if err := p.requireAudit(ctx, m); err != nil {
		return err
	}

	vms, _, err := p.vmCache.get(ctx, 0)
	if err != nil {
		return err
	}

	if _, isListed := vms[m.id]; isListed {
		return p.newBusyError(m, reasonReappeared, "machine %d is visible again", m.id)
	}

	id, hasOtherID, err := p.findByClaim(ctx, vms, m.owner.UID)
	if err != nil {
		return err
	}

	if hasOtherID {
		m.id, m.node = id, vms[id].Node

		return p.newBusyError(m, reasonReappeared, "the machine has id %d", id)
	}

	if err := p.requireAudit(ctx, m); err != nil {
		return err
	}

	m.phase = phaseReserved

	return nil
}

// requireAudit returns an error that names the missing privilege if the principal could not see the machine.
func (p *Provider) requireAudit(ctx context.Context, m *machine) error {
	granted, err := p.client.readPermissions(ctx)
	if err != nil {
		return err
	}

	paths := []string{fmt.Sprintf("/vms/%d", m.id)}
	if p.config.ResourcePool != "" {
		paths = append(paths, "/pool/"+p.config.ResourcePool)
	}

	requirements := []requirement{{paths: paths, privileges: []string{"VM.Audit"}}}
	if problems := p.client.describeUnmet(granted, requirements); len(problems) > 0 {
		return newPrivilegesError(fmt.Sprintf("look for machine %d", m.id), problems)
	}

	return nil
}

// inspectHidden inspects a machine that is not listed and whose configuration cannot be read. A principal
// with privileges only on a pool sees a machine only after its clone task has ended, because Proxmox adds
// the VM to the pool at the end of the clone.
func (p *Provider) inspectHidden(ctx context.Context, m *machine) error {
	if found, err := p.adoptVMTask(ctx, m); err != nil || found {
		return err
	}

	// The clone may have ended between the two requests.
	config, err := p.readConfig(ctx, m)

	switch {
	case hypervisor.Is(err, hypervisor.NotFound):
		m.phase = phaseReserved

		return nil
	case hasReason(err, reasonPermissionDenied):
		return p.confirmAbsent(ctx, m)
	case err != nil:
		return err
	}

	return p.evaluateConfig(ctx, m, config)
}

// inspectLocked handles a locked machine. If a running task holds the lock, inspectLocked waits for the
// task. Otherwise a person has to remove the lock.
func (p *Provider) inspectLocked(ctx context.Context, m *machine, lock string) error {
	if lock == lockClone {
		if found, err := p.adoptVMTask(ctx, m); err != nil || found {
			return err
		}
	}

	tasks, err := p.client.listRunningTasks(ctx, m.node)
	if err != nil {
		return err
	}

	for _, t := range tasks {
		// A backup of several machines has no ID.
		if t.ID == strconv.Itoa(m.id) || lock == "backup" && t.Type == "vzdump" && t.ID == "" {
			m.phase, m.isTaskAdopted = phaseCloning, true
			m.task = p.watcher.watchTask(t.UPID, m.owner, nil)

			return nil
		}
	}

	// The task may have ended between the two requests.
	config, err := p.readConfig(ctx, m)
	if err != nil && !hypervisor.Is(err, hypervisor.NotFound) {
		return err
	}

	if err != nil || config["lock"] == "" {
		return p.newBusyError(m, reasonLocked, "machine %d on node %s was just unlocked", m.id, m.node)
	}

	return hypervisor.Errorf(hypervisor.Rejected, "VMLocked",
		"machine %d on node %s is still locked (%s), no task holds the lock, and only root can "+
			"unlock the machine: make sure that it is no longer needed, then run on %s: qm unlock %d && qm destroy %d --purge",
		m.id, m.node, config["lock"], m.node, m.id, m.id)
}
