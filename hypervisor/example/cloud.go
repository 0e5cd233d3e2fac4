// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package example

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Errors of Cloud.
var (
	errNotFound = errors.New("no such machine")
	errExists   = errors.New("a machine with this id exists already")
)

// Cloud is a hypervisor with one node. A machine uses memory of the node while it runs.
type Cloud struct {
	// Memory of the node, in bytes.
	Memory int64
	// Template is the name of the only template.
	Template string
	// File keeps the machines, as a real hypervisor keeps them when the program of its provider ends. If it is empty, they
	// are only in memory.
	File string
	// OnCall is called before and after each change. It may be nil.
	OnCall func(operation string, isBefore bool)

	mu        sync.Mutex
	vms       map[int]vm
	listeners map[*Provider]bool
}

// vm is a machine. The call that creates it also writes Owner and Operator.
type vm struct {
	Owner    hypervisor.Owner
	Operator string
	Created  time.Time
	Memory   int64
	// Record has the machine's addresses.
	Record hypervisor.Record
	// Seed is the cloud-init ISO. It exists from the start of the machine until its deletion.
	Seed    *hypervisor.Seed
	Running bool
	Starts  int
}

// update applies one change to a machine, as one API call does. It applies all of the change or
// nothing. If mutate returns an empty vm, update deletes the machine. If ctx is canceled before the
// change, update does not apply it. If ctx is canceled later, update applies the change but returns
// an error, as for a response that the caller does not receive.
func (c *Cloud) update(ctx context.Context, operation string, id int, mutate func(current vm, exists bool) (vm, error)) error {
	c.notifyCall(operation, beforeChange)

	if err := ctx.Err(); err != nil {
		return err
	}

	updated, err := c.apply(id, mutate)

	c.notifyCall(operation, afterChange)

	if err != nil {
		return err
	}

	c.wakeOwner(updated)

	return ctx.Err()
}

func (c *Cloud) apply(id int, mutate func(current vm, exists bool) (vm, error)) (vm, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	current, exists := c.vms[id]

	updated, err := mutate(current, exists)
	if err != nil {
		return vm{}, err
	}

	next := maps.Clone(c.vms)
	next[id] = updated

	if updated == (vm{}) {
		delete(next, id)
	}

	if err := c.save(next); err != nil {
		return vm{}, err
	}

	c.vms = next

	return updated, nil
}

// load reads the machines once.
func (c *Cloud) load() error {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.vms != nil {
		return nil
	}

	vms := map[int]vm{}

	if c.File != "" {
		text, err := os.ReadFile(c.File)
		if err == nil {
			err = json.Unmarshal(text, &vms)
		}

		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read machines: %w", err)
		}
	}

	c.vms, c.listeners = vms, map[*Provider]bool{}

	return nil
}

// save replaces the file, so that it has all of a change or nothing if the program is killed.
func (c *Cloud) save(vms map[int]vm) error {
	if c.File == "" {
		return nil
	}

	if len(vms) == 0 {
		if err := os.Remove(c.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("delete file of machines: %w", err)
		}

		return nil
	}

	text, err := json.Marshal(vms)
	if err == nil {
		err = os.WriteFile(c.File+".new", text, 0o600)
	}

	if err == nil {
		err = os.Rename(c.File+".new", c.File)
	}

	if err != nil {
		return fmt.Errorf("save machines: %w", err)
	}

	return nil
}

// beforeChange and afterChange are the values of the parameter isBefore.
const beforeChange, afterChange = true, false

func (c *Cloud) notifyCall(operation string, isBefore bool) {
	if c.OnCall != nil {
		c.OnCall(operation, isBefore)
	}
}

// wakeOwner makes the providers of the machine's operator wake its owner, as a watch or a poll would
// do.
func (c *Cloud) wakeOwner(updated vm) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for p := range c.listeners {
		if p.options.Wake != nil && p.options.OperatorUID == updated.Operator {
			go p.options.Wake(updated.Owner)
		}
	}
}

func (c *Cloud) get(id int) (vm, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	current, exists := c.vms[id]

	return current, exists
}

// list returns a copy of all machines, and the free memory of the node in bytes.
func (c *Cloud) list() (map[int]vm, int64) {
	c.mu.Lock()
	defer c.mu.Unlock()

	out, free := map[int]vm{}, c.Memory

	for id, current := range c.vms {
		out[id] = current

		if current.Running {
			free -= current.Memory
		}
	}

	return out, free
}
