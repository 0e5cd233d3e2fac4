// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

var (
	_ hypervisor.Terminal     = (*Provider)(nil)
	_ hypervisor.ConsoleGuide = (*Provider)(nil)
)

const (
	// maxKeys is the largest part of the input in one message. Proxmox VE accepts messages of 128 KiB.
	maxKeys = 64 << 10
	// maxTerminalMessage limits one message of the output.
	maxTerminalMessage = 1 << 20
	// keepAliveInterval is the interval of messages that keep a terminal open, as in Proxmox VE's own client.
	keepAliveInterval = 30 * time.Second
	keepAliveMessage  = "2"
	// writeTimeout limits how long it takes to send a message.
	writeTimeout = 30 * time.Second
	// acceptance is what the terminal sends after it has accepted the ticket. Output may follow immediately.
	acceptance = "OK"
)

// DescribeConsole names the commands of a node, and the web interface; see hypervisor.ConsoleGuide.
func (p *Provider) DescribeConsole(ref hypervisor.MachineRef, node string) string {
	return fmt.Sprintf("log in to node %s and run: qm terminal %d (if it is off: qm start %d first), "+
		"or open the console of VM %d in the web interface", node, ref.ID, ref.ID, ref.ID)
}

// terminalTicket is the response to termproxy. The port is a number or a text.
type terminalTicket struct {
	User   string `json:"user"`
	Ticket string `json:"ticket"`
	Port   any    `json:"port"`
}

// terminal is a live console. Proxmox VE passes the messages of the WebSocket to the program termproxy as a stream:
// "0:LENGTH:KEYS" is input. The output has no format.
type terminal struct {
	conn  *websocket.Conn
	ended chan struct{}

	closing sync.Once
	writing sync.Mutex

	reading sync.Mutex
	rest    []byte
}

// OpenTerminal opens the live console of a running machine; see hypervisor.Terminal.
func (p *Provider) OpenTerminal(ctx context.Context, ref hypervisor.MachineRef) (io.ReadWriteCloser, error) {
	m, err := p.getRunning(ctx, ref)
	if err != nil {
		return nil, err
	}

	operation := "open the console of machine " + m.Name

	config, err := p.client.readConfig(ctx, m.Node, m.ID)
	if err != nil {
		return nil, err
	}

	if !hasSerialSocket(config) {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "NoSerialPort",
			"%s: the machine has no serial port: add serial0: socket to its template", operation)
	}

	var ticket terminalTicket
	if err := p.client.call(ctx, operation, http.MethodPost, vmPath(m.Node, m.ID)+"/termproxy", nil, &ticket); err != nil {
		return nil, err
	}

	conn, err := p.client.dialTerminal(ctx, operation, vmPath(m.Node, m.ID)+"/vncwebsocket", ticket)
	if err != nil {
		return nil, err
	}

	t := &terminal{conn: conn, ended: make(chan struct{})}
	if err := t.logIn(ctx, ticket); err != nil {
		_ = conn.Close()

		return nil, &hypervisor.Error{
			Kind: hypervisor.Rejected, Reason: "ConsoleRefused", Err: err,
			Message: operation + ": Proxmox VE has closed the console: with an API token, it needs Proxmox VE 9.2 or later, and " +
				"the endpoint must lead to one node, not to several in turn",
		}
	}

	p.watcher.wg.Go(func() { t.keepAlive(p.watcher.ctx) })

	return t, nil
}

// getRunning returns a running machine. The list of machines may be older than its power-off.
func (p *Provider) getRunning(ctx context.Context, ref hypervisor.MachineRef) (hypervisor.Machine, error) {
	m, err := p.Get(ctx, ref)
	if err != nil {
		return m, err
	}

	status, err := p.client.readStatus(ctx, m.Node, m.ID)
	if err == nil && (status.Status != statusRunning || m.State != hypervisor.StateRunning) {
		err = newNotRunningError(hypervisor.MachineName(ref.Owner, ref.ID))
	}

	return m, err
}

func newNotRunningError(name string) error {
	return hypervisor.Errorf(hypervisor.NotFound, "NotRunning", "machine %s does not run", name)
}

// hasSerialSocket reports whether a console can be opened. If the machine's display is a serial port, that is the port of
// the console, and otherwise it is the first one.
func hasSerialSocket(config vmConfig) bool {
	const maxSerial = 4

	display, _, _ := strings.Cut(strings.TrimPrefix(config["vga"], "type="), ",")
	if strings.HasPrefix(display, "serial") {
		return config[display] == "socket"
	}

	for i := range maxSerial {
		if config[fmt.Sprintf("serial%d", i)] == "socket" {
			return true
		}
	}

	return false
}

// dialTerminal opens the WebSocket of a console. The ticket is in its URL, which wrapped transports do not see.
func (c *client) dialTerminal(ctx context.Context, operation, path string, ticket terminalTicket) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	header, err := c.newAuthHeader(ctx)
	if err != nil {
		return nil, err
	}

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", operation, err)
	}

	query := url.Values{"port": {fmt.Sprint(ticket.Port)}, "vncticket": {ticket.Ticket}}
	dialer := websocket.Dialer{
		Proxy: c.httpTransport.Proxy, NetDialContext: c.httpTransport.DialContext,
		TLSClientConfig: c.httpTransport.TLSClientConfig.Clone(), HandshakeTimeout: dialTimeout, Subprotocols: []string{"binary"},
	}

	var conn *websocket.Conn

	_, err = c.wrap(retry.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		var res *http.Response

		conn, res, err = dialer.DialContext(req.Context(), "wss"+strings.TrimPrefix(c.base, "https")+path+"?"+query.Encode(), header)
		if errors.Is(err, websocket.ErrBadHandshake) && res != nil {
			return nil, readAPIError(req, res)
		}

		return res, err
	})).RoundTrip(req) //nolint:bodyclose // an upgraded connection has no body, and readAPIError closes others
	if err != nil {
		return nil, c.classify(operation, http.MethodGet, err)
	}

	conn.SetReadLimit(maxTerminalMessage)

	return conn, nil
}

// newAuthHeader returns the header that authenticates a request.
func (c *client) newAuthHeader(ctx context.Context) (http.Header, error) {
	switch {
	case c.credentials.TokenID != "":
		return http.Header{"Authorization": {"PVEAPIToken=" + c.credentials.TokenID + "=" + c.credentials.TokenSecret}}, nil
	case c.credentials.Username == "":
		return http.Header{}, nil
	}

	session, err := c.ensureSession(ctx, nil)
	if err != nil {
		return nil, err
	}

	return http.Header{"Cookie": {"PVEAuthCookie=" + session.Ticket}}, nil
}

// logIn sends the ticket and waits until the terminal has accepted it.
func (t *terminal) logIn(ctx context.Context, ticket terminalTicket) error {
	defer context.AfterFunc(ctx, func() { _ = t.conn.Close() })()

	if err := t.send([]byte(ticket.User + ":" + ticket.Ticket + "\n")); err != nil {
		return err
	}

	for len(t.rest) < len(acceptance) {
		_, part, err := t.conn.ReadMessage()
		if err != nil {
			return err
		}

		t.rest = append(t.rest, part...)
	}

	rest, isAccepted := bytes.CutPrefix(t.rest, []byte(acceptance))
	if !isAccepted {
		return errors.New("the terminal has not accepted the ticket")
	}

	t.rest = rest

	return ctx.Err()
}

// Read reads output. A console that Proxmox VE has closed ends with io.EOF.
func (t *terminal) Read(p []byte) (int, error) {
	t.reading.Lock()
	defer t.reading.Unlock()

	for len(t.rest) == 0 {
		_, part, err := t.conn.ReadMessage()
		if err != nil {
			if _, isClosed := errors.AsType[*websocket.CloseError](err); isClosed {
				err = io.EOF
			}

			return 0, err
		}

		t.rest = part
	}

	n := copy(p, t.rest)
	t.rest = t.rest[n:]

	return n, nil
}

// Write sends input.
func (t *terminal) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); sent += maxKeys {
		keys := p[sent:min(sent+maxKeys, len(p))]
		if err := t.send(append(fmt.Appendf(nil, "0:%d:", len(keys)), keys...)); err != nil {
			return sent, err
		}
	}

	return len(p), nil
}

func (t *terminal) send(message []byte) error {
	t.writing.Lock()
	defer t.writing.Unlock()

	if err := t.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}

	return t.conn.WriteMessage(websocket.BinaryMessage, message)
}

// keepAlive keeps the console open until it is closed. It closes the console when the provider is closed.
func (t *terminal) keepAlive(ctx context.Context) {
	defer context.AfterFunc(ctx, func() { _ = t.Close() })() // also while a message is sent

	ticker := time.NewTicker(keepAliveInterval)
	defer ticker.Stop()

	for {
		select {
		case <-ticker.C:
			if t.send([]byte(keepAliveMessage)) != nil {
				return
			}
		case <-t.ended:
			return
		}
	}
}

// Close closes the console.
func (t *terminal) Close() error {
	var err error

	t.closing.Do(func() {
		close(t.ended)
		err = t.conn.Close()
	})

	return err
}
