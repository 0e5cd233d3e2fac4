// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	cryptossh "golang.org/x/crypto/ssh"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/inputbound"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	system   = "ssh"
	rootUser = "root"

	dialTries = 2
	dialPause = time.Second
)

// Target is a host and how to get in.
type Target struct {
	// Name of the host in messages; empty for its address.
	Name string
	// Address is host:port, and Fallbacks are tried after it, in their order, where nobody answers
	// there.
	Address   string
	Fallbacks []string
	// User to log in as. Any but root has to be able to become root with sudo, without a
	// password or with Password.
	User string
	// Password and PrivateKey (PEM, without a passphrase); at least one. The key is tried
	// first.
	Password   log.Secret
	PrivateKey log.Secret
	// Trust says which key the host has to show. Without any nobody logs in.
	Trust
}

func (t Target) name() string { return cmp.Or(t.Name, t.Address) }

// Options of a Dialer; zero values are what is usual.
type Options struct {
	// DialTimeout is for one try to connect, HandshakeTimeout for keys and login; 15 s each.
	DialTimeout      time.Duration
	HandshakeTimeout time.Duration
	// KeepAlive is how often a connection is asked whether it lives; 15 s. After three times
	// without an answer it is cut.
	KeepAlive time.Duration
	// Clock times keep-alives and calls.
	Clock clock.WithTicker
	// Calls counts and times calls, as system "ssh"; may be nil.
	Calls *metrics.Calls
}

// Dialer connects to hosts. It may be used from any goroutine.
type Dialer struct{ Options }

// New gives a dialer.
func New(options Options) *Dialer {
	options.DialTimeout = cmp.Or(options.DialTimeout, defaultDialTimeout)
	options.HandshakeTimeout = cmp.Or(options.HandshakeTimeout, defaultHandshakeTimeout)
	options.KeepAlive = cmp.Or(options.KeepAlive, defaultKeepAlive)

	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}

	return &Dialer{Options: options}
}

// Dial connects, checks the host's key, logs in and makes sure that scripts can run as
// root. The context is that of the dialing alone: Close ends the connection.
func (d *Dialer) Dial(ctx context.Context, target Target) (*Conn, error) {
	auth, err := authOf(target)
	if err != nil {
		return nil, fault(Misconfigured, err, "connect to "+target.name())
	}

	if target.authorities, err = target.parse(); err != nil {
		return nil, fault(Misconfigured, err, "connect to "+target.name())
	}

	start := d.Clock.Now()
	conn, err := d.dial(ctx, target, auth)
	d.observe("dial", start, err)

	if err != nil {
		return nil, err
	}

	if err := conn.becomeRoot(ctx); err != nil {
		_ = conn.Close()

		return nil, &presented{hostKey: conn.hostKey, error: err}
	}

	return conn, nil
}

func (d *Dialer) observe(operation string, start time.Time, err error) {
	if KindOf(err) == TimedOut {
		// The guard's word for it is not the library's.
		err = context.DeadlineExceeded
	}

	if d.Calls != nil {
		d.Calls.Observe(system, operation, d.Clock.Since(start), err)
	}
}

func authOf(target Target) ([]cryptossh.AuthMethod, error) {
	var methods []cryptossh.AuthMethod

	if !target.PrivateKey.Empty() {
		if err := inputbound.Key([]byte(target.PrivateKey.Reveal())); err != nil {
			return nil, fmt.Errorf("the private key can't be used: %w", err)
		}

		signer, err := cryptossh.ParsePrivateKey([]byte(target.PrivateKey.Reveal()))
		if err != nil {
			// The library's words could quote what it was given.
			return nil, errors.New("the private key can't be read: it must be PEM, without a passphrase")
		}

		methods = append(methods, cryptossh.PublicKeys(signer))
	}

	if !target.Password.Empty() {
		methods = append(methods, cryptossh.Password(target.Password.Reveal()), asked(target.Password))
	}

	switch {
	case len(methods) == 0:
		return nil, errors.New("there is neither a password nor a private key: name one in the host's secret")
	case target.User == "":
		return nil, errors.New("there is no user to log in as")
	default:
		return methods, nil
	}
}

// asked answers the one hidden question that servers with PAM ask in place of taking a
// password (RFC 4256).
func asked(password log.Secret) cryptossh.AuthMethod {
	return cryptossh.KeyboardInteractive(func(_, _ string, questions []string, echos []bool) ([]string, error) {
		answers := make([]string, len(questions))
		for i := range questions {
			if echos[i] || len(questions) > 1 {
				return nil, errors.New("the host asks for more than a password")
			}

			answers[i] = password.Reveal()
		}

		return answers, nil
	})
}

// dial tries to reach the host, and then at its other addresses. What the host answers is final;
// another one at another address of its is none of it.
func (d *Dialer) dial(ctx context.Context, target Target, auth []cryptossh.AuthMethod) (*Conn, error) {
	conn, err := d.reach(ctx, target, auth, dialTries)

	for _, address := range target.Fallbacks {
		if KindOf(err) != Unreachable || ctx.Err() != nil {
			break
		}

		other := target
		other.Address = address

		conn, otherErr := d.reach(ctx, other, auth, 1)
		if kind := KindOf(otherErr); kind != Unreachable && kind != HostKeyChanged && kind != HostCertificateRefused {
			return conn, otherErr
		}

		err = fault(Unreachable, fmt.Errorf("%w; %s", err, otherErr.Error()), "try "+target.name()+" at "+address+" as well")
	}

	return conn, err
}

// reach tries one address so many times.
func (d *Dialer) reach(ctx context.Context, target Target, auth []cryptossh.AuthMethod, tries int) (*Conn, error) {
	raw, err := d.connect(ctx, target, tries)
	if err != nil {
		return nil, err
	}

	return d.handshake(ctx, target, auth, raw)
}

func (d *Dialer) connect(ctx context.Context, target Target, tries int) (net.Conn, error) {
	for try := 1; ; try++ {
		raw, err := (&net.Dialer{Timeout: d.DialTimeout}).DialContext(ctx, "tcp", target.Address)
		if err == nil {
			return raw, nil
		}

		if try == tries || ctx.Err() != nil || retry.Pause(ctx, d.Clock, dialPause) != nil {
			return nil, fault(Unreachable, err, "connect to "+target.name())
		}
	}
}

func (d *Dialer) handshake(
	ctx context.Context, target Target, auth []cryptossh.AuthMethod, raw net.Conn,
) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.HandshakeTimeout)
	defer cancel()

	// The library knows no contexts: closing is what it hears.
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })

	shown, refusal := "", error(nil)
	config := &cryptossh.ClientConfig{
		User: target.User, Auth: auth, HostKeyAlgorithms: target.algorithms(),
		HostKeyCallback: func(address string, _ net.Addr, key cryptossh.PublicKey) error {
			shown, refusal = fingerprint(key), target.check(address, key, d.Clock.Now())

			return refusal
		},
	}

	client, channels, requests, err := cryptossh.NewClientConn(raw, target.Address, config)
	if err == nil && stop() {
		return d.open(target, shown, cryptossh.NewClient(client, channels, requests)), nil
	}

	_ = raw.Close()

	if refusal != nil {
		return nil, target.untrusted(shown, refusal) // its key is nobody's to pin
	}

	return nil, &presented{hostKey: shown, error: d.refusal(ctx, target, err)}
}

// refusal sorts what went wrong between connecting and being in, but for the host's key.
func (d *Dialer) refusal(ctx context.Context, target Target, err error) *Error {
	name := target.name()

	switch {
	case err != nil && refused(err.Error()):
		return fault(AuthRefused, nil, fmt.Sprintf(
			"%s does not let %s in: check the user, the password and the key in the host's secret", name, target.User))
	case ctx.Err() != nil:
		return fault(Unreachable, ctx.Err(), fmt.Sprintf("log in at %s: no answer within %s", name, d.HandshakeTimeout))
	default:
		return fault(Unreachable, err, "log in at "+name)
	}
}

// refused knows the texts of a refusal: that of the library, when all was tried, and that of
// OpenSSH, which hangs up after its MaxAuthTries.
func refused(text string) bool {
	return strings.Contains(text, "unable to authenticate") || strings.Contains(text, "Too many authentication failures")
}
