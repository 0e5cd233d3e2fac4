// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"bytes"
	"context"
	"sync"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

var _ hypervisor.ConsoleReader = (*Provider)(nil)

// consoles keep the end of the output of the machines' serial consoles. libvirt keeps no output, so a console is open
// from the start of its machine. What a machine writes while the operator is not connected is lost.
type consoles struct {
	mu     sync.Mutex
	byUUID map[golibvirt.UUID]*console
}

// console is the console of one machine.
type console struct {
	mu   sync.Mutex
	text []byte
	// session is the connection over which the console was opened last.
	session *session
}

// Write appends output and keeps the end. It never fails and does not wait, because the library reads no other response
// during the call.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.text = append(c.text, p...)
	if len(c.text) > 2*hypervisor.MaxConsole {
		c.text = bytes.Clone(c.text[len(c.text)-hypervisor.MaxConsole:])
	}

	return len(p), nil
}

// markOpened records that the console is opened over the session, and returns false if it was opened over it already.
func (c *console) markOpened(s *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.session == s {
		return false
	}

	c.session = s

	return true
}

// markClosed lets the next list open the console again.
func (c *console) markClosed(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.session == s {
		c.session = nil
	}
}

func (c *consoles) find(uuid golibvirt.UUID) (*console, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	found, ok := c.byUUID[uuid]

	return found, ok
}

func (c *consoles) ensure(uuid golibvirt.UUID) *console {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.byUUID == nil {
		c.byUUID = map[golibvirt.UUID]*console{}
	}

	if c.byUUID[uuid] == nil {
		c.byUUID[uuid] = &console{}
	}

	return c.byUUID[uuid]
}

func (c *consoles) forget(uuid golibvirt.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.byUUID, uuid)
}

// openConsole opens the console of a running machine, until the machine is off. While somebody else has the console open,
// nothing is kept, and the next list tries again.
func (h *host) openConsole(ctx context.Context, s *session, d domain) {
	c := h.provider.consoles.ensure(d.uuid)
	if !c.markOpened(s) {
		return
	}

	// The call lasts as long as the machine, so it has no slot and no timeout. It ends with the connection.
	_ = h.provider.wrapCall(ctx, hypervisor.Call{Operation: "openConsole"}, func() error {
		h.provider.goroutines.Go(func() {
			err := s.rpc.DomainOpenConsole(golibvirt.Domain{Name: d.name, UUID: d.uuid, ID: -1}, nil, c, 0)
			if err == nil || hasCode(err, golibvirt.ErrOperationFailed) {
				c.markClosed(s) // somebody else has opened the console
			}
		})

		return nil
	})
}

// ReadConsole returns the end of the machine's output; see hypervisor.ConsoleReader.
func (p *Provider) ReadConsole(_ context.Context, ref hypervisor.MachineRef) ([]byte, error) {
	c, ok := p.consoles.find(p.identity.machineUUID(ref.ID, ref.Owner.UID))
	if !ok {
		return nil, newNotFoundError(ref)
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	return bytes.Clone(c.text[max(len(c.text)-hypervisor.MaxConsole, 0):]), nil
}
