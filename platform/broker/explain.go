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

// explain puts the setting to fix before an error of a server or a connection. What it
// can't tell stays as it is.
func (a access) explain(err error) error {
	if err == nil {
		return nil
	}

	if fix := cmp.Or(a.mendTLS(err), a.mendUser(err)); fix != "" {
		return fmt.Errorf("%s: %w", fix, err)
	}

	return err
}

// mendTLS says what to fix when no connection comes about; empty if that is another
// thing.
func (a access) mendTLS(err error) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		if a.CAFile == "" {
			return field + ".ca_file: it is not given, and the server's certificate is of no CA that this system trusts"
		}

		return field + ".ca_file: the server's certificate is of no CA in " + a.CAFile
	}

	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return a.where() + ": renew the certificate of that server"
	}

	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return a.where() + ": write a host name that the server's certificate is for"
	}

	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return a.where() + ": the server does not speak TLS there: write its TLS port, or no TLS"
	}

	// What the server says of the client's certificate, with a type that is no part of
	// crypto/tls, or its silence.
	told := strings.Contains(err.Error(), "remote error: tls:")

	if told || errors.Is(err, errHungUp) {
		doubt := ""
		if !told {
			doubt = ", or is ending"
		}

		if a.CertFile == "" {
			return field + ".cert_file: it is not given, and the server may ask for it" + doubt
		}

		return field + ".cert_file: the server does not take " + a.CertFile + doubt
	}

	return ""
}

// errHungUp is of a server that ends a connection with TLS before it says a word of its
// protocol.
var errHungUp = errors.New("the server hung up")

// mendUser says what to fix when the server refuses who connects; empty if it does not.
func (a access) mendUser(err error) string {
	switch {
	case errors.Is(err, amqp.ErrCredentials):
		return a.where() + ": the server does not take the user and password"
	case errors.Is(err, amqp.ErrSASL):
		return a.where() + ": the server does not take its auth_mechanism"
	case errors.Is(err, amqp.ErrVhost):
		return a.where() + ": the vhost is not there, or its user may not use it"
	}

	said, ok := errors.AsType[*amqp.Error](err)

	switch {
	case ok && said.Code == amqp.AccessRefused:
		return "the permissions in RabbitMQ of the user in " + a.where()
	case ok && strings.Contains(said.Reason, amqp.ErrFrame.Reason):
		return a.where() + ": the server does not speak AMQP there: for its TLS port write amqps"
	default:
		return ""
	}
}
