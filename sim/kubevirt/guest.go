// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// guestRun is one boot of a machine.
type guestRun struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// console is what a machine's guests have written, up to a limit.
type console struct {
	mu   sync.Mutex
	data []byte
}

const maxConsole = 1 << 20

func (l *console) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if room := maxConsole - len(l.data); room > 0 {
		l.data = append(l.data, p[:min(len(p), room)]...)
	}

	return len(p), nil
}

func (l *console) printf(format string, args ...any) { _, _ = fmt.Fprintf(l, format+"\n", args...) }

func (l *console) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()

	return string(l.data)
}

// Console is what a machine's guests have written, over all its boots.
func (c *Cluster) Console(key types.NamespacedName) string {
	c.mu.Lock()
	l := c.consoles[key]
	c.mu.Unlock()

	if l == nil {
		return ""
	}

	return l.String()
}

// startGuest runs what is inside a machine.
func (c *Cluster) startGuest(instance *virtv1.VirtualMachineInstance, drive map[string][]byte) {
	if c.options.Guest == nil {
		return
	}

	key, uid := client.ObjectKeyFromObject(instance), instance.UID

	c.mu.Lock()
	defer c.mu.Unlock()

	if c.guests[uid] != nil || c.ctx.Err() != nil {
		return
	}

	if c.consoles[key] == nil {
		c.consoles[key] = &console{}
	}

	ctx, cancel := context.WithCancel(c.ctx)
	run := &guestRun{cancel: cancel, done: make(chan struct{})}
	c.guests[uid] = run

	view := Guest{
		Context: ctx, Namespace: key.Namespace, Name: key.Name, Node: instance.Status.NodeName,
		Drive: drive, Log: c.consoles[key].printf,
	}

	c.wg.Go(func() {
		defer close(run.done)
		defer cancel()

		c.options.Guest(view)

		if ctx.Err() == nil {
			c.end(key, uid, virtv1.Succeeded)
		}
	})
}

// end decides how an instance ends and has it looked at.
func (c *Cluster) end(key types.NamespacedName, uid types.UID, phase virtv1.VirtualMachineInstancePhase) {
	c.mu.Lock()
	if c.ended[uid] == "" {
		c.ended[uid] = phase
	}
	c.mu.Unlock()

	c.queue.Add(key)
}

// endGuest switches a machine off and waits for what ran in it.
func (c *Cluster) endGuest(uid types.UID) {
	c.mu.Lock()
	run := c.guests[uid]
	c.mu.Unlock()

	if run != nil {
		run.cancel()
		<-run.done
	}
}

func (c *Cluster) endGuests() {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, run := range c.guests {
		run.cancel()
	}
}
