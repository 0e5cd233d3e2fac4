// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

const (
	natsReconnectWait   = 500 * time.Millisecond
	natsReconnectJitter = 100 * time.Millisecond
	// troubleConnection is what keeps the connection from being made anew.
	troubleConnection = "connection"
)

func natsAccess(conf platform.BrokerNATSConf) access {
	return access{
		field: "broker.nats", url: conf.URL, urlFile: conf.URLFile,
		schemes: []string{"nats", "tls", "ws", "wss"}, plain: []string{"ws"}, several: true, token: true,
		caFile: conf.CAFile, certFile: conf.CertFile, keyFile: conf.KeyFile, credentials: conf.CredentialsFile,
	}
}

// connect makes the connection, which from then on is made anew by itself.
func (o *overNATS) connect(conf platform.BrokerNATSConf) error {
	if err := o.access.check(); err != nil {
		return err
	}

	where, err := o.access.address()
	if err != nil {
		return err
	}

	o.pool = where

	conn, err := nats.Connect(where, o.options(conf)...)
	if err != nil {
		return fmt.Errorf("connect to NATS at %s: %w", o.access.hosts(where), o.access.explain(err))
	}

	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()

		return fmt.Errorf("use JetStream of NATS: %w", err)
	}

	o.mu.Lock()
	defer o.mu.Unlock()

	o.conn, o.js = conn, js

	return nil
}

func (o *overNATS) options(conf platform.BrokerNATSConf) []nats.Option {
	options := []nats.Option{
		nats.Name("hyperfleet"), nats.Timeout(natsDialTimeout), nats.MaxReconnects(-1),
		// A password that was changed at the server may be in the file only later.
		nats.IgnoreAuthErrorAbort(),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				o.log.Warn("connection to NATS lost: it is made anew", "error", o.access.explain(err))
			}
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { o.stays(err) }),
		nats.ReconnectHandler(func(*nats.Conn) {
			o.troubles.anew()
			o.log.Info("connection to NATS made anew")
		}),
		nats.ErrorHandler(func(conn *nats.Conn, _ *nats.Subscription, err error) { o.hear(conn, err) }),
	}
	options = append(options, nats.CustomReconnectDelay(func(int) time.Duration {
		// It is asked for with the connection's lock free, but the pool is not for it to change.
		go o.reread()

		return natsReconnectWait + rand.N(natsReconnectJitter) //nolint:gosec // jitter needs no secret
	}))

	if conf.CredentialsFile != "" {
		options = append(options, nats.UserCredentials(conf.CredentialsFile))
	}

	if !o.access.secured() {
		return options
	}

	var own nats.TLSCertHandler
	if conf.CertFile != "" {
		own = func() (tls.Certificate, error) { return o.access.certificate() }
	}

	return append(options, nats.ClientTLSConfig(own, o.access.roots))
}

// reread gives the connection, which is lost, the servers and the users that the file has
// now.
func (o *overNATS) reread() {
	where, err := o.access.address()
	if err != nil {
		o.stays(err)

		return
	}

	o.mu.Lock()
	defer o.mu.Unlock()

	if where == o.pool || o.conn == nil {
		return
	}

	list := strings.Split(where, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}

	if err := o.conn.SetServerPool(list); err != nil {
		o.stays(fmt.Errorf("%s: %w", o.access.where(), err))

		return
	}

	o.pool = where
	o.log.Info("NATS is looked for where the file says now", "hosts", o.access.hosts(where))
}

// stays says why there is still no connection.
func (o *overNATS) stays(err error) {
	err = o.access.explain(err)
	if o.troubles.note(troubleConnection, err) {
		o.log.Warn("connect to NATS: it is tried again", "error", err)
	}
}

// hear takes what the server says without being asked.
func (o *overNATS) hear(conn *nats.Conn, err error) {
	switch {
	case !conn.IsConnected():
		o.stays(err)
	case errors.Is(err, nats.ErrPermissionViolation):
		// It names the subject. Whoever asked there gets no answer.
		err = o.access.explain(err)
		if o.troubles.note(err.Error(), err) {
			o.log.Warn("NATS does not permit it", "error", err)
		}
	default:
		o.log.Warn("NATS", "error", o.access.explain(err))
	}
}

// explain adds what is known to be in the way to an error.
func (o *overNATS) explain(err error) error {
	if err == nil {
		return nil
	}

	if known := o.troubles.err(); known != nil {
		return fmt.Errorf("%w: %w", err, known)
	}

	return o.access.explain(err)
}
