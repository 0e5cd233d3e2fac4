// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/luthermonson/go-proxmox"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// startTerminalVM clones and starts VM 1000, with the serial port of its template or without one.
func startTerminalVM(a *rawClient, hasSerial bool) {
	a.t.Helper()
	a.clone("1000", nil)
	if !hasSerial {
		a.mustDo("PUT", "/nodes/pve1/qemu/1000/config", formData{"delete": "serial0,vga"})
	}
	a.mustRunTask("POST", "/nodes/pve1/qemu/1000/status/start", nil)
}

// shown reads from a terminal until it has shown the text, and returns all that it has shown.
func shown(t *testing.T, read func() ([]byte, error), text string) string {
	t.Helper()
	var out strings.Builder
	for !strings.Contains(out.String(), text) {
		part, err := read()
		if err != nil {
			t.Fatalf("the terminal has shown %q, and not %q: %v", out.String(), text, err)
		}
		out.Write(part)
	}
	return out.String()
}

// dial opens the WebSocket of a console as the caller.
func (a *rawClient) dial(path, port, ticket string) (*websocket.Conn, *http.Response, error) {
	a.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.s.CAPEM())
	dialer := websocket.Dialer{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, Subprotocols: []string{"binary"},
		HandshakeTimeout: time.Minute,
	}
	query := url.Values{"port": {port}, "vncticket": {ticket}}
	conn, res, err := dialer.DialContext(a.t.Context(), strings.Replace(a.s.URL(), "https", "wss", 1)+"/api2/json"+path+
		"/vncwebsocket?"+query.Encode(), a.header)
	if conn != nil {
		a.t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	}
	return conn, res, err
}

// termproxy starts a terminal and returns its user, port and ticket.
func (a *rawClient) termproxy() (user, port, ticket string) {
	a.t.Helper()
	got, _ := a.mustDo("POST", "/nodes/pve1/qemu/1000/termproxy", nil).(map[string]any)
	return fmt.Sprint(got["user"]), fmt.Sprint(got["port"]), fmt.Sprint(got["ticket"])
}

// openTerminal opens a terminal and logs in with the line.
func (a *rawClient) openTerminal(line func(user, ticket string) string) (*websocket.Conn, error) {
	a.t.Helper()
	user, port, ticket := a.termproxy()
	conn, _, err := a.dial("/nodes/pve1/qemu/1000", port, ticket)
	if err != nil {
		a.t.Fatal(err)
	}
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte(line(user, ticket))); err != nil {
		return nil, err
	}
	_, first, err := conn.ReadMessage()
	if err != nil {
		return nil, err
	}
	if string(first) != "OK" {
		a.t.Fatalf("the terminal begins with %q", first)
	}
	return conn, nil
}

func logInLine(user, ticket string) string { return user + ":" + ticket + "\n" }

func readFrom(conn *websocket.Conn) func() ([]byte, error) {
	return func() ([]byte, error) { _, part, err := conn.ReadMessage(); return part, err }
}

// A client that others wrote opens the terminal of a VM. Keys flow in, and the output of the guest flows out.
func TestClientOpensTerminal(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	startTerminalVM(a, true)
	l := session{t: t, c: newRootClient(a.s)}
	node, err := l.c.Node(t.Context(), "pve1")
	l.requireNoError(err)
	vm, err := node.VirtualMachine(t.Context(), 1000)
	l.requireNoError(err)
	term, err := vm.TermProxy(t.Context())
	l.requireNoError(err)
	keys, output, problems, closeTerminal, err := vm.TermWebSocket(term)
	l.requireNoError(err)
	read := func() ([]byte, error) {
		select {
		case part := <-output:
			return part, nil
		case err := <-problems:
			return nil, err
		case <-time.After(time.Minute):
			return nil, errors.New("nothing is shown")
		}
	}
	shown(t, read, "starting serial terminal on interface serial0\r\n")
	// Without a terminal of its own, the client tells a window of -1 columns, and termproxy ignores what follows.
	keys <- []byte("\r")
	keys <- []byte("root\r")
	shown(t, read, "root\r\n")
	l.requireNoError(closeTerminal())
	l.waitForTask(proxmox.NewTask(proxmox.UPID(term.UPID), l.c), nil)
}

// A token can open a terminal from version 9.2 on. A terminal ends with its VM. A second terminal waits for the first one.
func TestTerminal(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil).asRoot()
	startTerminalVM(a, true)
	first, err := a.openTerminal(logInLine)
	if err != nil {
		t.Fatal(err)
	}
	shown(t, readFrom(first), "starting serial terminal")
	second, err := newRawClient(t, a.s).withToken(rootToken(a)).openTerminal(logInLine)
	if err != nil {
		t.Fatal(err)
	}
	shown(t, readFrom(second), "starting serial terminal")
	// A message can have several parts, and a part several messages.
	for _, part := range []string{"1:100:", "30:20:3:a", "bc2"} {
		if err := first.WriteMessage(websocket.TextMessage, []byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	shown(t, readFrom(first), "abc")
	_ = first.Close()
	if err := second.WriteMessage(websocket.BinaryMessage, []byte("0:3:def")); err != nil {
		t.Fatal(err)
	}
	shown(t, readFrom(second), "def")
	a.s.PowerOff(1000)
	for {
		if _, err := readFrom(second)(); err != nil {
			break
		}
	}
}

func rootToken(a *rawClient) (id, secret string) {
	a.t.Helper()
	got, _ := a.mustDo("POST", "/access/users/root@pam/token/term", formData{"privsep": "0"}).(map[string]any)
	return "root@pam!term", fmt.Sprint(got["value"])
}

// A terminal says why it cannot be used, and ends.
func TestTerminalWithoutSerialPort(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil).asRoot()
	startTerminalVM(a, false)
	end := func(text string) {
		t.Helper()
		conn, err := a.openTerminal(logInLine)
		if err != nil {
			t.Fatal(err)
		}
		shown(t, readFrom(conn), text)
		if _, err := readFrom(conn)(); err == nil {
			t.Errorf("the terminal goes on after %q", text)
		}
	}
	end("unable to find a serial interface\r\n")
	a.s.PowerOff(1000)
	a.mustDo("PUT", "/nodes/pve1/qemu/1000/config", formData{"vga": "serial1"})
	end("serial interface 'serial1' is not configured\r\n")
	a.mustDo("PUT", "/nodes/pve1/qemu/1000/config", formData{"serial1": "socket"})
	end("VM 1000 not running\r\n")
}

// A ticket is valid for a short time, for one user, one VM, one port, and one connection.
func TestTerminalTickets(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC))
	a := startCluster(t, func(m *pve.Model) { m.Delays = pve.Delays{} }, pve.WithClock(clk)).asRoot()
	startTerminalVM(a, true)
	path := "/nodes/pve1/qemu/1000"
	refused := func(client *rawClient, path, port, ticket, reason string) {
		t.Helper()
		_, res, err := client.dial(path, port, ticket)
		switch {
		case err == nil:
			t.Errorf("the ticket is valid: want %q", reason)
		case reason == "" && res != nil:
			t.Errorf("want no response, got %s", res.Status)
		case reason != "" && (res == nil || !strings.Contains(res.Status, reason)):
			t.Errorf("want %q, got %v", reason, err)
		}
	}
	const invalid = "401 permission denied - invalid PVEVNC ticket"
	_, port, ticket := a.termproxy()
	refused(newRawClient(t, a.s).withToken(rootToken(a)), path, port, ticket, invalid)
	refused(a, "/nodes/pve1/qemu/100", port, ticket, invalid)
	refused(a, path, "5999", ticket, invalid)
	refused(a.withToken(pve.DefaultTokenID, "wrong"), path, port, ticket, "401")
	if got := a.do("GET", path+"/vncwebsocket", formData{"port": port, "vncticket": ticket}); got.status != http.StatusOK {
		t.Errorf("without an upgrade: %d %s", got.status, got.reason)
	}
	conn, _, err := a.dial(path, port, ticket)
	if err != nil {
		t.Fatal(err)
	}
	refused(a, path, port, ticket, "") // nothing listens on the port any more
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte("root@pam:another\n")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := conn.ReadMessage(); err == nil {
		t.Error("another ticket opens the terminal")
	}
	_, port, ticket = a.termproxy()
	clk.Step(41 * time.Second)
	refused(a, path, port, ticket, invalid)
}

// Without its client, termproxy ends after ten seconds. Up to version 8, it accepts no token.
func TestTerminalFails(t *testing.T) {
	t.Parallel()
	a := startCluster(t, func(m *pve.Model) { m.Version = "8.4.1" }).asRoot()
	startTerminalVM(a, true)
	if _, err := newRawClient(t, a.s).withToken(rootToken(a)).openTerminal(logInLine); err == nil {
		t.Error("a token opens a terminal")
	}
	clk := clocktesting.NewFakeClock(time.Now())
	b := startCluster(t, func(m *pve.Model) { m.Delays = pve.Delays{} }, pve.WithClock(clk)).asRoot()
	startTerminalVM(b, true)
	got, _ := b.mustDo("POST", "/nodes/pve1/qemu/1000/termproxy", nil).(map[string]any)
	timing.WaitUntil(t, "termproxy waits", func() bool { return clk.HasWaiters() })
	clk.Step(11 * time.Second)
	if exit := b.waitForTask(got["upid"]); !strings.HasPrefix(exit, "command '/usr/bin/termproxy "+fmt.Sprint(got["port"])) {
		t.Errorf("the task ended with %q", exit)
	}
}
