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

	cryptossh "golang.org/x/crypto/ssh"

	"github.com/hyperfleet/hyperfleet/kit/log"
)

// maxMissedKeepAlives is how many keep-alives in a row may get no response before the connection is closed.
const maxMissedKeepAlives = 3

// Conn is a connection to a host. The scripts of one connection run one after the other.
type Conn struct {
	dialer   *Dialer
	client   *cryptossh.Client
	target   Target
	hostKey  string
	sudoMode sudoMode

	runLock   sync.Mutex
	closeOnce sync.Once
	closed    chan struct{}
}

func (d *Dialer) newConn(target Target, hostKey string, client *cryptossh.Client) *Conn {
	c := &Conn{dialer: d, client: client, target: target, hostKey: hostKey, closed: make(chan struct{})}
	go c.keepAlive()

	return c
}

// HostKey returns the fingerprint of the host's key: "SHA256:" and the digest in base64, as
// ssh-keygen -l prints it.
func (c *Conn) HostKey() string { return c.hostKey }

// Address returns the host:port at which the host was reached.
func (c *Conn) Address() string { return c.target.Address }

// Close closes the connection. A script that is running continues until it ends or its timeout
// ends.
func (c *Conn) Close() error {
	c.closeOnce.Do(func() { close(c.closed) })

	return c.client.Close()
}

// keepAlive closes a connection that gets no responses, so that pending calls return an error.
func (c *Conn) keepAlive() {
	ticker := c.dialer.Clock.NewTicker(c.dialer.KeepAlive)
	defer ticker.Stop()

	responses, isWaiting, missed := make(chan error, 1), false, 0

	for {
		select {
		case <-c.closed:
			return
		case err := <-responses:
			isWaiting, missed = false, 0

			if err != nil {
				_ = c.client.Close()

				return
			}
		case <-ticker.C():
			if isWaiting {
				missed++
				if missed == maxMissedKeepAlives {
					_ = c.client.Close()

					return
				}

				continue
			}

			isWaiting = true

			go func() {
				// Any response shows that the host is alive, even a negative one.
				_, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil)
				responses <- err
			}()
		}
	}
}

// passwordInput returns what sudo reads from standard input before the command: the password, or nothing if the
// mode asks for none.
func (c *Conn) passwordInput(mode sudoMode) io.Reader {
	if mode != sudoPrompt {
		return strings.NewReader("")
	}

	return strings.NewReader(c.target.Password.Reveal() + "\n")
}

// Output is the standard output of a script.
type Output struct {
	Stdout string
	// Truncated is true if the output had more than 256 KiB. The rest is missing.
	Truncated bool
}

// Run runs a script as root. If the script fails, Run returns both its output and an error, whose
// message contains the last lines of standard error. If the context ends first, the script keeps
// running and its output is lost.
//
// Secrets are redacted in the output and the error. If the host does not respond within the script's timeout and
// gracePeriod, Run closes the connection.
func (c *Conn) Run(ctx context.Context, script Script) (out Output, err error) {
	c.runLock.Lock()
	defer c.runLock.Unlock()

	script.Timeout = cmp.Or(script.Timeout, DefaultTimeout)

	start := c.dialer.Clock.Now()
	defer func() { c.dialer.observe("run", start, err) }()

	runCtx, cancel := context.WithTimeout(ctx, script.Timeout+gracePeriod)
	defer cancel()

	result, err := c.exec(runCtx, commandLine(c.sudoMode, script), io.MultiReader(c.passwordInput(c.sudoMode), script.Input))
	secrets := append([]log.Secret{c.target.Password, c.target.PrivateKey}, script.Secrets...)
	text, isTruncated := result.stdout.text()
	text = redact(withoutGreeting(script, text), secrets...)
	out = Output{Stdout: text[:min(len(text), maxStdout)], Truncated: isTruncated || len(text) > maxStdout}
	stderr := result.stderr.text()
	operation := fmt.Sprintf("run %s on %s", script.Label, c.target.name())
	message := lastLines(redact(stderr, secrets...))

	switch {
	case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		// The guard is gone, or it could not stop the script.
		_ = c.Close()

		return out, newError(TimedOut, nil,
			fmt.Sprintf("%s: timed out after %s, and the host did not respond", operation, script.Timeout))
	case err != nil:
		return out, newError(Unreachable, err, operation)
	case hasTimedOut(script, result.code, stderr):
		return out, newError(TimedOut, nil,
			fmt.Sprintf("%s: the script was stopped after its timeout of %s: %s", operation, script.Timeout, message))
	case result.code != 0:
		return out, newError(Rejected, nil, fmt.Sprintf("%s: the script exited with code %d: %s", operation, result.code, message))
	default:
		return out, nil
	}
}

// commandResult is the result of a command.
type commandResult struct {
	code   int
	stdout *headBuffer
	stderr *tailBuffer
}

// exec runs a command in a new session. It returns an error if the connection fails or the context
// ends. The result then holds the output so far.
func (c *Conn) exec(ctx context.Context, line string, input io.Reader) (commandResult, error) {
	result := commandResult{stdout: &headBuffer{}, stderr: &tailBuffer{}}
	done := make(chan error, 1)
	code := 0

	go func() {
		var err error

		code, err = c.runInSession(ctx, line, input, result.stdout, result.stderr)
		done <- err
	}()

	select {
	case err := <-done:
		result.code = code

		return result, err
	case <-ctx.Done():
		return result, ctx.Err()
	}
}

// runInSession runs a command line in a session and returns its exit code. The error is non-nil only if there is
// no exit code.
func (c *Conn) runInSession(ctx context.Context, line string, input io.Reader, stdout, stderr io.Writer) (int, error) {
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
		// A script may succeed without reading all of its input, so ignore errors here. The exit
		// code counts.
		_, _ = io.Copy(stdin, input)
		_ = stdin.Close()
	}()

	err = session.Wait()

	if exit, ok := errors.AsType[*cryptossh.ExitError](err); ok {
		return exit.ExitStatus(), nil
	}

	if _, ok := errors.AsType[*cryptossh.ExitMissingError](err); ok {
		return 0, errors.New("the connection was lost before the command ended: the command's progress is unknown")
	}

	return 0, err
}
