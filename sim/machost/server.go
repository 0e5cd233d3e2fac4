// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machost

import (
	"bytes"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// accept serves connections until the listener is closed.
func (h *Host) accept() {
	for {
		conn, err := h.listener.Accept()
		if err != nil {
			return
		}

		carrier := newFrozen(conn)

		h.mu.Lock()

		down := h.down
		if !down {
			h.conns[conn] = carrier
			carrier.freeze(h.faults.frozen)
		}

		h.mu.Unlock()

		if down {
			_ = conn.Close()

			continue
		}

		h.serving.Go(func() {
			h.serve(conn, carrier)

			h.mu.Lock()
			delete(h.conns, conn)
			h.mu.Unlock()
		})
	}
}

func (h *Host) config() *ssh.ServerConfig {
	h.mu.Lock()
	defer h.mu.Unlock()

	config := &ssh.ServerConfig{
		ServerVersion: "SSH-2.0-OpenSSH_9.9",
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			known := slices.ContainsFunc(h.keys, func(k ssh.PublicKey) bool { return bytes.Equal(k.Marshal(), key.Marshal()) })
			if meta.User() != h.options.User || !known {
				return nil, errors.New("no such key")
			}

			return &ssh.Permissions{}, nil
		},
		PasswordCallback: func(meta ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
			same := subtle.ConstantTimeCompare(password, []byte(h.options.Password)) == 1
			if meta.User() != h.options.User || h.options.Password == "" || !same {
				return nil, errors.New("permission denied")
			}

			return &ssh.Permissions{}, nil
		},
	}

	if h.faults.noPasswords {
		config.PasswordCallback = nil
	}

	config.AddHostKey(h.signer)

	if h.cert != nil {
		// Of what it is made is for the client to look at.
		if signer, err := ssh.NewCertSigner(h.cert, h.signer); err == nil {
			config.AddHostKey(signer)
		}
	}

	return config
}

func (h *Host) serve(conn, carrier net.Conn) {
	defer func() { _ = conn.Close() }()

	_, channels, requests, err := ssh.NewServerConn(carrier, h.config())
	if err != nil {
		return
	}

	h.mu.Lock()
	h.logins++
	h.mu.Unlock()

	var sessions sync.WaitGroup
	defer sessions.Wait()

	// OpenSSH's answer to keepalive@openssh.com is that it does not know it.
	sessions.Go(func() { ssh.DiscardRequests(requests) })

	for channel := range channels {
		if channel.ChannelType() != "session" {
			h.note("channel " + channel.ChannelType())

			_ = channel.Reject(ssh.Prohibited, "only sessions are open")

			continue
		}

		session, requests, err := channel.Accept()
		if err != nil {
			continue
		}

		sessions.Go(func() { h.session(conn, session, requests) })
	}
}

// session runs the one command of a session.
func (h *Host) session(conn net.Conn, channel ssh.Channel, requests <-chan *ssh.Request) {
	defer func() { _ = channel.Close() }()

	for request := range requests {
		if request.Type != "exec" || len(request.Payload) < 4 {
			h.note("request " + request.Type)

			_ = request.Reply(false, nil)

			continue
		}

		_ = request.Reply(true, nil)

		go ssh.DiscardRequests(requests)

		code, tell := h.exec(conn, channel, string(request.Payload[4:]))
		if tell {
			status := binary.BigEndian.AppendUint32(nil, uint32(code))
			_, _ = channel.SendRequest("exit-status", false, status)
		}

		return
	}
}

var scriptLine = regexp.MustCompile(`(?s)^(?:sudo [^/]*)?/bin/bash -c '.*' hyperfleet-script '([a-z0-9-]+)' [0-9]+(?: beside)?$`)

// labelOf gives the label of a script; empty for other commands.
func labelOf(line string) string {
	if found := scriptLine.FindStringSubmatch(line); found != nil {
		return found[1]
	}

	return ""
}

// exec runs a command, in the way that a fault wants, and says whether to tell its end.
func (h *Host) exec(conn net.Conn, channel ssh.Channel, line string) (code int, tell bool) {
	h.mu.Lock()
	slow := h.faults.slow
	h.mu.Unlock()

	label := labelOf(line)
	if label == "" {
		return h.command(channel, channel, line), true
	}

	h.began(label)
	defer func() { h.ended(label, code) }()

	if slow > 0 {
		time.Sleep(slow)
	}

	var input io.Reader = channel

	switch h.take(label) {
	case Fail:
		_, _ = io.Copy(io.Discard, channel)
		_, _ = io.WriteString(channel.Stderr(), "machost: "+label+" fails as it was told\n")

		return 1, true
	case Hang:
		input = h.hanging(channel)
	case Cut:
		input = &half{from: channel, then: func() { _ = conn.Close() }}
		_ = h.command(input, channel, line)

		return -1, false
	case Reboot:
		input = &half{from: channel, then: func() { go h.restartLater() }}
		_ = h.command(input, channel, line)

		return -1, false
	case CutLate:
		code = h.command(channel, channel, line)
		_ = conn.Close()

		return code, false
	}

	return h.command(input, channel, line), true
}

// hanging is a script that never ends, in place of what is sent.
func (h *Host) hanging(channel ssh.Channel) io.Reader {
	go func() { _, _ = io.Copy(io.Discard, channel) }()

	return strings.NewReader("while :; do /bin/sleep 1; done\n")
}

// half gives half of what comes first, does something, and then ends.
type half struct {
	from io.Reader
	then func()
	done bool
}

// Read reads half of what is there, once.
func (h *half) Read(p []byte) (int, error) {
	if h.done {
		h.then()

		return 0, io.EOF
	}

	h.done = true
	n, err := h.from.Read(p)

	return n / 2, err
}

func (h *Host) began(label string) {
	h.mu.Lock()
	h.running[label]++
	h.mu.Unlock()

	if h.options.Watch != nil {
		h.options.Watch(Run{Label: label})
	}
}

func (h *Host) ended(label string, code int) {
	run := Run{Label: label, Ended: true, Code: code}

	h.mu.Lock()
	h.running[label]--
	h.runs = append(h.runs, run)
	h.mu.Unlock()

	if h.options.Watch != nil {
		h.options.Watch(run)
	}
}

// command runs a command and gives how it ended. It goes on when the connection is cut, as
// with OpenSSH, which hangs up on terminals alone.
func (h *Host) command(input io.Reader, channel ssh.Channel, line string) int {
	if h.box == nil {
		return h.lightly(input, channel, line)
	}

	argv := h.box.argv(line)
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // see above

	// Writers that never fail: a command whose output nobody hears goes on.
	cmd.Stdout, cmd.Stderr = deaf{channel}, deaf{channel.Stderr()}

	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}

	if err != nil {
		h.note("start a command: " + err.Error())

		return 255
	}

	go func() {
		_, _ = io.Copy(stdin, input)
		_ = stdin.Close()
	}()

	err = cmd.Wait()

	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}

	return 0
}

type deaf struct{ to io.Writer }

// Write takes all.
func (d deaf) Write(p []byte) (int, error) {
	_, _ = d.to.Write(p)

	return len(p), nil
}
