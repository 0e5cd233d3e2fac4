// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The first port of a console, and how long a console waits for its client.
const (
	firstConsolePort = 5900
	consoleWait      = 10 * time.Second
	// consoleTicketLifetime is how long the ticket of a console is valid, and ticketSkew how much the clocks of nodes may
	// differ.
	consoleTicketLifetime = 40 * time.Second
	ticketSkew            = 20 * time.Second
)

// consoleRoutes returns the calls that open consoles, and the monitor of a VM. A console gets its ticket, its port
// and its task. Data flow through the terminals of VMs only.
func consoleRoutes() []route {
	node, vm := "/nodes/{node}", "/nodes/{node}/qemu/{vmid}"
	console, shell := requireAll("/vms/{vmid}", "VM.Console"), requireAll(node, "Sys.Console")
	vnc := schema{"websocket": {kind: kBool}, "generate-password": {kind: kBool}}
	command := schema{"cmd": {enum: []string{"login", "upgrade", "ceph_install"}}, "cmd-opts": {}}
	size := schema{
		"websocket": {kind: kBool}, "width": {kind: kInt, min: 16, max: 4096}, "height": {kind: kInt, min: 16, max: 2160},
	}
	socket := schema{
		"vncticket": {required: true, maxLen: 512}, "port": {kind: kInt, required: true, min: firstConsolePort, max: 5999},
	}
	serial := schema{"serial": {enum: []string{"serial0", "serial1", "serial2", "serial3"}}}
	post := func(path string, perm permCheck, params schema, h handler) route {
		return newRoute(http.MethodPost, path, ClassVM, perm, params, h)
	}
	return []route{
		post(vm+"/vncproxy", console, vnc, newConsole("vncproxy")), post(vm+"/termproxy", console, serial, openTerminal),
		post(vm+"/spiceproxy", console, schema{"proxy": {}}, openSpice),
		newRoute(http.MethodGet, vm+"/vncwebsocket", ClassVM, console, socket, openWebSocket),
		post(node+"/vncshell", shell, command.merge(size), newConsole("vncshell")),
		post(node+"/termproxy", shell, command, newConsole("vncshell")),
		post(node+"/spiceshell", shell, command.merge(schema{"proxy": {}}), newConsole("spiceshell")),
		newRoute(http.MethodGet, node+"/vncwebsocket", ClassOther, shell, socket, openWebSocket),
		post(vm+"/monitor", requireAny("/vms/{vmid}", "Sys.Audit", "Sys.Modify"), schema{"command": {required: true}},
			runMonitorCommand),
	}
}

// newConsole returns a handler that opens a console. Its task waits for the client.
func newConsole(kind string) handler {
	return func(s *Server, c *call) (any, error) {
		port, err := s.reserveConsolePort(c)
		if err != nil {
			return nil, err
		}
		upid, err := s.fork(c, kind, c.vars["vmid"], func(ctx context.Context, _ *task) error {
			if !s.sleep(ctx, consoleWait) {
				return newInterruptError()
			}
			return dief("connection timed out")
		})
		if err != nil {
			return nil, err
		}
		out := map[string]any{
			"user": c.auth.principal(), "ticket": s.newConsoleTicket(c, port), "port": strconv.Itoa(port), "upid": upid,
		}
		if !strings.HasSuffix(c.path, "/termproxy") {
			out["cert"] = string(s.CAPEM())
		}
		if c.boolParam("generate-password") {
			out["password"] = s.sign("console:" + fmt.Sprint(upid))[:8]
		}
		return out, nil
	}
}

// reserveConsolePort returns the port of a new console. It checks that a VM whose console is opened exists.
func (s *Server) reserveConsolePort(c *call) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.model.isMissing(MissingPorts) {
		return 0, dief("close (rename) atomic file '/var/tmp/pve-reserved-ports' failed: Is a directory")
	}
	if c.vars["vmid"] != "" {
		if _, err := s.findVM(c.node, c.vmid); err != nil {
			return 0, err
		}
	}
	s.consolePort = (s.consolePort + 1) % 100 //nolint:mnd // ports 5900 to 5999
	return firstConsolePort + s.consolePort, nil
}

// newConsoleTicket returns a ticket that only its user can use, and only for the console on the port.
func (s *Server) newConsoleTicket(c *call, port int) string {
	plain := fmt.Sprintf("PVEVNC:%08X", s.clk.Now().Unix())
	return plain + "::" + s.sign(plain+":"+consoleSecret(c, c.auth.principal(), strconv.Itoa(port)))
}

// consoleSecret returns what a console's ticket is signed with besides its own text.
func consoleSecret(c *call, user, port string) string {
	path := "/nodes/" + c.node
	if c.vars["vmid"] != "" {
		path = "/vms/" + c.vars["vmid"]
	}
	return user + ":" + path + ":" + port
}

// isConsoleTicket reports whether a ticket is that of the user for the console on the port.
func (s *Server) isConsoleTicket(c *call, ticket, user, port string) bool {
	plain, signature, _ := strings.Cut(ticket, "::")
	stamp, isTicket := strings.CutPrefix(plain, "PVEVNC:")
	created, err := strconv.ParseInt(stamp, 16, 64)
	age := s.clk.Now().Sub(time.Unix(created, 0))
	return isTicket && err == nil && age >= -ticketSkew && age <= consoleTicketLifetime &&
		signature == s.sign(plain+":"+consoleSecret(c, user, port))
}

// openSpice opens a console by SPICE, for which a VM needs a display of the type qxl.
func openSpice(s *Server, c *call) (any, error) {
	s.mu.Lock()
	m, err := s.findVM(c.node, c.vmid)
	if err == nil && !strings.HasPrefix(m.conf["vga"], "qxl") {
		err = dief("no spice port")
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return newConsole("spiceproxy")(s, c)
}

// openWebSocket checks the ticket of a console's connection. If the client asks for a WebSocket, the response connects
// it with the console.
func openWebSocket(s *Server, c *call) (any, error) {
	port := c.param("port")
	if !s.isConsoleTicket(c, c.param("vncticket"), c.auth.principal(), port) {
		s.sleep(c.ctx, s.model.Delays.LoginFailure)
		return nil, newUnauthorizedError("permission denied - invalid PVEVNC ticket")
	}
	return webSocket{port: port}, nil
}

// runMonitorCommand runs a command of QEMU's monitor. The simulator knows "info status", and other commands that
// begin with "info" return nothing. Only root itself can use the rest.
func runMonitorCommand(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	command := c.param("command")
	name, _, _ := strings.Cut(command, " ")
	if !c.auth.isRoot() && name != "info" && name != "help" {
		return nil, dief("command '%s' non-existent or not assigned a required permission yet, limiting to root user", command)
	}
	m, err := s.findVM(c.node, c.vmid)
	switch {
	case err != nil:
		return nil, err
	case !m.running:
		return nil, dief("VM %d not running", m.id)
	case command == "info status":
		return "VM status: " + m.qmpStatus() + "\r\n", nil
	case name == "info":
		return "", nil
	default:
		return "unknown command: '" + name + "'\r\n", nil
	}
}
