// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

const (
	// maxFrame is the largest frame that pveproxy reads from a WebSocket.
	maxFrame = 128 << 10
	// maxLoginLine limits the line with which a client logs in to a terminal.
	maxLoginLine = 4 << 10
	// terminalQueue is how many parts of the output wait for the client of a terminal.
	terminalQueue = 256
	// serialRetry is how often a terminal tries to connect to a serial port that another terminal uses. QEMU accepts one
	// connection, and the others wait.
	serialRetry = 50 * time.Millisecond
)

// webSocket is the response that connects the client with a console.
type webSocket struct{ port string }

// MarshalJSON encodes the response for a client that did not ask for a WebSocket.
func (w webSocket) MarshalJSON() ([]byte, error) { return json.Marshal(map[string]any{"port": w.port}) }

// terminal is a program termproxy that waits for its client.
type terminal struct {
	call         *call
	node         string // that listens on the port
	iface        string // the serial port, or "" for the first one
	port, ticket string
	client       chan *websocket.Conn
}

// openTerminal starts termproxy for a VM. The data of its client flow to and from the VM's serial port.
func openTerminal(s *Server, c *call) (any, error) {
	port, err := s.reserveConsolePort(c)
	if err != nil {
		return nil, err
	}
	t := &terminal{
		call: c, node: s.getEntryNode(), iface: c.param("serial"), port: strconv.Itoa(port), ticket: s.newConsoleTicket(c, port),
		client: make(chan *websocket.Conn, 1),
	}
	s.mu.Lock()
	if m := s.vms[c.vmid]; t.iface == "" && m != nil && strings.HasPrefix(m.conf["vga"], "serial") {
		t.iface, _, _ = strings.Cut(m.conf["vga"], ",")
	}
	s.terminals[port] = t
	s.mu.Unlock()
	upid, err := s.fork(c, "vncproxy", c.vars["vmid"], func(ctx context.Context, work *task) error {
		conn, err := s.awaitClient(ctx, t, port)
		if err == nil {
			err = s.runTerminal(ctx, t, conn)
		}
		if err == nil || ctx.Err() != nil {
			return nil //nolint:nilerr // the task has been stopped
		}
		s.printf(work, "%s", errorReason(err))
		command := "/usr/bin/termproxy " + t.port + " --path /vms/" + c.vars["vmid"] +
			" --perm VM.Console --vncticket-endpoint --verify-port --ticket-fd 7 -- /usr/sbin/qm terminal " + c.vars["vmid"] + " -escape 0"
		if t.iface != "" {
			command += " -iface " + t.iface
		}
		return dief("command '%s' failed: exit code 1", command)
	})
	if err != nil {
		return nil, err
	}
	return map[string]any{"user": c.auth.principal(), "ticket": t.ticket, "port": t.port, "upid": upid}, nil
}

// awaitClient waits for the client of a terminal.
func (s *Server) awaitClient(ctx context.Context, t *terminal, port int) (*websocket.Conn, error) {
	timer := s.clk.NewTimer(consoleWait)
	defer timer.Stop()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.terminals[port] == t {
			delete(s.terminals, port)
		}
	}()
	select {
	case conn := <-t.client:
		return conn, nil
	case <-timer.C():
		return nil, dief("failed waiting for client: timed out")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// upgrade connects a client with the terminal on the port of its own node. A port on which nothing listens ends the
// connection, as do graphical consoles, which are not simulated.
func (s *Server) upgrade(w http.ResponseWriter, r *http.Request, c *call, socket webSocket) {
	port, _ := strconv.Atoi(socket.port)
	s.mu.Lock()
	t := s.terminals[port]
	if t != nil && t.node == s.findEntryNode() && t.call.vmid == c.vmid {
		delete(s.terminals, port)
	} else {
		t = nil
	}
	s.mu.Unlock()
	if t == nil || !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		cutConnection(w)
		return
	}
	upgrader := websocket.Upgrader{
		CheckOrigin: func(*http.Request) bool { return true }, Subprotocols: websocket.Subprotocols(r),
	}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // Upgrade has responded
	}
	conn.SetReadLimit(maxFrame)
	conn.SetCloseHandler(func(int, string) error { return nil }) // pveproxy closes the connection and sends no frame
	t.client <- conn
}

// runTerminal serves the client of a terminal, as termproxy does: it reads the client's login, and then connects it with
// `qm terminal`.
func (s *Server) runTerminal(ctx context.Context, t *terminal, conn *websocket.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	login := s.clk.NewTimer(consoleWait)
	hasLoggedIn := make(chan struct{})
	s.wg.Go(func() {
		defer login.Stop()
		select {
		case <-login.C():
			cancel()
		case <-hasLoggedIn:
		case <-ctx.Done():
		}
	})
	input := bufio.NewReader(&frames{conn: conn})
	line, err := input.ReadSlice('\n')
	close(hasLoggedIn)
	if err != nil || len(line) > maxLoginLine {
		return dief("failed reading ticket: connection closed before authentication")
	}
	user, ticket, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), ":")
	if ticket != t.ticket || !s.isConsoleTicket(t.call, ticket, user, t.port) || !s.acceptsInTerminal(user) {
		return dief("authentication request failed")
	}
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte("OK")); err != nil {
		return nil // the client has left
	}
	run, text := s.findSerialPort(t)
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte(text+"\r\n")); err != nil || run == nil {
		return nil // the client has left
	}
	s.relay(ctx, cancel, run, conn, input)
	return nil
}

// acceptsInTerminal reports whether termproxy accepts a user. Up to version 8, it asks for a ticket of the user, and a
// token gets none.
func (s *Server) acceptsInTerminal(user string) bool {
	return !isPVE8(s.version()) || !strings.Contains(user, "!")
}

// findSerialPort returns the guest whose serial port `qm terminal` uses and what it prints, or only what it prints if
// there is none.
func (s *Server) findSerialPort(t *terminal) (*guestRun, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findVM(t.call.node, t.call.vmid)
	if err != nil {
		return nil, errorReason(err)
	}
	iface := t.iface
	for i := 0; iface == "" && i < 4; i++ {
		if name := fmt.Sprintf("serial%d", i); m.conf[name] == "socket" {
			iface = name
		}
	}
	switch {
	case iface == "":
		return nil, "unable to find a serial interface"
	case m.conf[iface] == "":
		return nil, "serial interface '" + iface + "' is not configured"
	case m.conf[iface] != "socket":
		return nil, "wrong serial type on interface '" + iface + "'"
	case !m.running:
		return nil, fmt.Sprintf("VM %d not running", m.id)
	}
	return m.guest, "starting serial terminal on interface " + iface
}

// relay copies the output of a guest to the client, and the client's keys to the guest, until the client leaves or the VM
// is off.
func (s *Server) relay(ctx context.Context, cancel context.CancelFunc, run *guestRun, conn *websocket.Conn, input *bufio.Reader) {
	output := make(chan []byte, terminalQueue)
	for !run.log.attach(output) {
		if !s.sleep(ctx, serialRetry) {
			return
		}
	}
	defer run.log.detach()
	s.wg.Go(func() {
		defer cancel()
		_ = readMessages(input, func(keys []byte) error { return run.typeKeys(run, keys) })
	})
	for {
		select {
		case text := <-output:
			if conn.WriteMessage(websocket.BinaryMessage, text) != nil {
				return
			}
		case <-run.done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// readMessages reads the messages of termproxy's client: "0:LENGTH:KEYS", "1:COLUMNS:ROWS:" for the size of its window,
// and "2" to keep the connection open.
func readMessages(input *bufio.Reader, typeKeys func([]byte) error) error {
	for {
		kind, err := input.ReadByte()
		if err != nil {
			return err
		}
		if kind != '0' && kind != '1' {
			continue
		}
		if _, err := input.Discard(1); err != nil { // the colon
			return err
		}
		first, isNumber, err := readNumber(input)
		if err == nil && kind == '1' && isNumber {
			_, _, err = readNumber(input)
		}
		if err == nil && kind == '0' && isNumber {
			var keys []byte
			if keys, err = io.ReadAll(io.LimitReader(input, int64(first))); err == nil {
				err = typeKeys(keys)
			}
		}
		if err != nil {
			return err
		}
	}
}

// readNumber reads up to the next colon, and reports whether it has read a number. termproxy ignores other text.
func readNumber(input *bufio.Reader) (n int, isNumber bool, err error) {
	text, err := input.ReadSlice(':')
	if err != nil {
		return 0, false, err
	}
	parsed, err := strconv.ParseUint(string(bytes.TrimSuffix(text, []byte(":"))), 10, 31)
	return int(parsed), err == nil, nil
}

// frames reads the content of a WebSocket's messages as a stream, as pveproxy passes it on.
type frames struct {
	conn *websocket.Conn
	part io.Reader
}

func (f *frames) Read(p []byte) (int, error) {
	for {
		if f.part == nil {
			var err error
			if _, f.part, err = f.conn.NextReader(); err != nil {
				return 0, err
			}
		}
		n, err := f.part.Read(p)
		if errors.Is(err, io.EOF) {
			f.part, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}
