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

// cloneLog matches the lines of a clone's log that name the machine it makes: the first
// of Proxmox VE 9 (PVE::API2::Qemu), and the names of new volumes in those of older ones.
var cloneLog = regexp.MustCompile(`with ID (\d+)$|\bvm-(\d+)-(?:disk|cloudinit)`)

// makings are the tasks that run and make or destroy machines, of this principal and of
// others, by name. While they do, a machine may not be seen.
type makings map[string]making

// making is such a task. A clone's bears the id of its template; which machine it makes
// only its log tells.
type making struct {
	upid, node string
	// target is 0 while the log does not tell.
	target  int
	ours    bool
	destroy bool
}

// of gives the task that makes or destroys a machine. unsure says that one of ours runs
// that may.
func (c makings) of(id int) (found making, ok, unsure bool) {
	for _, t := range c {
		if t.target == id {
			return t, true, false
		}

		unsure = unsure || t.ours && t.target == 0
	}

	return found, false, unsure
}

// runningMakings asks all nodes that are not offline for the tasks that run there: a clone
// runs where its template is, which need not be where machines may be. Only a process
// that did not begin a task itself needs to look for it.
func (p *Provider) runningMakings(ctx context.Context) (makings, error) {
	nodes, _, err := p.nodes.get(ctx, nodesAge)
	if err != nil {
		return nil, err
	}

	out := makings{}

	for _, n := range nodes {
		if n.offline() {
			continue
		}

		tasks, err := p.client.runningTasks(ctx, n.Node)
		if err != nil {
			return nil, err
		}

		for _, t := range tasks {
			switch t.Type {
			case taskClone:
				if out[t.UPID], err = p.cloneTask(ctx, n.Node, t); err != nil {
					return nil, err
				}
			case taskDestroy:
				id, _ := strconv.Atoi(t.ID)
				out[t.UPID] = making{upid: t.UPID, node: n.Node, target: id, ours: true, destroy: true}
			}
		}
	}

	p.mu.Lock()
	p.makings = out
	p.mu.Unlock()

	return out, nil
}

// cloneTask finds out which machine a clone makes. Its log is read until it tells.
func (p *Provider) cloneTask(ctx context.Context, node string, t listedTask) (making, error) {
	p.mu.Lock()
	known := p.makings[t.UPID]
	p.mu.Unlock()

	if known.target != 0 {
		return known, nil
	}

	out := making{upid: t.UPID, node: node, ours: t.by(p.client.who())}

	lines, err := p.client.taskLog(ctx, node, t.UPID)
	if hypervisor.Is(err, hypervisor.NotFound) || reasonIs(err, reasonDenied) {
		return out, nil
	}

	for _, line := range lines {
		if found := cloneLog.FindStringSubmatch(line); found != nil {
			out.target, _ = strconv.Atoi(found[1] + found[2])

			break
		}
	}

	return out, err
}

// findMaking looks for a task that makes or destroys the machine and that another process,
// or a call without an answer, has begun.
func (p *Provider) findMaking(ctx context.Context, m *machine) (found bool, err error) {
	running, _, err := p.running.get(ctx, p.lookAge(m))
	if err != nil {
		return false, err
	}

	t, ok, unsure := running.of(m.id)

	switch {
	case unsure:
		return false, p.busy(m, reasonLocked, "a clone has just begun, and its log does not tell yet whether it makes machine %d", m.id)
	case !ok:
		return false, nil
	case !t.ours:
		return false, p.taken(m, "one that somebody clones")
	}

	m.phase, m.message, m.adopted = phaseCloning, "is being cloned", true
	if t.destroy {
		m.phase, m.message, m.adopted = phaseDestroying, "is being destroyed", false
	}

	m.work = p.watch.add(t.upid, m.owner, nil)

	return true, nil
}

// The types of the tasks that clone and destroy machines, and delete ISOs.
const (
	taskClone     = "qmclone"
	taskDestroy   = "qmdestroy"
	taskDeleteISO = "imgdel"
)

// findDestroy looks for a task that destroys the machine: near its end the machine has no
// record any more, and has left its pool, so that it is hidden from who has rights on
// that alone. otherwise is what it is if there is none.
func (p *Provider) findDestroy(ctx context.Context, m *machine, otherwise error) error {
	tasks, err := p.client.runningTasks(ctx, m.node)
	if err != nil {
		return err
	}

	for _, t := range tasks {
		if t.Type == taskDestroy && t.ID == strconv.Itoa(m.id) {
			m.phase, m.message = phaseDestroying, "is being destroyed"
			m.work = p.watch.add(t.UPID, m.owner, nil)

			return nil
		}
	}

	// It may have ended between the two looks.
	snap, _, err := p.listing.get(ctx, 0)
	if err != nil {
		return err
	}

	if _, listed := snap[m.id]; !listed {
		return p.absent(ctx, m)
	}

	return otherwise
}

// absent says that there is no machine, as none is seen: if it would be seen. Without the
// privilege to see it, nothing is known; and as that may have come back since the machine was
// looked for, the listing is looked at once more.
func (p *Provider) absent(ctx context.Context, m *machine) error {
	held, err := p.client.permissions(ctx)
	if err != nil {
		return err
	}

	places := []string{fmt.Sprintf("/vms/%d", m.id)}
	if p.config.ResourcePool != "" {
		places = append(places, "/pool/"+p.config.ResourcePool)
	}

	if words := p.client.unmet(held, []need{{any: places, privileges: []string{"VM.Audit"}}}); len(words) > 0 {
		return privilegesMissing(fmt.Sprintf("look for machine %d", m.id), words)
	}

	snap, _, err := p.listing.get(ctx, 0)
	if err != nil {
		return err
	}

	if _, listed := snap[m.id]; listed {
		return p.busy(m, "SeenAgain", "machine %d is to be seen again", m.id)
	}

	m.phase = phaseReserved

	return nil
}

// lookHidden looks for a machine that is not listed and whose configuration can't be
// read: with rights on a pool alone, a machine is seen when its clone has ended, for only
// then it is put into the pool.
func (p *Provider) lookHidden(ctx context.Context, m *machine) error {
	if found, err := p.findMaking(ctx, m); err != nil || found {
		return err
	}

	// The clone may have ended between the two looks.
	config, err := p.readConfig(ctx, m)

	switch {
	case hypervisor.Is(err, hypervisor.NotFound):
		m.phase = phaseReserved

		return nil
	case reasonIs(err, reasonDenied):
		return p.absent(ctx, m)
	case err != nil:
		return err
	}

	return p.judge(ctx, m, config)
}

// judgeLocked deals with a machine that is locked: by a task that runs, or for good.
func (p *Provider) judgeLocked(ctx context.Context, m *machine, lock string) error {
	if lock == lockClone {
		if found, err := p.findMaking(ctx, m); err != nil || found {
			return err
		}
	}

	tasks, err := p.client.runningTasks(ctx, m.node)
	if err != nil {
		return err
	}

	for _, t := range tasks {
		// A backup of many machines bears no id.
		if t.ID == strconv.Itoa(m.id) || lock == "backup" && t.Type == "vzdump" && t.ID == "" {
			m.phase, m.adopted = phaseCloning, true
			m.work = p.watch.add(t.UPID, m.owner, nil)

			return nil
		}
	}

	// The task may have ended between the two looks.
	config, err := p.readConfig(ctx, m)
	if err != nil && !hypervisor.Is(err, hypervisor.NotFound) {
		return err
	}

	if err != nil || config["lock"] == "" {
		return p.busy(m, reasonLocked, "machine %d on node %s has just been unlocked", m.id, m.node)
	}

	return hypervisor.Errorf(hypervisor.Rejected, "VMLocked",
		"machine %d on node %s was left locked (%s) and no task works on it; Proxmox lets only "+
			"root unlock it: make sure that it is no longer needed and run on %s: qm unlock %d && qm destroy %d --purge",
		m.id, m.node, config["lock"], m.node, m.id, m.id)
}
