// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
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
	run := schema{"command": {required: true, list: true}, "input-data": {}}
	write := schema{"file": {required: true}, "content": {required: true, maxLen: 60 << 10}, "encode": {kind: kBool}}
	var plain []route
	for _, name := range []string{"get-osinfo", "get-host-name", "get-time", "get-timezone", "get-users", "get-fsinfo"} {
		plain = append(plain, newRoute(http.MethodGet, base+name, ClassVM, permAgent, nil, askAgent("guest-"+name)))
	}
	return append(plain, []route{
		newRoute(http.MethodPost, base+"exec", ClassVM, permAgentTo("Unrestricted"), run, agentDo((*simGuest).exec)),
		newRoute(http.MethodGet, base+"exec-status", ClassVM, permAgentTo("Unrestricted"),
			schema{"pid": {kind: kInt, required: true}}, agentDo((*simGuest).execStatus)),
		newRoute(http.MethodPost, base+"file-write", ClassVM, permAgentTo("FileWrite", "Unrestricted"), write,
			agentDo((*simGuest).fileWrite)),
		newRoute(http.MethodGet, base+"file-read", ClassVM, permAgentTo("FileRead", "Unrestricted"),
			schema{"file": {required: true}}, agentDo((*simGuest).fileRead)),
		newRoute(http.MethodPost, base+"ping", ClassVM, permAgent, nil, askAgent("guest-ping")),
		newRoute(http.MethodGet, base+"network-get-interfaces", ClassVM, permAgent, nil, askAgent("guest-network-get-interfaces")),
		newRoute(http.MethodGet, base+"info", ClassVM, permAgent, nil, askAgent("guest-info")),
	}...)
}

// permAgentTo asks for one of the agent's privileges; up to 8 there is one for all.
func permAgentTo(names ...string) permCheck {
	return func(s *Server, c *call) error {
		if isPVE8(s.model.Version) {
			return s.may(c.auth, vmPath(c.vmid), "VM.Monitor")
		}
		privs := make([]string, 0, len(names))
		for _, n := range names {
			privs = append(privs, "VM.GuestAgent."+n)
		}
		return s.mayAny(c.auth, "/vms/"+c.vars["vmid"], privs...)
	}
}

// permAgent is VM.Monitor up to 8, VM.GuestAgent.Audit from 9.
func permAgent(s *Server, c *call) error {
	if isPVE8(s.model.Version) {
		return s.may(c.auth, vmPath(c.vmid), "VM.Monitor")
	}
	return s.mayAny(c.auth, vmPath(c.vmid), "VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted")
}

// noAgent is what the API says of an agent that does not answer.
func noAgent() error { return dief("QEMU guest agent is not running") }

// askAgent checks that an agent is configured and that the VM runs, and has the
// agent do a command.
func askAgent(command string) handler {
	return func(s *Server, c *call) (any, error) {
		run, err := s.agentOf(c)
		if err != nil {
			return nil, err
		}
		result, err := run.agent(c.ctx, command)
		if err != nil {
			return nil, err
		}
		return map[string]any{"result": result}, nil
	}
}

// agentOf is what runs the agent that a call is for.
func (s *Server) agentOf(c *call) (*guestRun, error) {
	s.mu.Lock()
	m, err := s.get(c.node, c.vmid)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	enabled, running, run := agentEnabled(m.conf["agent"]), m.running, m.guest
	s.mu.Unlock()
	switch {
	case !enabled:
		return nil, dief("No QEMU guest agent configured")
	case !running:
		return nil, dief("VM %d is not running", c.vmid)
	case run == nil: // a VM of somebody else
		s.sleep(c.ctx, min(agentWait, s.model.Delays.Agent))
		return nil, noAgent()
	default:
		return run, nil
	}
}

// agent answers once the guest has booted. Every VM has an address of its own,
// derived from its id.
func (g *simGuest) agent(ctx context.Context, command string) (any, error) {
	s := g.s
	if s.clk.Now().Before(g.agentAt) {
		s.sleep(ctx, min(agentWait, s.model.Delays.Agent))
		return nil, noAgent()
	}
	switch command {
	case "guest-info":
		return map[string]any{"version": "9.2.0"}, nil
	case "guest-get-osinfo":
		return map[string]any{
			"id": "debian", "name": "Debian GNU/Linux", "pretty-name": "Debian GNU/Linux 13 (trixie)", "version": "13 (trixie)",
			"version-id": "13", "kernel-release": "6.12.0", "kernel-version": "#1 SMP", "machine": "x86_64",
		}, nil
	case "guest-get-host-name":
		return map[string]any{"host-name": g.m.name0(s)}, nil
	case "guest-get-time":
		return s.clk.Now().UnixNano(), nil
	case "guest-get-timezone":
		return map[string]any{"zone": "UTC", "offset": 0}, nil
	case "guest-get-users", "guest-get-fsinfo":
		return []any{}, nil
	case "guest-network-get-interfaces":
		s.mu.Lock()
		defer s.mu.Unlock()
		return []any{
			iface("lo", "00:00:00:00:00:00", "127.0.0.1", 8),                         //nolint:mnd // loopback is a /8
			iface("eth0", reNetMAC.FindString(g.m.conf["net0"]), guestIP(g.m.id), 8), //nolint:mnd // all VMs share 10.0.0.0/8
		}, nil
	default:
		return map[string]any{}, nil
	}
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
