// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package example

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Errors of the cloud.
var (
	errGone   = errors.New("no such machine")
	errExists = errors.New("there is a machine of this id")
)

// Cloud is a hypervisor with one node, on which machines take memory while they run.
type Cloud struct {
	// Memory of the node, in bytes.
	Memory int64
	// Template is the one template that there is.
	Template string
	// OnCall, if set, is called before and after each change.
	OnCall func(what string, before bool)

	mu        sync.Mutex
	vms       map[int]vm
	listeners map[*Provider]bool
}

// vm is a machine. Its tags are written in the call that makes it.
type vm struct {
	Owner    hypervisor.Owner
	Operator string
	Created  time.Time
	Memory   int64
	// Seed is the cloud-init ISO, from the start until the machine is removed.
	Seed    *hypervisor.Seed
	Running bool
	Starts  int
}

// change makes one change, as one call of an API does: all of it or nothing. Its answer is
// lost on a caller that has gone away.
func (c *Cloud) change(ctx context.Context, what string, id int, do func(at vm, there bool) (vm, error)) error {
	c.call(what, true)

	if err := ctx.Err(); err != nil {
		return err
	}

	c.mu.Lock()
	at, there := c.vms[id]

	now, err := do(at, there)
	if err == nil {
		c.vms[id] = now
	}

	if err == nil && now == (vm{}) {
		delete(c.vms, id)
	}
	c.mu.Unlock()

	c.call(what, false)

	if err != nil {
		return err
	}

	c.tell(now)

	return ctx.Err()
}

func (c *Cloud) call(what string, before bool) {
	if c.OnCall != nil {
		c.OnCall(what, before)
	}
}

// tell brings word of a change to the providers, as a watch or a poll would.
func (c *Cloud) tell(now vm) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for p := range c.listeners {
		if p.options.Wake != nil && p.options.OperatorUID == now.Operator {
			go p.options.Wake(now.Owner)
		}
	}
}

func (c *Cloud) get(id int) (vm, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	at, there := c.vms[id]

	return at, there
}

// all gives a copy of the machines, and the memory that is free.
func (c *Cloud) all() (map[int]vm, int64) {
	c.mu.Lock()
	defer c.mu.Unlock()

	out, free := map[int]vm{}, c.Memory

	for id, at := range c.vms {
		out[id] = at

		if at.Running {
			free -= at.Memory
		}
	}

	return out, free
}
