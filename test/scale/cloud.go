// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

const (
	cloudNode = "node-1"
	gib       = 1 << 30
	cloneTime = 15 * time.Second
)

// cloud is a hypervisor with room for all machines. Its calls take no time, and a clone takes cloneTime.
type cloud struct {
	// ctx ends all guests.
	ctx  context.Context //nolint:containedctx // of the test, which outlives all calls
	wake func(hypervisor.Owner)
	// boot runs the guest of a machine that was started, until the machine powers off.
	boot func(context.Context, hypervisor.Seed)

	mu     sync.Mutex
	nextID int
	byUID  map[string]*cloudMachine
	byID   map[int]*cloudMachine
	// starts is the number of machines that were started.
	starts int
}

type cloudMachine struct {
	hypervisor.Machine

	clonedAt time.Time
	// stop stops the guest.
	stop context.CancelFunc
}

func newCloud(ctx context.Context, boot func(context.Context, hypervisor.Seed)) *cloud {
	return &cloud{ctx: ctx, boot: boot, nextID: 100, byUID: map[string]*cloudMachine{}, byID: map[int]*cloudMachine{}}
}

// Close does nothing.
func (c *cloud) Close() {}

// Check returns the node.
func (c *cloud) Check(context.Context) (hypervisor.Info, error) {
	return hypervisor.Info{Product: "cloud", Version: "1", Nodes: c.nodes()}, nil
}

func (c *cloud) nodes() []hypervisor.Node {
	all := hypervisor.Resources{CPU: 1 << 20, Memory: gib << 20, Disk: gib << 20}

	return []hypervisor.Node{{Name: cloudNode, Online: true, Free: all, Total: all}}
}

// Resolve finds any template.
func (c *cloud) Resolve(_ context.Context, ref hypervisor.TemplateRef, _ hypervisor.Shape) ([]hypervisor.Template, error) {
	return []hypervisor.Template{{Name: ref.Name, Node: cloudNode}}, nil
}

// Reserve chooses the next ID.
func (c *cloud) Reserve(_ context.Context, spec hypervisor.MachineSpec) (hypervisor.Reservation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if found := c.byUID[spec.Owner.UID]; found != nil {
		return hypervisor.Reservation{ID: found.ID, Node: cloudNode, Exists: true}, nil
	}

	c.nextID++

	return hypervisor.Reservation{ID: c.nextID, Node: cloudNode}, nil
}

// Ensure clones the machine.
func (c *cloud) Ensure(_ context.Context, spec hypervisor.MachineSpec) (hypervisor.Machine, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.clone(spec).Machine, nil
}

// clone returns the machine as it is now. The caller holds the lock.
func (c *cloud) clone(spec hypervisor.MachineSpec) *cloudMachine {
	now := time.Now()

	found := c.byUID[spec.Owner.UID]
	if found == nil {
		found = &cloudMachine{
			Machine: hypervisor.Machine{
				ID: spec.ID, Name: spec.Hostname, Node: cloudNode, Owner: spec.Owner, CreatedAt: now, State: hypervisor.StateCreating,
			},
			clonedAt: now.Add(cloneTime), stop: func() {},
		}
		c.byUID[spec.Owner.UID], c.byID[spec.ID] = found, found
		time.AfterFunc(cloneTime, func() { c.wake(spec.Owner) })
	}

	if found.State == hypervisor.StateCreating && !now.Before(found.clonedAt) {
		found.State, found.Cloned = hypervisor.StatePrepared, true
	}

	return found
}

// Start clones the machine, and starts it when it is cloned.
func (c *cloud) Start(
	ctx context.Context, spec hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	if out, err := c.Ensure(ctx, spec); err != nil || out.State != hypervisor.StatePrepared {
		return out, err
	}

	content, err := seed(ctx)
	if err != nil {
		return hypervisor.Machine{}, err
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	found := c.clone(spec)
	if found.State == hypervisor.StatePrepared {
		found.State = hypervisor.StateRunning
		c.starts++

		guest, stop := context.WithCancel(c.ctx)
		found.stop = stop

		go func() {
			c.boot(guest, content)
			c.powerOff(spec.Owner)
		}()
	}

	return found.Machine, nil
}

func (c *cloud) powerOff(owner hypervisor.Owner) {
	c.mu.Lock()
	if found := c.byUID[owner.UID]; found != nil {
		found.State = hypervisor.StateStopped
	}
	c.mu.Unlock()

	c.wake(owner)
}

// Get returns the state of a machine.
func (c *cloud) Get(_ context.Context, ref hypervisor.MachineRef) (hypervisor.Machine, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	found := c.byID[ref.ID]
	if found == nil || found.Owner.UID != ref.Owner.UID {
		return hypervisor.Machine{}, newNotFoundError(ref.ID)
	}

	return found.Machine, nil
}

func newNotFoundError(id int) error {
	return hypervisor.Errorf(hypervisor.NotFound, "NotFound", "machine %d does not exist", id)
}

// List returns all machines.
func (c *cloud) List(context.Context) ([]hypervisor.Machine, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	out := make([]hypervisor.Machine, 0, len(c.byID))
	for _, found := range c.byID {
		out = append(out, found.Machine)
	}

	return out, nil
}

// Delete deletes a machine.
func (c *cloud) Delete(_ context.Context, ref hypervisor.MachineRef) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	found := c.byID[ref.ID]
	if found == nil || found.Owner.UID != ref.Owner.UID {
		return newNotFoundError(ref.ID)
	}

	found.stop()
	delete(c.byID, ref.ID)
	delete(c.byUID, ref.Owner.UID)
	time.AfterFunc(time.Second, func() { c.wake(ref.Owner) })

	return nil
}

func (c *cloud) countStarts() int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.starts
}

// Capacity returns the resources of the node.
func (c *cloud) Capacity(context.Context) (hypervisor.Capacity, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	nodes := c.nodes()

	return hypervisor.Capacity{Nodes: nodes, Free: nodes[0].Free, Total: nodes[0].Total, Machines: len(c.byID)}, nil
}
