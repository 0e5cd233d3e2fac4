// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// TestExplainHungUp: a server that does not take a client's certificate may be gone before
// its reason is read.
func TestExplainHungUp(t *testing.T) {
	t.Parallel()

	reset := &net.OpError{Op: "write", Net: "tcp", Err: syscall.ECONNRESET}

	for name, row := range map[string]struct {
		how   access
		where string
		err   error
		says  string
	}{
		"no certificate":        {access{field: "b"}, "amqps://host/", reset, "b.cert_file: it is not given"},
		"one that is refused":   {access{field: "b", certFile: "own.pem"}, "amqps://host/", reset, "b.cert_file: the server does not take own.pem"},
		"an end while reading":  {access{field: "b"}, "amqps://host/", &amqp.Error{Code: amqp.FrameError, Reason: "EOF"}, "b.cert_file: "},
		"an end before writing": {access{field: "b", certFile: "own.pem"}, "amqps://host/", amqp.ErrClosed, "b.cert_file: the server does not take own.pem"},
		"no TLS":                {access{field: "b"}, "amqp://host/", reset, reset.Error()},
		"another error":         {access{field: "b"}, "amqps://host/", errors.New("nobody there"), "nobody there"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := row.how.explain(row.how.hungUp(row.where, row.err))
			if !errors.Is(got, row.err) || !strings.HasPrefix(got.Error(), row.says) {
				t.Errorf("it says %q, want %q first", got, row.says)
			}
		})
	}
}
