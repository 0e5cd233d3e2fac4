// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// EnvSocket names the socket that leases are had from.
const EnvSocket = "HYPERFLEETTEST_SERVERS"

// Request is what a test program asks for.
type Request struct {
	// Kind of server, by the name under which it is served.
	Kind string `json:"kind"`
	// Options that the kind knows.
	Options []string `json:"options,omitempty"`
	// Dir is the folder that the test program runs in: the one of its package.
	Dir string `json:"dir"`
}

type reply struct {
	Error  string          `json:"error,omitempty"`
	Server json.RawMessage `json:"server,omitempty"`
}

// ErrRefused says that the server could not be had.
var ErrRefused = errors.New("no lease")

// Lease is a server that this program has.
type Lease struct{ conn net.Conn }

// Release gives the server back.
func (l *Lease) Release() error {
	if l == nil {
		return nil
	}

	return l.conn.Close()
}

// Take asks for a server, and fills in what there is to know of it. It gives nil, and no
// error, where nobody serves leases.
func Take(kind string, server any, options ...string) (*Lease, error) {
	// Each run has another socket. go would take that for a change of what the test depends on if the
	// variable were read by os.Getenv.
	socket, _ := syscall.Getenv(EnvSocket)
	if socket == "" {
		return nil, nil //nolint:nilnil // as documented
	}

	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("lease %s: %w", kind, err)
	}

	conn, err := net.Dial("unix", socket) //nolint:noctx // on this machine
	if err != nil {
		return nil, fmt.Errorf("lease %s: %w", kind, err)
	}

	if err := ask(conn, Request{Kind: kind, Options: options, Dir: dir}, server); err != nil {
		return nil, errors.Join(fmt.Errorf("lease %s: %w", kind, err), conn.Close())
	}

	return &Lease{conn: conn}, nil
}

// ask waits for as long as it takes: the test program's own timeout bounds it.
func ask(conn net.Conn, request Request, server any) error {
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return fmt.Errorf("ask: %w", err)
	}

	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}

	var answer reply
	if err := json.Unmarshal(line, &answer); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}

	if answer.Error != "" {
		return fmt.Errorf("%w: %s", ErrRefused, answer.Error)
	}

	return json.Unmarshal(answer.Server, server)
}
