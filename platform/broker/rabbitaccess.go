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
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
)

var (
	errPassword = errors.New("it has a password in it: keep it in url_file")
	errEscape   = errors.New("write /, ?, # and @ in a password or a path as %2F, %3F, %23 and %40")
	errOne      = errors.New("write one URL: with a cluster, of a name that all of its servers have")
	errNoPair   = errors.New("give cert_file and key_file, both or none")
	errFiles    = errors.New("its query names files (cacertfile, certfile, keyfile): write them as ca_file, cert_file and key_file")
)

// field is where the settings are in the configuration.
const field = "broker.rabbitmq"

// access is how the settings say that a server is reached. Its files are read anew for
// each connection, so that what is in them may change.
type access platform.BrokerRabbit

// where is the setting that has the URL.
func (a access) where() string {
	if a.URLFile != "" {
		return field + ".url_file"
	}

	return field + ".url"
}

// server gives a URL for the library, which is left to speak AMQP alone, and how the
// connection below is secured: nil if it is not. Errors don't repeat the URL: it may hold a
// password.
func (a access) server() (*url.URL, *tls.Config, error) {
	if (a.CertFile == "") != (a.KeyFile == "") {
		return nil, nil, fmt.Errorf("%s: %w", field, errNoPair)
	}

	text, err := a.address()
	if err != nil {
		return nil, nil, err
	}

	where, err := url.Parse(text)
	if err != nil || where.Host == "" || where.Scheme != "amqp" && where.Scheme != "amqps" {
		return nil, nil, fmt.Errorf("%s: write amqp://HOST:PORT", a.where())
	}

	if err := a.permits(where); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", a.where(), err)
	}

	uri, err := amqp.ParseURI(text)

	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("%s: %w", a.where(), err)
	case uri.CACertFile+uri.CertFile+uri.KeyFile != "":
		return nil, nil, fmt.Errorf("%s: %w", a.where(), errFiles)
	case uri.Scheme == "amqp":
		return where, nil, nil
	}

	secured, err := a.tls()
	if err != nil {
		return nil, nil, err
	}

	secured.ServerName = cmp.Or(uri.ServerName, uri.Host) // a server that is reached by an address has a name as well
	where.Scheme, where.Host = "amqp", net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))

	return where, secured, nil
}

// address is the text of the URL.
func (a access) address() (string, error) {
	if (a.URL == "") == (a.URLFile == "") {
		return "", fmt.Errorf("%s: give url or url_file, one of them", field)
	}

	if a.URL != "" {
		return a.URL, nil
	}

	data, err := os.ReadFile(a.URLFile)
	if err != nil {
		return "", fmt.Errorf("%s.url_file: %w", field, err)
	}

	return strings.TrimSpace(string(data)), nil
}

// permits says whether the URL goes with the other settings.
func (a access) permits(where *url.URL) error {
	_, secret := where.User.Password()

	switch {
	// Others behind the first are its port or its path, which errors name.
	case strings.Contains(where.Host, ","), strings.Contains(where.Path, "://"):
		return errOne
	// The host would be the user then, and errors name it.
	case where.User == nil && strings.Contains(where.String(), "@"):
		return errEscape
	case secret && a.URLFile == "":
		return errPassword
	case a.CAFile+a.CertFile != "" && where.Scheme == "amqp":
		return errors.New("amqp:// is without TLS, and ca_file or cert_file is given: write amqps://")
	default:
		return nil
	}
}

// tls gives what the settings say of TLS.
func (a access) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}

	if a.CAFile != "" {
		var err error
		if config, err = httpbound.Trusting(a.CAFile, nil); err != nil {
			return nil, fmt.Errorf("%s.ca_file: %w", field, err)
		}
	}

	if a.CertFile != "" {
		own, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("%s: cert_file %s and key_file %s: %w", field, a.CertFile, a.KeyFile, err)
		}

		config.Certificates = []tls.Certificate{own}
	}

	return config, nil
}

// dial makes a connection by what the settings' files say now.
func (a access) dial() (*amqp.Connection, error) {
	where, secured, err := a.server()
	if err != nil {
		return nil, err
	}

	for try := 1; ; try++ {
		line := &rabbitLine{secured: secured}

		conn, err := amqp.DialConfig(where.String(), amqp.Config{
			Heartbeat: rabbitHeartbeat, Dial: line.dial, Properties: amqp.Table{"connection_name": "hyperfleet"},
		})
		if err == nil {
			return conn, nil
		}

		// When the other side ends it, the library may lose why, and says this (amqp091-go,
		// Connection.call). Another try has the reason.
		if !errors.Is(err, amqp.ErrCommandInvalid) || try == rabbitDials {
			return nil, fmt.Errorf("connect to RabbitMQ at %s: %w", where.Host, a.explain(line.reason(err)))
		}
	}
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
