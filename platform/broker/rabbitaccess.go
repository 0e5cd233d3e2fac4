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
	"github.com/hyperfleet/hyperfleet/kit/bounds"
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

// dial opens a connection with the current content of the settings' files.
func (a access) dial() (*amqp.Connection, error) {
	serverURL, tlsConfig, err := a.resolve()
	if err != nil {
		return nil, err
	}

	for attempt := 1; ; attempt++ {
		tracked := &trackedConn{tlsConfig: tlsConfig}

		conn, err := amqp.DialConfig(serverURL.String(), amqp.Config{
			Heartbeat: rabbitHeartbeat, Dial: tracked.dial, Properties: amqp.Table{"connection_name": "hyperfleet"},
		})
		if err == nil {
			return conn, nil
		}

		// If the server closes the connection, the library may lose the reason and return this error
		// (amqp091-go, Connection.call). Another attempt returns the reason.
		if !errors.Is(err, amqp.ErrCommandInvalid) || attempt == dialAttempts {
			return nil, fmt.Errorf("connect to RabbitMQ at %s: %w", serverURL.Host, a.explain(tracked.withCause(err)))
		}
	}
}

// trackedConn is a connection that records its first error. The library reads and writes
// concurrently, and may return a later error that is only a consequence of the first one.
type trackedConn struct {
	net.Conn

	tlsConfig *tls.Config

	hasReceived atomic.Bool
	firstError  atomic.Pointer[error]
}

// dial connects, including the TLS handshake.
func (l *trackedConn) dial(network, addr string) (net.Conn, error) {
	conn, err := amqp.DefaultDial(rabbitDialTimeout)(network, addr)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}

	l.Conn = conn

	if l.tlsConfig != nil {
		ctx, cancel := context.WithTimeout(context.Background(), rabbitDialTimeout)
		defer cancel()

		tlsConn := tls.Client(conn, l.tlsConfig)
		if err := tlsConn.HandshakeContext(ctx); err != nil {
			_ = conn.Close()

			return nil, l.recordError(err)
		}

		l.Conn = tlsConn
	}

	return l, nil
}

// Read implements net.Conn.
func (l *trackedConn) Read(into []byte) (int, error) {
	n, err := l.Conn.Read(into)
	if n > 0 {
		l.hasReceived.Store(true)
	}

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

	if l.tlsConfig != nil && !l.hasReceived.Load() && isConnectionClosed(*cause) {
		err = fmt.Errorf("%w: %w", errServerClosed, err)
	}

	return err
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
