// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

var (
	errPassword    = errors.New("the URL contains a password: put the URL into url_file")
	errEscape      = errors.New("write /, ?, # and @ in a password or a path as %2F, %3F, %23 and %40")
	errSeveralURLs = errors.New("write one URL: for a cluster, use a host name that all of its servers share")
	errNoPair      = errors.New("set both cert_file and key_file, or neither")
	errFiles       = errors.New("the query of the URL names files (cacertfile, certfile, keyfile): " +
		"use ca_file, cert_file and key_file instead")
)

// configPath is the path of the settings in the configuration.
const configPath = "broker.rabbitmq"

// access has the settings for the connection to a server. The files that they name are read for
// each connection, so their content may change.
type access platform.BrokerRabbit

// withDefaults returns the settings with defaults for those that are not set.
func (a access) withDefaults() access {
	standard := platform.DefaultBroker().RabbitMQ
	a.ExchangeType = cmp.Or(a.ExchangeType, standard.ExchangeType)
	a.PrefetchCount = cmp.Or(max(a.PrefetchCount, 0), standard.PrefetchCount)

	return a
}

// settingName returns the name of the setting that has the URL.
func (a access) settingName() string {
	if a.URLFile != "" {
		return configPath + ".url_file"
	}

	return configPath + ".url"
}

// resolve returns the URL and the TLS configuration of the server. The URL is always amqp://, so that
// the AMQP library does not use TLS itself: trackedConn dials with the TLS configuration. The TLS
// configuration is nil if the setting has an amqp:// URL. Errors do not contain the URL, because it can
// contain a password.
func (a access) resolve() (*url.URL, *tls.Config, error) {
	if (a.CertFile == "") != (a.KeyFile == "") {
		return nil, nil, fmt.Errorf("%s: %w", configPath, errNoPair)
	}

	text, err := a.readURL()
	if err != nil {
		return nil, nil, err
	}

	serverURL, err := url.Parse(text)
	if err != nil || serverURL.Host == "" || serverURL.Scheme != "amqp" && serverURL.Scheme != "amqps" {
		return nil, nil, fmt.Errorf("%s: write amqp://HOST:PORT", a.settingName())
	}

	if err := a.validateURL(serverURL); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", a.settingName(), err)
	}

	// The library's parser adds the default port, and knows the parameters in the query.
	amqpURI, err := amqp.ParseURI(text)

	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("%s: %w", a.settingName(), err)
	case amqpURI.CACertFile+amqpURI.CertFile+amqpURI.KeyFile != "":
		return nil, nil, fmt.Errorf("%s: %w", a.settingName(), errFiles)
	case amqpURI.Scheme == "amqp":
		return serverURL, nil, nil
	}

	tlsConfig, err := a.tlsConfig()
	if err != nil {
		return nil, nil, err
	}

	// If the host is an IP address, the URL's server_name_indication can be the name in the certificate.
	tlsConfig.ServerName = cmp.Or(amqpURI.ServerName, amqpURI.Host)
	serverURL.Scheme, serverURL.Host = "amqp", net.JoinHostPort(amqpURI.Host, strconv.Itoa(amqpURI.Port))

	return serverURL, tlsConfig, nil
}

// readURL returns the URL from the setting or the file.
func (a access) readURL() (string, error) {
	if (a.URL == "") == (a.URLFile == "") {
		return "", fmt.Errorf("%s: set either url or url_file", configPath)
	}

	if a.URL != "" {
		return a.URL, nil
	}

	data, err := os.ReadFile(a.URLFile)
	if err != nil {
		return "", fmt.Errorf("%s.url_file: %w", configPath, err)
	}

	return strings.TrimSpace(string(data)), nil
}

// validateURL returns an error if the URL does not fit the other settings.
func (a access) validateURL(serverURL *url.URL) error {
	_, hasPassword := serverURL.User.Password()

	switch {
	// Further URLs after the first would be parsed as its port or path, which errors contain.
	case strings.Contains(serverURL.Host, ","), strings.Contains(serverURL.Path, "://"):
		return errSeveralURLs
	// The user would be parsed as the host, which errors contain.
	case serverURL.User == nil && strings.Contains(serverURL.String(), "@"):
		return errEscape
	case hasPassword && a.URLFile == "":
		return errPassword
	case a.CAFile+a.CertFile != "" && serverURL.Scheme == "amqp":
		return errors.New("amqp:// does not use TLS, but ca_file or cert_file is set: write amqps://")
	default:
		return nil
	}
}

// tlsConfig returns the TLS configuration for the settings.
func (a access) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}

	if a.CAFile != "" {
		var err error
		if config, err = bounds.LoadTLSConfig(a.CAFile, nil); err != nil {
			return nil, fmt.Errorf("%s.ca_file: %w", configPath, err)
		}
	}

	if a.CertFile != "" {
		certificate, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("%s: cert_file %s and key_file %s: %w", configPath, a.CertFile, a.KeyFile, err)
		}

		config.Certificates = []tls.Certificate{certificate}
	}

	return config, nil
}

// dial opens a connection with the current content of the settings' files. It makes several attempts if
// connections end before the server has answered, as they do while the server is busy or restarts.
func (a access) dial(ctx context.Context) (*connection, error) {
	serverURL, tlsConfig, err := a.resolve()
	if err != nil {
		return nil, err
	}

	for attempt := 1; ; attempt++ {
		conn, canRetry, err := dialOnce(ctx, serverURL, tlsConfig)
		if err == nil {
			return conn, nil
		}

		if !canRetry || attempt == dialAttempts || retry.Sleep(ctx, clock.RealClock{}, initialRetryDelay<<(attempt-1)) != nil {
			return nil, fmt.Errorf("connect to RabbitMQ at %s: %w", serverURL.Host, a.explain(err))
		}
	}
}

// errInterrupted means that a connection ended before the server had said whether it accepts the user and the
// vhost.
var errInterrupted = errors.New("the connection ended before the server had answered")

// dialOnce makes one attempt to connect. canRetry is true if the server has not said why it failed.
func dialOnce(ctx context.Context, serverURL *url.URL, tlsConfig *tls.Config) (conn *connection, canRetry bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, rabbitDialTimeout)
	defer cancel()

	tracked, begin := &trackedConn{tlsConfig: tlsConfig}, time.Now()
	defer context.AfterFunc(ctx, tracked.abort)()

	amqpConn, err := amqp.DialConfig(serverURL.String(), amqp.Config{
		Heartbeat: rabbitHeartbeat, Properties: amqp.Table{"connection_name": "hyperfleet"},
		Dial: func(network, address string) (net.Conn, error) { return tracked.dial(ctx, network, address) },
	})
	if err == nil {
		return newConnection(amqpConn, tracked), false, nil
	}

	// The library reports every error after the login as an error of the vhost, and every error before it as an
	// error of the user name or the password (amqp091-go, openTune and openVhost).
	reason := tracked.closeReason()

	switch {
	case reason != nil:
		return nil, false, reason
	case ctx.Err() != nil:
		return nil, true, tracked.withCause(errNoAnswer)
	case errors.Is(err, amqp.ErrVhost), errors.Is(err, amqp.ErrCommandInvalid):
		return nil, true, tracked.withCause(errInterrupted)
	case !errors.Is(err, amqp.ErrCredentials):
		return nil, false, tracked.withCause(err)
	case !tracked.wasClosedByServer():
		return nil, true, tracked.withCause(errInterrupted)
	default:
		// RabbitMQ closes the connection of a rejected user without a reason, but not immediately.
		return nil, time.Since(begin) < minRejectDelay, tracked.withCause(err)
	}
}

// maxHandshake limits how much of what a server sends before the connection is open is kept, in bytes.
const maxHandshake = 64 << 10

// trackedConn is a connection that records its first error. The library reads and writes
// concurrently, and may return a later error that is only a consequence of the first one.
type trackedConn struct {
	net.Conn

	tlsConfig *tls.Config
	// network is the TCP connection.
	network atomic.Pointer[net.Conn]

	// received is what the server has sent until the connection is open.
	receivedMu sync.Mutex
	received   []byte
	isOpen     bool

	firstError atomic.Pointer[error]
}

// dial connects, including the TLS handshake.
func (l *trackedConn) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}

	l.Conn = conn
	l.network.Store(&conn)

	// The library removes the deadline when the connection is open.
	deadline, _ := ctx.Deadline()
	if err := errors.Join(ctx.Err(), conn.SetDeadline(deadline)); err != nil {
		_ = conn.Close()

		return nil, l.recordError(err)
	}

	if l.tlsConfig != nil {
		tlsConn := tls.Client(conn, l.tlsConfig)
		if err := tlsConn.HandshakeContext(ctx); err != nil {
			_ = conn.Close()

			return nil, l.recordError(err)
		}

		l.Conn = tlsConn
	}

	return l, nil
}

// abort closes the TCP connection, which ends all calls.
func (l *trackedConn) abort() {
	if conn := l.network.Load(); conn != nil {
		_ = (*conn).Close()
	}
}

// Read implements net.Conn. Until the connection is open, it keeps what the server sends, for closeReason.
func (l *trackedConn) Read(into []byte) (int, error) {
	n, err := l.Conn.Read(into)

	l.receivedMu.Lock()
	if !l.isOpen && len(l.received) < maxHandshake {
		l.received = append(l.received, into[:n]...)
	}
	l.receivedMu.Unlock()

	return n, l.recordError(err)
}

// Write implements net.Conn.
func (l *trackedConn) Write(data []byte) (int, error) {
	n, err := l.Conn.Write(data)

	return n, l.recordError(err)
}

// recordError stores the first error, and returns its argument.
func (l *trackedConn) recordError(err error) error {
	if err != nil {
		l.firstError.CompareAndSwap(nil, &err)
	}

	return err
}

// withCause adds the error that ended the connection to the library's error. If a server closed a
// TLS connection before it sent any AMQP data, its reason may be lost, so withCause adds
// errServerClosed.
func (l *trackedConn) withCause(err error) error {
	cause := l.firstError.Load()
	if cause == nil {
		return err
	}

	if !strings.Contains(err.Error(), (*cause).Error()) {
		err = fmt.Errorf("%w: %w", *cause, err)
	}

	if l.tlsConfig != nil && !l.hasReceived() && isConnectionClosed(*cause) {
		err = fmt.Errorf("%w: %w", errServerClosed, err)
	}

	return err
}

// hasReceived returns true if the server has sent data.
func (l *trackedConn) hasReceived() bool {
	l.receivedMu.Lock()
	defer l.receivedMu.Unlock()

	return len(l.received) > 0
}

// setOpen records that the connection is open, so that what the server sends is no longer kept.
func (l *trackedConn) setOpen() {
	l.receivedMu.Lock()
	defer l.receivedMu.Unlock()

	l.isOpen, l.received = true, nil
}

// wasClosedByServer returns true if the server closed the connection.
func (l *trackedConn) wasClosedByServer() bool {
	cause := l.firstError.Load()

	return cause != nil && isConnectionClosed(*cause)
}

// closeReason returns why the server refused to open the connection: the method Connection.Close among the
// frames that it has sent (AMQP 0-9-1, 2.3.5 and 1.4.2.10). It returns nil if the server did not say it.
func (l *trackedConn) closeReason() *amqp.Error {
	const (
		methodFrame, connectionClass, closeMethod = 1, 10, 50
		// A frame begins with its type, channel and size, and ends with one byte. A close method begins with its
		// class, method, code, and the length of the text.
		frameHeader, frameEnd, methodHeader = 7, 1, 7
	)

	l.receivedMu.Lock()
	defer l.receivedMu.Unlock()

	for rest := l.received; len(rest) >= frameHeader; {
		size := int(binary.BigEndian.Uint32(rest[3:]))
		if size > len(rest)-frameHeader-frameEnd {
			return nil
		}

		payload := rest[frameHeader : frameHeader+size]
		if rest[0] == methodFrame && size >= methodHeader && binary.BigEndian.Uint16(payload) == connectionClass &&
			binary.BigEndian.Uint16(payload[2:]) == closeMethod {
			text := payload[methodHeader:]

			return &amqp.Error{
				Code:   int(binary.BigEndian.Uint16(payload[4:])),
				Reason: string(text[:min(len(text), int(payload[6]))]), Server: true,
			}
		}

		rest = rest[frameHeader+size+frameEnd:]
	}

	return nil
}

// isConnectionClosed returns true if the error means that the other side closed the connection.
func isConnectionClosed(err error) bool {
	for _, closeErr := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, closeErr) {
			return true
		}
	}

	return false
}
