// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"fmt"
	"net/http"
	"regexp"
	"time"
)

// agentWait is how long a call waits for an agent that does not answer.
const agentWait = 3 * time.Second

var reNetMAC = regexp.MustCompile(`(?i)([0-9a-f]{2}(?::[0-9a-f]{2}){5})`)

func agentRoutes() []route {
	base := "/nodes/{node}/qemu/{vmid}/agent/"
	return []route{
		newRoute(http.MethodPost, base+"ping", ClassVM, permAgent, nil, agentPing),
		newRoute(http.MethodGet, base+"network-get-interfaces", ClassVM, permAgent, nil, agentInterfaces),
		newRoute(http.MethodGet, base+"info", ClassVM, permAgent, nil, agentInfo),
	}
}

// permAgent is VM.Monitor up to 8, VM.GuestAgent.Audit from 9.
func permAgent(s *Server, c *call) error {
	if isPVE8(s.model.Version) {
		return s.may(c.auth, vmPath(c.vmid), "VM.Monitor")
	}
	return s.mayAny(c.auth, vmPath(c.vmid), "VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted")
}

// agentReady checks that an agent is configured, that the VM runs, and that
// the agent answers.
func (s *Server) agentReady(c *call) error {
	s.mu.Lock()
	m, err := s.get(c.node, c.vmid)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	enabled, running := agentEnabled(m.conf["agent"]), m.running
	ready := m.guest != nil && !s.clk.Now().Before(m.guest.agentAt)
	s.mu.Unlock()
	switch {
	case !enabled:
		return dief("No QEMU guest agent configured")
	case !running:
		return dief("VM %d is not running", c.vmid)
	case !ready:
		s.sleep(c.ctx, min(agentWait, s.model.Delays.Agent))
		return dief("QEMU guest agent is not running")
	}
	return nil
}

func agentPing(s *Server, c *call) (any, error) {
	return map[string]any{"result": map[string]any{}}, s.agentReady(c)
}

func agentInfo(s *Server, c *call) (any, error) {
	return map[string]any{"result": map[string]any{"version": "9.2.0"}}, s.agentReady(c)
}

// agentInterfaces gives every VM an address of its own, derived from its id.
func agentInterfaces(s *Server, c *call) (any, error) {
	if err := s.agentReady(c); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.get(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	mac := reNetMAC.FindString(m.conf["net0"])
	return map[string]any{"result": []any{
		iface("lo", "00:00:00:00:00:00", "127.0.0.1", 8), //nolint:mnd // loopback is a /8
		iface("eth0", mac, guestIP(m.id), 8),             //nolint:mnd // all VMs share 10.0.0.0/8
	}}, nil
}

func iface(name, mac, ip string, prefix int) map[string]any {
	return map[string]any{
		"name": name, "hardware-address": mac,
		"ip-addresses": []any{map[string]any{"ip-address": ip, "ip-address-type": "ipv4", "prefix": prefix}},
	}
}

// guestIP is the address of a VM: 10.x.y.z out of its id.
func guestIP(vmid int) string {
	return fmt.Sprintf("10.%d.%d.%d", vmid>>16&0xff, vmid>>8&0xff, vmid&0xff)
}
