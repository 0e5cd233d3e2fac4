// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
)

// Provider leases servers of one kind. It returns the description of a server, which is encoded as JSON for
// the test program, and a function that is called when the lease ends.
type Provider func(ctx context.Context, request Request) (server any, release func(), err error)

// Serve serves requests on a socket in the directory until ctx ends, and returns the path of the socket.
// The function wait returns when all leases have ended.
func Serve(ctx context.Context, dir string, kinds map[string]Provider) (socket string, wait func(), err error) {
	socket = filepath.Join(dir, "leases")

	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return "", nil, fmt.Errorf("serve leases: %w", err)
	}

	var leases sync.WaitGroup

	context.AfterFunc(ctx, func() { _ = listener.Close() })

	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}

			leases.Go(func() { serveLease(ctx, conn, kinds) })
		}
	}()

	return socket, leases.Wait, nil
}

// serveLease handles the request of one connection, and returns when the lease has ended.
func serveLease(ctx context.Context, conn net.Conn, kinds map[string]Provider) {
	defer conn.Close() //nolint:errcheck // the lease has ended

	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	reader := bufio.NewReader(conn)

	line, err := reader.ReadBytes('\n')
	if err != nil {
		return
	}

	server, release, err := provide(ctx, line, kinds)
	if err != nil {
		_ = json.NewEncoder(conn).Encode(leaseResponse{Error: err.Error()}) //nolint:errchkjson // a failed send cannot be reported

		return
	}

	defer release()

	_ = json.NewEncoder(conn).Encode(server) //nolint:errchkjson // it was encoded before

	// Wait until the program releases the lease or ends, which closes the connection. It sends nothing else.
	_, _ = io.Copy(io.Discard, reader)
}

var errUnknownKind = errors.New("unknown kind of server")

func provide(ctx context.Context, line []byte, kinds map[string]Provider) (leaseResponse, func(), error) {
	var request Request
	if err := json.Unmarshal(line, &request); err != nil {
		return leaseResponse{}, nil, fmt.Errorf("decode request: %w", err)
	}

	provider, ok := kinds[request.Kind]
	if !ok {
		return leaseResponse{}, nil, fmt.Errorf("%w: %q", errUnknownKind, request.Kind)
	}

	server, release, err := provider(ctx, request)
	if err != nil {
		return leaseResponse{}, nil, err
	}

	raw, err := json.Marshal(server)
	if err != nil {
		release()

		return leaseResponse{}, nil, fmt.Errorf("encode response: %w", err)
	}

	return leaseResponse{Server: raw}, release, nil
}
