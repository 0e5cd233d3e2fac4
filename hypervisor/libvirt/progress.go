// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"errors"
	"slices"
	"sync"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// progress is what this process knows about the machines that it works on. The next process does without it.
type progress struct {
	mu       sync.Mutex
	machines map[golibvirt.UUID]work
}

// work is the progress of one machine.
type work struct {
	// host on which the machine is, or will be.
	host *host
	// clone is the full clone of the disk, or nil.
	clone *clone
	// seed is the content of the cloud-init ISO, until hasISO is true.
	seed   *hypervisor.Seed
	hasISO bool
	// hasLostISO is true once the ISO of the running machine is deleted.
	hasLostISO bool
	// isKnown is true if the machine could not exist before this process worked on it. Then disks are the kinds of disks
	// that this process has created for it, or may have.
	isKnown bool
	disks   []string
}

// addDisk records a kind of disk that exists now, or may.
func (w *work) addDisk(suffix string) {
	if !slices.Contains(w.disks, suffix) {
		w.disks = append(slices.Clip(w.disks), suffix)
	}
}

// clone is a full clone. err is valid after done is closed.
type clone struct {
	done chan struct{}
	err  error
}

func (c *clone) isRunning() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

func (p *progress) get(uuid golibvirt.UUID) work {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.machines[uuid]
}

func (p *progress) update(uuid golibvirt.UUID, change func(*work)) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.machines == nil {
		p.machines = map[golibvirt.UUID]work{}
	}

	w := p.machines[uuid]
	change(&w)
	p.machines[uuid] = w
}

func (p *progress) forget(uuid golibvirt.UUID) {
	p.mu.Lock()
	defer p.mu.Unlock()

	delete(p.machines, uuid)
}

// ensureDisk creates the machine's disk. It returns false while a full clone runs. The disk exists without a
// domain only until ensureDisk has succeeded, so a full clone of an earlier process is not trusted.
func (p *Provider) ensureDisk(ctx context.Context, m *machine, t diskTemplate) (isComplete bool, err error) {
	p.progress.update(m.uuid, func(w *work) { w.addDisk(diskSuffix) })

	if m.spec.Shape.Linked {
		return true, m.host.createLinked(ctx, m.diskName(), t, m.spec.Shape.Disk)
	}

	c := p.progress.get(m.uuid).clone
	if c == nil {
		c = p.startClone(m, t)
	}

	if c.isRunning() {
		return false, nil
	}

	if c.err != nil {
		p.progress.update(m.uuid, func(w *work) { w.clone = nil })
	}

	return true, c.err
}

// startClone starts a full clone, and wakes the owner when it has ended.
func (p *Provider) startClone(m *machine, t diskTemplate) *clone {
	c := &clone{done: make(chan struct{})}
	p.progress.update(m.uuid, func(w *work) { w.clone = c })

	p.goroutines.Go(func() {
		defer p.options.Wake(m.spec.Owner)
		defer close(c.done)

		select {
		case m.host.cloneSlots <- struct{}{}:
			defer func() { <-m.host.cloneSlots }()
		case <-p.ctx.Done():
			c.err = p.ctx.Err()

			return
		}

		c.err = m.host.copyVolume(p.ctx, m.diskName(), t, m.spec.Shape.Disk)
		if errors.Is(c.err, errExists) {
			if c.err = m.host.deleteVolume(p.ctx, m.diskName()); c.err == nil {
				c.err = m.host.copyVolume(p.ctx, m.diskName(), t, m.spec.Shape.Disk)
			}
		}
	})

	return c
}

// ensureISO creates the machine's cloud-init ISO. It calls seed at most once per machine and process.
func (p *Provider) ensureISO(ctx context.Context, m *machine, seed func(context.Context) (hypervisor.Seed, error)) error {
	w := p.progress.get(m.uuid)
	if w.hasISO {
		return nil
	}

	if w.seed == nil {
		content, err := seed(ctx)
		if err != nil {
			return err
		}

		w.seed = &content
		p.progress.update(m.uuid, func(w *work) { w.seed = &content })
	}

	// The disk of a transient machine is not without an ISO before the machine is started.
	replaced := []string{m.isoName()}
	if m.isTransient {
		replaced = []string{m.diskName(), m.isoName()}
	}

	p.progress.update(m.uuid, func(w *work) { w.hasLostISO = false })

	wasReplaced, err := m.host.createISO(ctx, m.isoName(), *w.seed, replaced)
	if err != nil {
		return err
	}

	p.progress.update(m.uuid, func(w *work) {
		w.seed, w.hasISO = nil, true

		if wasReplaced && m.isTransient {
			w.addDisk(transientSuffix) // the machine was not started: it had an ISO
		}
	})

	return nil
}
