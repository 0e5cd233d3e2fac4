// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

const (
	startMethod, tuneMethod, closeMethod = 10, 30, 50
	noSuchVhost, connectionForced        = 530, 320
)

// serverFrame returns a frame with a method of the class connection.
func serverFrame(method uint16, arguments []byte) []byte {
	payload := append(binary.BigEndian.AppendUint16([]byte{0, 10}, method), arguments...)
	frame := binary.BigEndian.AppendUint32([]byte{1, 0, 0}, uint32(len(payload)))

	return append(append(frame, payload...), 0xCE)
}

// closeFrame returns the frame with which a server closes a connection.
func closeFrame(code uint16, text string) []byte {
	arguments := append(binary.BigEndian.AppendUint16(nil, code), byte(len(text)))

	return serverFrame(closeMethod, append(append(arguments, text...), 0, 0, 0, 0))
}

// readFrame reads the client's next frame.
func readFrame(from *bufio.Reader) error {
	header := make([]byte, 7)
	if _, err := io.ReadFull(from, header); err != nil {
		return err
	}

	_, err := io.CopyN(io.Discard, from, int64(binary.BigEndian.Uint32(header[3:]))+1)

	return err
}

// serveLogin accepts the login of a client and reads the method that opens the vhost. Then it sends the last
// frame, which may be empty, waits for the client's response to it, and ends the connection.
func serveLogin(last []byte, end func(net.Conn)) func(net.Conn) {
	return func(conn net.Conn) {
		defer end(conn)

		from := bufio.NewReader(conn)
		_, err := io.CopyN(io.Discard, from, int64(len("AMQP0091")))

		mechanisms := append([]byte{0, 9, 0, 0, 0, 0, 0, 0, 0, 5}, "PLAIN"...)
		_, writeErr := conn.Write(serverFrame(startMethod, append(append(mechanisms, 0, 0, 0, 5), "en_US"...)))
		err = errors.Join(err, writeErr, readFrame(from)) // the user and password
		_, writeErr = conn.Write(serverFrame(tuneMethod, []byte{0, 0, 0, 2, 0, 0, 0, 5}))
		// The client accepts the limits, and then opens the vhost.
		if errors.Join(err, writeErr, readFrame(from), readFrame(from)) != nil || last == nil {
			return
		}

		if _, err := conn.Write(last); err == nil {
			_ = readFrame(from)
		}
	}
}

// TestRefusedVhost checks that only a server that refuses the vhost is reported to do so, and that a connection
// that ends without a reason is tried again.
func TestRefusedVhost(t *testing.T) {
	t.Parallel()

	const vhost = "broker.rabbitmq.url: the vhost"

	for name, row := range map[string]struct {
		serve    func(net.Conn)
		dials    int32
		want     string
		mustLack string
	}{
		"no such vhost":              {serveLogin(closeFrame(noSuchVhost, "NOT_ALLOWED - vhost x not found"), closeConn), 1, vhost, ""},
		"a reason, and then a reset": {serveLogin(closeFrame(noSuchVhost, "NOT_ALLOWED - vhost x not found"), resetConn), 1, "vhost x not found", ""},
		"a shutdown":                 {serveLogin(closeFrame(connectionForced, "CONNECTION_FORCED - shutdown"), closeConn), 1, "CONNECTION_FORCED - shutdown", "the vhost"},
		"the end":                    {serveLogin(nil, closeConn), dialAttempts, errInterrupted.Error(), "the vhost"},
		"a reset":                    {serveLogin(nil, resetConn), dialAttempts, errInterrupted.Error(), "the vhost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var dials atomic.Int32

			a := access{URL: "amqp://" + listen(t, func(conn net.Conn) {
				dials.Add(1)
				row.serve(conn)
			})}

			_, err := a.dial(t.Context())
			if err == nil || !strings.Contains(err.Error(), row.want) || row.mustLack != "" && strings.Contains(err.Error(), row.mustLack) {
				t.Errorf("error %v, want %q and not %q", err, row.want, row.mustLack)
			}

			if got := dials.Load(); got != row.dials {
				t.Errorf("%d connections, want %d", got, row.dials)
			}
		})
	}
}

// TestSubscriptionStartsLater checks that a subscription is tried again if the server ends its first
// connections without a reason, and that it ends if the server refuses it.
func TestSubscriptionStartsLater(t *testing.T) {
	t.Parallel()

	var dials atomic.Int32

	refuse := serveLogin(closeFrame(noSuchVhost, "NOT_ALLOWED - vhost x not found"), closeConn)
	interrupt := serveLogin(nil, closeConn)

	b := &Broker{log: slog.New(slog.DiscardHandler), access: access{URL: "amqp://" + listen(t, func(conn net.Conn) {
		if dials.Add(1) > 2*dialAttempts {
			refuse(conn)
		} else {
			interrupt(conn)
		}
	})}}
	b.ctx, b.cancel = context.WithCancel(t.Context())

	metrics, err := NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}

	queue := NewQueue(QueueOptions{Conf: platform.Broker{}, Topic: "topic", Subscription: "adapter", Metrics: metrics})

	if err := b.consume(t.Context(), queue); err == nil || !strings.Contains(err.Error(), "vhost x not found") {
		t.Errorf("error %v, want the server's reason", err)
	}

	if got := dials.Load(); got != 2*dialAttempts+1 {
		t.Errorf("%d connections, want %d", got, 2*dialAttempts+1)
	}
}

// TestDialEndsWithItsContext checks that the end of a context ends an attempt to connect to a server that does
// not answer.
func TestDialEndsWithItsContext(t *testing.T) {
	t.Parallel()

	for name, serve := range map[string]func(net.Conn){
		"no answer":              func(net.Conn) {},
		"no answer to the vhost": serveLogin([]byte{}, func(net.Conn) {}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			reached := make(chan struct{}, dialAttempts)
			a := access{URL: "amqp://" + listen(t, func(conn net.Conn) {
				reached <- struct{}{}

				go serve(conn)
			})}
			ctx, cancel := context.WithCancel(t.Context())

			go func() {
				<-reached
				cancel()
			}()

			begin := time.Now()
			if _, err := a.dial(ctx); err == nil {
				t.Error("the connection succeeded")
			}

			if took := time.Since(begin); took >= rabbitDialTimeout {
				t.Errorf("the attempt ends after %s", took)
			}
		})
	}
}
