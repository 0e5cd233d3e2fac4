// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	cryptossh "golang.org/x/crypto/ssh"

	"github.com/hyperfleet/hyperfleet/kit/log"
)

const (
	checkTimeout = 30 * time.Second
	// mostMissed is after how many keep-alives without an answer a connection is cut.
	mostMissed = 3
)

// Conn is a connection to a host. Scripts of one connection run one after the other.
type Conn struct {
	dialer  *Dialer
	client  *cryptossh.Client
	target  Target
	hostKey string
	as      root

	running sync.Mutex
	closing sync.Once
	closed  chan struct{}
}

func (d *Dialer) open(target Target, hostKey string, client *cryptossh.Client) *Conn {
	c := &Conn{dialer: d, client: client, target: target, hostKey: hostKey, closed: make(chan struct{})}
	go c.keepAlive()

	return c
}

// HostKey is the fingerprint of the host's key, to be pinned: "SHA256:" and the digest in
// base64, as ssh-keygen -l prints it.
func (c *Conn) HostKey() string { return c.hostKey }

// Address is where the host was reached, as host:port.
func (c *Conn) Address() string { return c.target.Address }

// Close ends the connection. A script that runs goes on until it is done or its time is up.
func (c *Conn) Close() error {
	c.closing.Do(func() { close(c.closed) })

	return c.client.Close()
}

// keepAlive cuts a connection that does not answer, so that whoever waits on it hears.
func (c *Conn) keepAlive() {
	ticker := c.dialer.Clock.NewTicker(c.dialer.KeepAlive)
	defer ticker.Stop()

	answers, waiting, missed := make(chan error, 1), false, 0

	for {
		select {
		case <-c.closed:
			return
		case err := <-answers:
			if waiting, missed = false, 0; err != nil {
				_ = c.client.Close()

				return
			}
		case <-ticker.C():
			if waiting {
				missed++
				if missed == mostMissed {
					_ = c.client.Close()

					return
				}

				continue
			}

			waiting = true

			go func() {
				// The answer may be a no: that it comes is what counts.
				_, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil)
				answers <- err
			}()
		}
	}
}

// becomeRoot finds out how.
func (c *Conn) becomeRoot(ctx context.Context) error {
	if c.target.User == rootUser {
		return nil
	}

	ways := []root{sudo}
	if !c.target.Password.Empty() {
		ways = append(ways, sudoAsked)
	}

	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()

	said := ""

	for _, way := range ways {
		a, err := c.exec(ctx, string(way)+"/usr/bin/true", c.password(way))
		if err != nil {
			return fault(Unreachable, err, "ask sudo at "+c.target.name())
		}

		if c.as = way; a.code == 0 {
			return nil
		}

		said = a.stderr.text()
	}

	return fault(SudoRefused, nil, fmt.Sprintf("%s may not become root at %s with sudo: add a rule with NOPASSWD for it: %s",
		c.target.User, c.target.name(), last(redact(said, c.target.Password, c.target.PrivateKey))))
}

func (c *Conn) password(way root) io.Reader {
	if way != sudoAsked {
		return strings.NewReader("")
	}

	return strings.NewReader(c.target.Password.Reveal() + "\n")
}

// Output is what a script said on its standard output.
type Output struct {
	Stdout string
	// Truncated says that there was more than 256 KiB, and that the rest is missing.
	Truncated bool
}

// Run runs a script as root. If it ended with an error, its output comes with it, and the
// last lines of its standard error are in the message. When the context ends, the script
// goes on without anybody who hears.
func (c *Conn) Run(ctx context.Context, script Script) (Output, error) {
	c.running.Lock()
	defer c.running.Unlock()

	script.Timeout = cmp.Or(script.Timeout, DefaultTimeout)
	start := c.dialer.Clock.Now()
	out, err := c.run(ctx, script)
	c.dialer.observe("run", start, err)

	return out, err
}

func (c *Conn) run(ctx context.Context, script Script) (Output, error) {
	limited, cancel := context.WithTimeout(ctx, script.Timeout+grace)
	defer cancel()

	a, err := c.exec(limited, command(c.as, script), io.MultiReader(c.password(c.as), script.Input))
	hidden := append([]log.Secret{c.target.Password, c.target.PrivateKey}, script.Secrets...)
	text, truncated := a.stdout.text()
	out := Output{Stdout: redact(text, hidden...), Truncated: truncated}
	stderr := a.stderr.text()
	what := fmt.Sprintf("run %s at %s", script.Label, c.target.name())
	said := last(redact(stderr, hidden...))

	switch {
	case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		// Nobody is there who could have ended it, or it can't be.
		_ = c.Close()

		return out, fault(TimedOut, nil, fmt.Sprintf("%s: no end within %s, and the host does not say why", what, script.Timeout))
	case err != nil:
		return out, fault(Unreachable, err, what)
	case wasLate(script, a.code, stderr):
		return out, fault(TimedOut, nil, fmt.Sprintf("%s: it was ended after %s: %s", what, script.Timeout, said))
	case a.code != 0:
		return out, fault(Rejected, nil, fmt.Sprintf("%s: it ended with %d: %s", what, a.code, said))
	default:
		return out, nil
	}
}

// answer is how a command ended.
type answer struct {
	code   int
	stdout *head
	stderr *tail
}

// exec runs a command in a session of its own. An error is one of the connection, or of the
// context, and then the answer is what was said so far.
func (c *Conn) exec(ctx context.Context, line string, input io.Reader) (answer, error) {
	a := answer{stdout: &head{}, stderr: &tail{}}
	done := make(chan error, 1)
	code := 0

	go func() {
		var err error

		code, err = c.session(ctx, line, input, a.stdout, a.stderr)
		done <- err
	}()

	select {
	case err := <-done:
		a.code = code

		return a, err
	case <-ctx.Done():
		return a, ctx.Err()
	}
}

func (c *Conn) session(ctx context.Context, line string, input io.Reader, stdout, stderr io.Writer) (int, error) {
	session, err := c.client.NewSession()
	if err != nil {
		return 0, err
	}
	defer func() { _ = session.Close() }()

	stop := context.AfterFunc(ctx, func() { _ = session.Close() })
	defer stop()

	stdin, err := session.StdinPipe()
	if err != nil {
		return 0, err
	}

	session.Stdout, session.Stderr = stdout, stderr
	if err := session.Start(line); err != nil {
		return 0, err
	}

	go func() {
		// A script may end well without having read all: its end says how it went.
		_, _ = io.Copy(stdin, input)
		_ = stdin.Close()
	}()

	err = session.Wait()

	if exit, ok := errors.AsType[*cryptossh.ExitError](err); ok {
		return exit.ExitStatus(), nil
	}

	if _, ok := errors.AsType[*cryptossh.ExitMissingError](err); ok {
		return 0, errors.New("the connection was cut before the end: what was done by then is not known")
	}

	return 0, err
}
