// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"net/http"
	"time"
)

func morePowerRoutes() []route {
	power := needs("/vms/{vmid}", "VM.PowerMgmt")
	base := "/nodes/{node}/qemu/{vmid}/status"
	skip := schema{"skiplock": {kind: kBool}}
	return []route{
		newRoute(http.MethodGet, base, ClassVM, nil, nil,
			index("subdir", "current", "start", "stop", "reset", "shutdown", "suspend", "reboot")),
		newRoute(http.MethodPost, base+"/reboot", ClassVM, power, schema{"timeout": {kind: kInt}}, rebootVM).async(),
		newRoute(http.MethodPost, base+"/reset", ClassVM, power, skip, onRunning("qmreset", nil)).async(),
		newRoute(http.MethodPost, base+"/suspend", ClassVM, power,
			skip.with(schema{"todisk": {kind: kBool}, "statestorage": {}}), suspendVM).async(),
		newRoute(http.MethodPost, base+"/resume", ClassVM, power, skip.with(schema{"nocheck": {kind: kBool}}),
			onRunning("qmresume", func(m *machine) { m.paused = false })).async(),
		newRoute(http.MethodPut, "/nodes/{node}/qemu/{vmid}/sendkey", ClassVM, needs("/vms/{vmid}", "VM.Console"),
			skip.with(schema{"key": {required: true}}), sendKey),
	}
}

// needsRunning refuses what a stopped VM can't do.
func (s *Server) needsRunning(c *call) (*machine, error) {
	m, err := s.get(c.node, c.vmid)
	if err == nil && !m.running {
		err = dief("VM %d not running", c.vmid)
	}
	return m, err
}

// onRunning is a task that changes a VM that runs; do may be nil.
func onRunning(kind string, do func(*machine)) handler {
	return func(s *Server, c *call) (any, error) {
		if err := rootOnly(c, "skiplock"); err != nil {
			return nil, err
		}
		s.mu.Lock()
		_, err := s.needsRunning(c)
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
		return s.forkVM(c, kind, func(_ context.Context, _ *task) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			m, err := s.needsRunning(c)
			if err == nil && !c.flag("skiplock") {
				err = m.checkLock()
			}
			if err == nil && do != nil {
				do(m)
			}
			return err
		})
	}
}

func suspendVM(s *Server, c *call) (any, error) {
	if c.flag("todisk") {
		return nil, dief("suspending to disk is not simulated")
	}
	return onRunning("qmpause", func(m *machine) { m.paused = true })(s, c)
}

// rebootVM asks the guest to power off and starts the VM anew, with its pending
// changes.
func rebootVM(s *Server, c *call) (any, error) {
	s.mu.Lock()
	_, err := s.needsRunning(c)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	timeout := shutdownTimeout
	if c.has("timeout") {
		timeout = time.Duration(c.num("timeout")) * time.Second
	}
	return s.forkVM(c, "qmreboot", func(ctx context.Context, t *task) error {
		s.mu.Lock()
		m, err := s.needsRunning(c)
		if err == nil {
			err = m.checkLock()
		}
		if err != nil {
			s.mu.Unlock()
			return err
		}
		run := m.guest
		s.mu.Unlock()
		if !s.askToPowerOff(ctx, run, timeout) {
			return dief("VM quit/powerdown failed - got timeout")
		}
		s.mu.Lock()
		s.powerOff(m)
		s.mu.Unlock()
		run.awaitGone()
		return s.boot(ctx, c, t)
	})
}

func sendKey(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.needsRunning(c)
	return nil, err
}
