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

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	metricsSystem = "ssh"
	rootUser      = "root"

	dialAttempts   = 2
	dialRetryDelay = time.Second

	// sudoCheckTimeout limits how long it takes to find out how the user becomes root.
	sudoCheckTimeout = 30 * time.Second
)

// Target is a host and the login for it.
type Target struct {
	// Name of the host in messages. If it is empty, messages contain the address.
	Name string
	// Address is host:port. Fallbacks are addresses that are tried after it, in order, if it is
	// unreachable.
	Address   string
	Fallbacks []string
	// User is the login name. A user other than root must be able to become root with sudo, without
	// a password or with Password.
	User string
	// Password and PrivateKey (PEM, without a passphrase) authenticate the user. At least one of
	// them must be set. The private key is tried first.
	Password   log.Secret
	PrivateKey log.Secret
	// Trust says which key the host must present. Without any trusted key, Dial does not log in.
	Trust
}

func (t Target) name() string { return cmp.Or(t.Name, t.Address) }

// Options are the options of a Dialer. Zero values stand for the defaults.
type Options struct {
	// DialTimeout limits one attempt to connect, and HandshakeTimeout limits key exchange and
	// login. Default: 15 s each.
	DialTimeout      time.Duration
	HandshakeTimeout time.Duration
	// KeepAlive is the interval of keep-alive requests. Default: 15 s. After three requests without
	// a response the connection is closed.
	KeepAlive time.Duration
	// Clock times keep-alives and measures calls.
	Clock clock.WithTicker
	// Calls counts and times calls, as system "ssh". It may be nil.
	Calls *metrics.CallMetrics
}

// Dialer connects to hosts. It is safe for concurrent use.
type Dialer struct{ Options }

// New returns a dialer.
func New(options Options) *Dialer {
	options.DialTimeout = cmp.Or(options.DialTimeout, defaultDialTimeout)
	options.HandshakeTimeout = cmp.Or(options.HandshakeTimeout, defaultHandshakeTimeout)
	options.KeepAlive = cmp.Or(options.KeepAlive, defaultKeepAlive)

	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}

	return &Dialer{Options: options}
}

// Dial connects, verifies the host's key, logs in and makes sure that scripts can run as root. The
// context only limits Dial itself. Close ends the connection.
func (d *Dialer) Dial(ctx context.Context, target Target) (*Conn, error) {
	auth, err := newAuthMethods(target)
	if err != nil {
		return nil, newError(Misconfigured, err, "connect to "+target.name())
	}

	if target.authorities, err = target.parseAuthorities(); err != nil {
		return nil, newError(Misconfigured, err, "connect to "+target.name())
	}

	start := d.Clock.Now()
	conn, err := d.dial(ctx, target, auth)
	d.observe("dial", start, err)

	if err != nil {
		return nil, err
	}

	if err := conn.detectSudoMode(ctx); err != nil {
		_ = conn.Close()

		return nil, &hostKeyError{hostKey: conn.hostKey, error: err}
	}

	return conn, nil
}

func (d *Dialer) observe(operation string, start time.Time, err error) {
	if KindOf(err) == TimedOut {
		// The metrics only recognize the error of the context package as a timeout.
		err = context.DeadlineExceeded
	}

	if d.Calls != nil {
		d.Calls.Observe(metricsSystem, operation, d.Clock.Since(start), err)
	}
}

// newAuthMethods returns the methods for a login, first the private key and then the password. It returns
// an error if the target has neither of them or has no user.
func newAuthMethods(target Target) ([]cryptossh.AuthMethod, error) {
	var methods []cryptossh.AuthMethod

	if !target.PrivateKey.IsEmpty() {
		if err := bounds.CheckPrivateKey([]byte(target.PrivateKey.Reveal())); err != nil {
			return nil, fmt.Errorf("the private key can't be used: %w", err)
		}

		signer, err := cryptossh.ParsePrivateKey([]byte(target.PrivateKey.Reveal()))
		if err != nil {
			// The library's error could contain the private key.
			return nil, errors.New("the private key can't be parsed: it must be PEM without a passphrase")
		}

		methods = append(methods, cryptossh.PublicKeys(signer))
	}

	if !target.Password.IsEmpty() {
		methods = append(methods, cryptossh.Password(target.Password.Reveal()), newKeyboardInteractive(target.Password))
	}

	switch {
	case len(methods) == 0:
		return nil, errors.New("there is neither a password nor a private key: add one of them to the host's Secret")
	case target.User == "":
		return nil, errors.New("the user name is missing")
	default:
		return methods, nil
	}
}

// newKeyboardInteractive answers the single hidden question that servers with PAM ask instead of
// accepting a password (RFC 4256).
func newKeyboardInteractive(password log.Secret) cryptossh.AuthMethod {
	return cryptossh.KeyboardInteractive(func(_, _ string, questions []string, echos []bool) ([]string, error) {
		responses := make([]string, len(questions))
		for i := range questions {
			if echos[i] || len(questions) > 1 {
				return nil, errors.New("the host asks for more than a password")
			}

			responses[i] = password.Reveal()
		}

		return responses, nil
	})
}

// dial tries the address of the host and then its fallbacks, as long as the host is unreachable. If
// the host responds, the result is final. A fallback address at which a host with an untrusted key
// responds counts as unreachable.
func (d *Dialer) dial(ctx context.Context, target Target, auth []cryptossh.AuthMethod) (*Conn, error) {
	conn, err := d.dialAddress(ctx, target, auth, dialAttempts)

	for _, address := range target.Fallbacks {
		if KindOf(err) != Unreachable || ctx.Err() != nil {
			break
		}

		fallback := target
		fallback.Address = address

		conn, fallbackErr := d.dialAddress(ctx, fallback, auth, 1)
		if kind := KindOf(fallbackErr); kind != Unreachable && kind != HostKeyChanged && kind != HostCertificateRefused {
			return conn, fallbackErr
		}

		err = newError(Unreachable, fmt.Errorf("%w; %s", err, fallbackErr.Error()),
			"try "+target.name()+" at fallback address "+address)
	}

	return conn, err
}

// dialAddress connects to one address, with the given number of attempts, verifies the host key and logs in. A host
// presents one of its keys in a handshake. If this is not the pinned key, dialAddress tries the keys of other types.
func (d *Dialer) dialAddress(ctx context.Context, target Target, auth []cryptossh.AuthMethod, attempts int) (*Conn, error) {
	algorithms := target.algorithms()

	conn, presented, err := d.login(ctx, target, auth, attempts, algorithms)
	if !target.shouldExcludeKeyType(err) {
		return conn, err
	}

	firstErr := err

	for target.shouldExcludeKeyType(err) {
		if algorithms = withoutKeyType(algorithms, presented); len(algorithms) == 0 {
			return nil, firstErr
		}

		conn, presented, err = d.login(ctx, target, auth, attempts, algorithms)
	}

	if _, hasNoOtherKey := errors.AsType[*cryptossh.AlgorithmNegotiationError](err); hasNoOtherKey {
		return nil, firstErr
	}

	return conn, err
}

// login connects to one address, and logs in if the host presents a trusted key. It also returns the key that the host
// presented, if any. If the login fails although the host key is trusted, the error is a hostKeyError with that key.
func (d *Dialer) login(
	ctx context.Context, target Target, auth []cryptossh.AuthMethod, attempts int, algorithms []string,
) (*Conn, cryptossh.PublicKey, error) {
	raw, err := d.connect(ctx, target, attempts)
	if err != nil {
		return nil, nil, err
	}

	ctx, cancel := context.WithTimeout(ctx, d.HandshakeTimeout)
	defer cancel()

	// The library does not support contexts, so close the connection when the context ends.
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })

	presentedFingerprint, keyErr := "", error(nil)

	var presentedKey cryptossh.PublicKey

	config := &cryptossh.ClientConfig{
		User: target.User, Auth: auth, HostKeyAlgorithms: algorithms,
		HostKeyCallback: func(address string, _ net.Addr, key cryptossh.PublicKey) error {
			presentedKey, presentedFingerprint = key, fingerprint(key)
			keyErr = target.verifyKey(address, key, d.Clock.Now())

			return keyErr
		},
	}

	client, channels, requests, err := cryptossh.NewClientConn(raw, target.Address, config)
	// stop returns false if the context has ended, and so closed the connection.
	if err == nil && stop() {
		return d.newConn(target, presentedFingerprint, cryptossh.NewClient(client, channels, requests)), presentedKey, nil
	}

	_ = raw.Close()

	if keyErr != nil {
		return nil, presentedKey, target.untrustedKeyError(presentedFingerprint, keyErr) // no key to pin, because it is not trusted
	}

	return nil, presentedKey, &hostKeyError{hostKey: presentedFingerprint, error: d.loginError(ctx, target, err)}
}

// connect opens a TCP connection, with the given number of attempts.
func (d *Dialer) connect(ctx context.Context, target Target, attempts int) (net.Conn, error) {
	for attempt := 1; ; attempt++ {
		raw, err := (&net.Dialer{Timeout: d.DialTimeout}).DialContext(ctx, "tcp", target.Address)
		if err == nil {
			return raw, nil
		}

		if attempt == attempts || ctx.Err() != nil || retry.Sleep(ctx, d.Clock, dialRetryDelay) != nil {
			return nil, newError(Unreachable, err, "connect to "+target.name())
		}
	}
}

// loginError returns the error for a failure after connecting, except for an untrusted host key.
func (d *Dialer) loginError(ctx context.Context, target Target, err error) *Error {
	name := target.name()

	switch {
	case err != nil && isAuthRefusal(err.Error()):
		return newError(AuthRefused, nil, fmt.Sprintf(
			"%s refused the login of user %s: check the user, the password and the private key in the host's Secret", name, target.User))
	case ctx.Err() != nil:
		return newError(Unreachable, ctx.Err(), fmt.Sprintf("log in to %s: no response within %s", name, d.HandshakeTimeout))
	default:
		return newError(Unreachable, err, "log in to "+name)
	}
}

// isAuthRefusal returns true for the error texts of a refused login: that of the library after all
// methods failed, and that of OpenSSH, which disconnects after MaxAuthTries.
func isAuthRefusal(text string) bool {
	return strings.Contains(text, "unable to authenticate") || strings.Contains(text, "Too many authentication failures")
}

// detectSudoMode finds out how the user becomes root: without sudo, with sudo, or with sudo and a
// password.
func (c *Conn) detectSudoMode(ctx context.Context) error {
	if c.target.User == rootUser {
		return nil
	}

	modes := []sudoMode{sudoDirect}
	if !c.target.Password.IsEmpty() {
		modes = append(modes, sudoPrompt)
	}

	ctx, cancel := context.WithTimeout(ctx, sudoCheckTimeout)
	defer cancel()

	message := ""

	for _, mode := range modes {
		result, err := c.exec(ctx, string(mode)+"/usr/bin/true", c.passwordInput(mode))
		if err != nil {
			return newError(Unreachable, err, "run sudo on "+c.target.name())
		}

		c.sudoMode = mode
		if result.code == 0 {
			return nil
		}

		message = result.stderr.text()
	}

	return newError(SudoRefused, nil, fmt.Sprintf(
		"user %s can't become root on %s with sudo: add a sudo rule with NOPASSWD for the user: %s",
		c.target.User, c.target.name(), lastLines(redact(message, c.target.Password, c.target.PrivateKey))))
}
