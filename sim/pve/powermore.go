// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"net/http"
	"time"
)

func extraPowerRoutes() []route {
	power := requireAll("/vms/{vmid}", "VM.PowerMgmt")
	base := "/nodes/{node}/qemu/{vmid}/status"
	skip := schema{"skiplock": {kind: kBool}}
	return []route{
		newRoute(http.MethodGet, base, ClassVM, nil, nil,
			newIndex("subdir", "current", "start", "stop", "reset", "shutdown", "suspend", "reboot")),
		newRoute(http.MethodPost, base+"/reboot", ClassVM, power, schema{"timeout": {kind: kInt}}, rebootVM).asTask(),
		newRoute(http.MethodPost, base+"/reset", ClassVM, power, skip, newRunningVMTask("qmreset", nil)).asTask(),
		newRoute(http.MethodPost, base+"/suspend", ClassVM, power,
			skip.merge(schema{"todisk": {kind: kBool}, "statestorage": {}}), suspendVM).asTask(),
		newRoute(http.MethodPost, base+"/resume", ClassVM, power, skip.merge(schema{"nocheck": {kind: kBool}}),
			newRunningVMTask("qmresume", func(m *machine) { m.paused = false })).asTask(),
		newRoute(http.MethodPut, "/nodes/{node}/qemu/{vmid}/sendkey", ClassVM, requireAll("/vms/{vmid}", "VM.Console"),
			skip.merge(schema{"key": {required: true}}), sendKey),
	}
}

// findRunningVM returns the VM of a call and an error if the VM does not run.
func (s *Server) findRunningVM(c *call) (*machine, error) {
	m, err := s.findVM(c.node, c.vmid)
	if err == nil && !m.running {
		err = dief("VM %d not running", c.vmid)
	}
	return m, err
}

// newRunningVMTask returns a handler that starts a task, which changes a running VM. change can be
// nil.
func newRunningVMTask(kind string, change func(*machine)) handler {
	return func(s *Server, c *call) (any, error) {
		if err := requireRoot(c, "skiplock"); err != nil {
			return nil, err
		}
		s.mu.Lock()
		_, err := s.findRunningVM(c)
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
		return s.forkVM(c, kind, func(_ context.Context, _ *task) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			m, err := s.findRunningVM(c)
			if err == nil && !c.boolParam("skiplock") {
				err = m.checkLock()
			}
			if err == nil && change != nil {
				change(m)
			}
			return err
		})
	}
}

func suspendVM(s *Server, c *call) (any, error) {
	if c.boolParam("todisk") {
		return nil, dief("suspending to disk is not simulated")
	}
	return newRunningVMTask("qmpause", func(m *machine) { m.paused = true })(s, c)
}

// rebootVM requests the guest to power off and starts the VM again with its pending changes.
func rebootVM(s *Server, c *call) (any, error) {
	s.mu.Lock()
	_, err := s.findRunningVM(c)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	timeout := shutdownTimeout
	if c.hasParam("timeout") {
		timeout = time.Duration(c.intParam("timeout")) * time.Second
	}
	return s.forkVM(c, "qmreboot", func(ctx context.Context, t *task) error {
		m, run, err := s.findRun(c)
		if err != nil {
			return err
		}
		if m == nil {
			return dief("VM %d not running", c.vmid)
		}
		s.logMissingAgent(ctx, t, m)
		if !s.requestPowerOff(ctx, run, timeout) {
			return newShutdownTimeoutError()
		}
		s.endRun(m, run)
		return s.bootVM(ctx, c, t)
	})
}

func sendKey(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.findRunningVM(c)
	return nil, err
}
