// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"
)

// dial makes a connection by what the settings' files say now.
func (l *rabbitLink) dial() (*amqp.Connection, error) {
	where, err := l.access.address()
	if err != nil {
		return nil, err
	}

	plain, secured, err := l.access.rabbit(where)
	if err != nil {
		return nil, err
	}

	for try := 1; ; try++ {
		line := &rabbitLine{secured: secured}

		conn, err := amqp.DialConfig(plain, amqp.Config{
			Heartbeat: rabbitHeartbeat, Dial: line.dial, Properties: amqp.Table{"connection_name": "hyperfleet"},
		})
		if err == nil {
			return conn, nil
		}

		// When the other side ends it, the library may lose why, and says this (amqp091-go,
		// Connection.call). Another try has the reason.
		if !errors.Is(err, amqp.ErrCommandInvalid) || try == rabbitDials {
			return nil, fmt.Errorf("connect to RabbitMQ at %s: %w", l.access.hosts(where), l.access.explain(line.reason(err)))
		}
	}
}

// rabbit gives a URL for the library, which is left to speak AMQP alone, and how the
// connection below is secured: nil if it is not.
func (a access) rabbit(where string) (string, *tls.Config, error) {
	uri, err := amqp.ParseURI(where)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", a.where(), err)
	}

	if uri.CACertFile+uri.CertFile+uri.KeyFile != "" {
		return "", nil, fmt.Errorf(
			"%s: its query names files (cacertfile, certfile, keyfile): write them as ca_file, cert_file and key_file", a.where())
	}

	if uri.Scheme != "amqps" {
		return where, nil, nil
	}

	secured, err := a.tls()
	if err != nil {
		return "", nil, err
	}

	secured.ServerName = cmp.Or(uri.ServerName, uri.Host) // a server that is reached by an address has a name as well

	parsed, err := url.Parse(where)
	if err != nil {
		return "", nil, fmt.Errorf("%s: write amqps://HOST:PORT", a.where())
	}

	parsed.Scheme, parsed.Host = "amqp", net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))

	return parsed.String(), secured, nil
}

// rabbitLine is a connection that remembers how it ended. The library reads and writes at
// the same time, and tells what either has met, which may be but what came of it.
type rabbitLine struct {
	net.Conn
	secured *tls.Config

	heard atomic.Bool
	end   atomic.Pointer[error]
}

// dial connects, to the end of TLS.
func (l *rabbitLine) dial(network, addr string) (net.Conn, error) {
	conn, err := amqp.DefaultDial(rabbitDialTimeout)(network, addr)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}

	l.Conn = conn

	if l.secured != nil {
		ctx, cancel := context.WithTimeout(context.Background(), rabbitDialTimeout)
		defer cancel()

		over := tls.Client(conn, l.secured)
		if err := over.HandshakeContext(ctx); err != nil {
			_ = conn.Close()

			return nil, l.met(err)
		}

		l.Conn = over
	}

	return l, nil
}

// Read implements net.Conn.
func (l *rabbitLine) Read(into []byte) (int, error) {
	n, err := l.Conn.Read(into)
	if n > 0 {
		l.heard.Store(true)
	}

	return n, l.met(err)
}

// Write implements net.Conn.
func (l *rabbitLine) Write(data []byte) (int, error) {
	n, err := l.Conn.Write(data)

	return n, l.met(err)
}

// met notes the first error.
func (l *rabbitLine) met(err error) error {
	if err != nil {
		l.end.CompareAndSwap(nil, &err)
	}

	return err
}

// reason is the library's error with what ended the connection. With TLS a server that
// ends it before its first word of AMQP may have said why, and it was lost: errHungUp.
func (l *rabbitLine) reason(err error) error {
	end := l.end.Load()
	if end == nil {
		return err
	}

	if !strings.Contains(err.Error(), (*end).Error()) {
		err = fmt.Errorf("%w: %w", *end, err)
	}

	if l.secured != nil && !l.heard.Load() && hungUp(*end) {
		err = fmt.Errorf("%w: %w", errHungUp, err)
	}

	return err
}

// hungUp says whether the other side has ended a connection.
func hungUp(err error) bool {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}

	return false
}
