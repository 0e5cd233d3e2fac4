// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// agentPingTimeout is how long a call waits for an agent that does not respond.
const agentPingTimeout = 3 * time.Second

var reNetMAC = regexp.MustCompile(`(?i)([0-9a-f]{2}(?::[0-9a-f]{2}){5})`)

func agentRoutes() []route {
	base := "/nodes/{node}/qemu/{vmid}/agent/"
	run := schema{"command": {required: true, list: true}, "input-data": {}}
	write := schema{"file": {required: true}, "content": {required: true, maxLen: 60 << 10}, "encode": {kind: kBool}}
	var plain []route
	for _, name := range []string{"get-osinfo", "get-host-name", "get-time", "get-timezone", "get-users", "get-fsinfo",
		"get-vcpus", "get-memory-blocks", "get-memory-block-info"} {
		plain = append(plain, newRoute(http.MethodGet, base+name, ClassVM, checkAgentPermission, nil, newAgentHandler("guest-"+name)))
	}
	for name, perm := range map[string]permCheck{
		"fsfreeze-status": checkAgentPermission, "shutdown": newAgentPowerPermission(), "suspend-ram": newAgentPowerPermission(),
		"suspend-disk": newAgentPowerPermission(), "suspend-hybrid": newAgentPowerPermission(),
		"fstrim":          newAgentPermission("FileSystemMgmt", "Unrestricted"),
		"fsfreeze-freeze": newAgentPermission("FileSystemMgmt", "Unrestricted"),
		"fsfreeze-thaw":   newAgentPermission("FileSystemMgmt", "Unrestricted"),
	} {
		plain = append(plain, newRoute(http.MethodPost, base+name, ClassVM, perm, nil, newAgentHandler("guest-"+name)))
	}
	return append(plain, []route{
		newRoute(http.MethodPost, strings.TrimSuffix(base, "/"), ClassVM, newAgentPermission("Unrestricted", "Unrestricted"),
			schema{"command": {required: true}}, runNamedAgentCommand),
		newRoute(http.MethodPost, base+"set-user-password", ClassVM, newAgentPermission("Unrestricted"), schema{
			"username": {required: true}, "password": {required: true, minLen: 5, maxLen: 1024}, "crypted": {kind: kBool},
		}, newAgentHandler("guest-set-user-password")),
		newRoute(http.MethodPost, base+"exec", ClassVM, newAgentPermission("Unrestricted"), run, newSimGuestHandler((*simGuest).exec)),
		newRoute(http.MethodGet, base+"exec-status", ClassVM, newAgentPermission("Unrestricted"),
			schema{"pid": {kind: kInt, required: true}}, newSimGuestHandler((*simGuest).execStatus)),
		newRoute(http.MethodPost, base+"file-write", ClassVM, newAgentPermission("FileWrite", "Unrestricted"), write,
			newSimGuestHandler((*simGuest).fileWrite)),
		newRoute(http.MethodGet, base+"file-read", ClassVM, newAgentPermission("FileRead", "Unrestricted"),
			schema{"file": {required: true}}, newSimGuestHandler((*simGuest).fileRead)),
		newRoute(http.MethodPost, base+"ping", ClassVM, checkAgentPermission, nil, newAgentHandler("guest-ping")),
		newRoute(http.MethodGet, base+"network-get-interfaces", ClassVM, checkAgentPermission, nil,
			newAgentHandler("guest-network-get-interfaces")),
		newRoute(http.MethodGet, base+"info", ClassVM, checkAgentPermission, nil, newAgentHandler("guest-info")),
	}...)
}

// newAgentPermission returns a check for one of the agent's privileges. Up to version 8, VM.Monitor
// is the only privilege for the agent.
func newAgentPermission(names ...string) permCheck {
	return func(s *Server, c *call) error {
		if isPVE8(s.version()) {
			return s.require(c.auth, vmPath(c.vmid), "VM.Monitor")
		}
		privs := make([]string, 0, len(names))
		for _, n := range names {
			privs = append(privs, "VM.GuestAgent."+n)
		}
		return s.requireAny(c.auth, "/vms/"+c.vars["vmid"], privs...)
	}
}

// checkAgentPermission requires VM.Monitor up to version 8, and VM.GuestAgent.Audit or
// VM.GuestAgent.Unrestricted from 9.
func checkAgentPermission(s *Server, c *call) error {
	if isPVE8(s.version()) {
		return s.require(c.auth, vmPath(c.vmid), "VM.Monitor")
	}
	return s.requireAny(c.auth, vmPath(c.vmid), "VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted")
}

// newAgentPowerPermission returns the check of commands that change the power state.
func newAgentPowerPermission() permCheck {
	return func(s *Server, c *call) error {
		if isPVE8(s.version()) {
			return s.require(c.auth, vmPath(c.vmid), "VM.Monitor")
		}
		return s.requireAny(c.auth, vmPath(c.vmid), "VM.PowerMgmt", "VM.GuestAgent.Unrestricted")
	}
}

// runNamedAgentCommand runs the command of the parameter.
func runNamedAgentCommand(s *Server, c *call) (any, error) {
	return newAgentHandler("guest-"+c.param("command"))(s, c)
}

// newNoAgentError returns the error for an agent that does not respond.
func newNoAgentError() error { return dief("QEMU guest agent is not running") }

// newAgentHandler returns a handler that checks that an agent is configured and that the VM runs.
// The handler then runs an agent command.
func newAgentHandler(command string) handler {
	return func(s *Server, c *call) (any, error) {
		run, err := s.findAgent(c)
		if err != nil {
			return nil, err
		}
		result, err := run.runAgentCommand(c.ctx, command)
		if err != nil {
			return nil, err
		}
		return map[string]any{"result": result}, nil
	}
}

// findAgent returns the guest run whose agent a call uses.
func (s *Server) findAgent(c *call) (*guestRun, error) {
	s.mu.Lock()
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	isEnabled, isRunning, run := isAgentEnabled(m.conf["agent"]), m.running, m.guest
	s.mu.Unlock()
	switch {
	case !isRunning:
		return nil, dief("VM %d is not running", c.vmid)
	case !isEnabled:
		return nil, newNoAgentError()
	case run == nil: // a VM of the model has no agent
		s.sleep(c.ctx, min(agentPingTimeout, s.model.Delays.Agent))
		return nil, newNoAgentError()
	default:
		return run, nil
	}
}

// runAgentCommand runs an agent command after the guest has booted. Each VM has an address of its
// own, which is derived from its id.
func (g *simGuest) runAgentCommand(ctx context.Context, command string) (any, error) {
	s := g.s
	if s.clk.Now().Before(g.agentAt) {
		s.sleep(ctx, min(agentPingTimeout, s.model.Delays.Agent))
		return nil, newNoAgentError()
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
		return map[string]any{"host-name": g.m.readName(s)}, nil
	case "guest-get-time":
		return s.clk.Now().UnixNano(), nil
	case "guest-get-timezone":
		return map[string]any{"zone": "UTC", "offset": 0}, nil
	case "guest-get-users", "guest-get-fsinfo", "guest-get-vcpus", "guest-get-memory-blocks":
		return []any{}, nil
	case "guest-network-get-interfaces":
		s.mu.Lock()
		defer s.mu.Unlock()
		mac := reNetMAC.FindString(g.m.conf["net0"])
		if s.model.Guest.IPv6Only {
			return []any{
				newInterface("lo", "00:00:00:00:00:00", "::1", 128), //nolint:mnd // loopback is one address
				newInterface("eth0", mac, guestIPv6(g.m.id), 64),    //nolint:mnd // all VMs share a /64
			}, nil
		}
		return []any{
			newInterface("lo", "00:00:00:00:00:00", "127.0.0.1", 8), //nolint:mnd // loopback is a /8
			newInterface("eth0", mac, guestIP(g.m.id), 8),           //nolint:mnd // all VMs share 10.0.0.0/8
		}, nil
	default:
		return map[string]any{}, nil
	}
}

func newInterface(name, mac, ip string, prefix int) map[string]any {
	family := "ipv4"
	if strings.Contains(ip, ":") {
		family = "ipv6"
	}
	return map[string]any{
		"name": name, "hardware-address": mac,
		"ip-addresses": []any{map[string]any{"ip-address": ip, "ip-address-type": family, "prefix": prefix}},
	}
}

// guestIPv6 returns the address of a VM on a network without IPv4.
func guestIPv6(vmid int) string { return fmt.Sprintf("2001:db8::%x:%x", vmid>>16, vmid&0xffff) }

// guestIP returns the address of a VM: 10.x.y.z, derived from its id.
func guestIP(vmid int) string {
	return fmt.Sprintf("10.%d.%d.%d", vmid>>16&0xff, vmid>>8&0xff, vmid&0xff)
}
