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

// console keeps the output of a machine's guests, up to maxConsole bytes. It drops the rest.
type console struct {
	mu   sync.Mutex
	data []byte
}

const maxConsole = 1 << 20

func (l *console) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if free := maxConsole - len(l.data); free > 0 {
		l.data = append(l.data, p[:min(len(p), free)]...)
	}

	return len(p), nil
}

func (l *console) printf(format string, args ...any) { _, _ = fmt.Fprintf(l, format+"\n", args...) }

func (l *console) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()

	return string(l.data)
}

// Console returns the output of a machine's guests since its first boot.
func (c *Cluster) Console(key types.NamespacedName) string {
	c.mu.Lock()
	l := c.consoles[key]
	c.mu.Unlock()

	if l == nil {
		return ""
	}

	return l.String()
}

// startGuest runs Options.Guest for an instance. When it returns, the instance ends as Succeeded.
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

	guest := Guest{
		Context: ctx, Namespace: key.Namespace, Name: key.Name, Node: instance.Status.NodeName,
		Drive: drive, Log: c.consoles[key].printf,
	}

	c.wg.Go(func() {
		defer close(run.done)
		defer cancel()

		c.options.Guest(guest)

		if ctx.Err() == nil {
			c.setEndPhase(key, uid, virtv1.Succeeded)
		}
	})
}

// setEndPhase sets the final phase of an instance, unless it has one, and enqueues the instance.
func (c *Cluster) setEndPhase(key types.NamespacedName, uid types.UID, phase virtv1.VirtualMachineInstancePhase) {
	c.mu.Lock()
	if c.endPhases[uid] == "" {
		c.endPhases[uid] = phase
	}
	c.mu.Unlock()

	c.queue.Add(key)
}

// stopGuest stops the guest of an instance and waits until it has ended.
func (c *Cluster) stopGuest(uid types.UID) {
	c.mu.Lock()
	run := c.guests[uid]
	c.mu.Unlock()

	if run != nil {
		run.cancel()
		<-run.done
	}
}

func (c *Cluster) stopGuests() {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, run := range c.guests {
		run.cancel()
	}
}
