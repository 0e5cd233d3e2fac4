// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// explain prefixes an error of a server or a connection with the setting to fix. Other errors are
// returned unchanged.
func (a access) explain(err error) error {
	if err == nil {
		return nil
	}

	if fix := cmp.Or(a.explainTLS(err), a.explainUser(err)); fix != "" {
		return fmt.Errorf("%s: %w", fix, err)
	}

	return err
}

// isRejected returns true if the server will reject the next attempt as well, unless a setting changes.
func (a access) isRejected(err error) bool {
	return !errors.Is(err, errServerClosed) && cmp.Or(a.explainTLS(err), a.explainUser(err)) != ""
}

// explainTLS returns what to fix if the connection failed because of TLS. Otherwise it returns an
// empty string.
func (a access) explainTLS(err error) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		if a.CAFile == "" {
			return configPath + ".ca_file: it is not set, and no CA that this system trusts signed the server's certificate"
		}

		return configPath + ".ca_file: no CA in " + a.CAFile + " signed the server's certificate"
	}

	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return a.settingName() + ": the server's certificate has expired: renew it"
	}

	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return a.settingName() + ": write a host name that the server's certificate is for"
	}

	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return a.settingName() + ": the server does not use TLS on this port: write its TLS port, or amqp://"
	}

	// The server rejected the client's certificate, which crypto/tls reports with an unexported
	// type, or it closed the connection without a reason.
	isRejected := strings.Contains(err.Error(), "remote error: tls:")

	if isRejected || errors.Is(err, errServerClosed) {
		suffix := ""
		if !isRejected {
			suffix = ", or the server is shutting down"
		}

		if a.CertFile == "" {
			return configPath + ".cert_file: it is not set, and the server may require it" + suffix
		}

		return configPath + ".cert_file: the server rejects " + a.CertFile + suffix
	}

	return ""
}

// errServerClosed means that the server closed a TLS connection before it sent any AMQP data.
var errServerClosed = errors.New("the server closed the connection")

// explainUser returns what to fix if the server rejects the user. Otherwise it returns an empty
// string.
func (a access) explainUser(err error) string {
	switch {
	case errors.Is(err, amqp.ErrCredentials):
		return a.settingName() + ": the server rejects the user and password"
	case errors.Is(err, amqp.ErrSASL):
		return a.settingName() + ": the server rejects the auth_mechanism"
	}

	amqpErr, ok := errors.AsType[*amqp.Error](err)

	switch {
	case ok && amqpErr.Code == amqp.NotAllowed:
		return a.settingName() + ": the vhost does not exist, or the user has no permission for it or too many connections"
	case ok && amqpErr.Code == amqp.AccessRefused:
		return "grant the permissions in RabbitMQ to the user in " + a.settingName()
	case ok && strings.Contains(amqpErr.Reason, amqp.ErrFrame.Reason):
		return a.settingName() + ": the server does not use AMQP on this port: if it is the TLS port, write amqps://"
	default:
		return ""
	}
}
