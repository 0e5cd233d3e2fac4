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

// Provider hands out servers of one kind. It gives what a test program has to know of its
// server, as JSON can tell it, and what is to be done when that is given back.
type Provider func(ctx context.Context, request Request) (server any, release func(), err error)

// Serve answers requests on a socket in the folder until ctx ends, and gives the socket's
// path. wait returns when all leases have been given back.
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

			leases.Go(func() { answer(ctx, conn, kinds) })
		}
	}()

	return socket, leases.Wait, nil
}

// answer serves one lease to its end.
func answer(ctx context.Context, conn net.Conn, kinds map[string]Provider) {
	defer conn.Close() //nolint:errcheck // the lease is over

	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	in := bufio.NewReader(conn)

	line, err := in.ReadBytes('\n')
	if err != nil {
		return
	}

	server, release, err := provide(ctx, line, kinds)
	if err != nil {
		_ = json.NewEncoder(conn).Encode(reply{Error: err.Error()}) //nolint:errchkjson // nobody else is there to tell

		return
	}

	defer release()

	_ = json.NewEncoder(conn).Encode(server) //nolint:errchkjson // it was encoded before

	// The program's end closes its side, and there is nothing else that it says.
	_, _ = io.Copy(io.Discard, in)
}

var errUnknownKind = errors.New("unknown kind of server")

func provide(ctx context.Context, line []byte, kinds map[string]Provider) (reply, func(), error) {
	var request Request
	if err := json.Unmarshal(line, &request); err != nil {
		return reply{}, nil, fmt.Errorf("read the request: %w", err)
	}

	provider, ok := kinds[request.Kind]
	if !ok {
		return reply{}, nil, fmt.Errorf("%w: %q", errUnknownKind, request.Kind)
	}

	server, release, err := provider(ctx, request)
	if err != nil {
		return reply{}, nil, err
	}

	raw, err := json.Marshal(server)
	if err != nil {
		release()

		return reply{}, nil, fmt.Errorf("encode the answer: %w", err)
	}

	return reply{Server: raw}, release, nil
}
