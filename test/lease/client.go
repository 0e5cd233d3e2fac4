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

// EnvSocket is the environment variable with the path of the socket that serves leases.
const EnvSocket = "HYPERFLEETTEST_SERVERS"

// Request is a test program's request for a server.
type Request struct {
	// Kind is the kind of server, one of the keys that Serve was called with.
	Kind string `json:"kind"`
	// Options are options of the kind.
	Options []string `json:"options,omitempty"`
	// Dir is the working directory of the test program, which is the directory of its package.
	Dir string `json:"dir"`
}

type leaseResponse struct {
	Error  string          `json:"error,omitempty"`
	Server json.RawMessage `json:"server,omitempty"`
}

// ErrRefused is the error of a request that the test run has rejected.
var ErrRefused = errors.New("no lease")

// Lease is the lease of a server by this program. It lasts as long as its connection.
type Lease struct{ conn net.Conn }

// Release ends the lease. It does nothing if the lease is nil.
func (l *Lease) Release() error {
	if l == nil {
		return nil
	}

	return l.conn.Close()
}

// Acquire leases a server of a kind, and decodes the server's description into server. It returns nil and
// no error if no test run serves leases.
func Acquire(kind string, server any, options ...string) (*Lease, error) {
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

	conn, err := net.Dial("unix", socket) //nolint:noctx // a Unix socket on this host
	if err != nil {
		return nil, fmt.Errorf("lease %s: %w", kind, err)
	}

	if err := sendRequest(conn, Request{Kind: kind, Options: options, Dir: dir}, server); err != nil {
		return nil, errors.Join(fmt.Errorf("lease %s: %w", kind, err), conn.Close())
	}

	return &Lease{conn: conn}, nil
}

// sendRequest sends a request and decodes the response. It has no timeout of its own, because the timeout
// of the test program limits it.
func sendRequest(conn net.Conn, request Request, server any) error {
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return fmt.Errorf("send request: %w", err)
	}

	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read response: %w", err)
	}

	var response leaseResponse
	if err := json.Unmarshal(line, &response); err != nil {
		return fmt.Errorf("decode response: %w", err)
	}

	if response.Error != "" {
		return fmt.Errorf("%w: %s", ErrRefused, response.Error)
	}

	return json.Unmarshal(response.Server, server)
}
