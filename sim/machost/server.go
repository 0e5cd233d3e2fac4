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

		carrier := newFreezableConn(conn)

		h.mu.Lock()

		isDown := h.down
		if !isDown {
			h.conns[conn] = carrier
			carrier.setFrozen(h.faults.frozen)
		}

		h.mu.Unlock()

		if isDown {
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
			isCorrect := subtle.ConstantTimeCompare(password, []byte(h.options.Password)) == 1
			if meta.User() != h.options.User || h.options.Password == "" || !isCorrect {
				return nil, errors.New("permission denied")
			}

			return &ssh.Permissions{}, nil
		},
	}

	if h.faults.refusesPasswords {
		config.PasswordCallback = nil
	}

	config.AddHostKey(h.signer)

	for _, other := range h.others {
		config.AddHostKey(other)
	}

	if h.cert != nil {
		// The host offers any certificate. The client has to validate it.
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

	// OpenSSH answers keepalive@openssh.com with a failure, as it does for any request type that it
	// does not know.
	sessions.Go(func() { ssh.DiscardRequests(requests) })

	for channel := range channels {
		if channel.ChannelType() != "session" {
			h.recordUnknown("channel " + channel.ChannelType())

			_ = channel.Reject(ssh.Prohibited, "only session channels are allowed")

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
			h.recordUnknown("request " + request.Type)

			_ = request.Reply(false, nil)

			continue
		}

		_ = request.Reply(true, nil)

		go ssh.DiscardRequests(requests)

		code, sendsStatus := h.exec(conn, channel, string(request.Payload[4:]))
		if sendsStatus {
			status := binary.BigEndian.AppendUint32(nil, uint32(code))
			_, _ = channel.SendRequest("exit-status", false, status)
		}

		return
	}
}

var scriptLine = regexp.MustCompile(`(?s)^(?:sudo [^/]*)?/bin/bash -c '.*' hyperfleet-script '([a-z0-9-]+)' [0-9]+(?: beside)?$`)

// parseLabel returns the label of a script, and an empty string for any other command.
func parseLabel(line string) string {
	if found := scriptLine.FindStringSubmatch(line); found != nil {
		return found[1]
	}

	return ""
}

// exec runs a command and applies the fault of the script. It returns the exit code and whether to
// send it to the client.
func (h *Host) exec(conn net.Conn, channel ssh.Channel, line string) (code int, sendsStatus bool) {
	h.mu.Lock()
	slow, greeting := h.faults.delay, h.faults.greeting
	h.mu.Unlock()

	_, _ = io.WriteString(channel, greeting)

	label := parseLabel(line)
	if label == "" {
		return h.runCommand(channel, channel, line), true
	}

	h.recordStart(label)
	defer func() { h.recordEnd(label, code) }()

	if slow > 0 {
		time.Sleep(slow)
	}

	var input io.Reader = channel

	switch h.takeFault(label) {
	case Fail:
		_, _ = io.Copy(io.Discard, channel)
		_, _ = io.WriteString(channel.Stderr(), "machost: "+label+": injected failure\n")

		return 1, true
	case Hang:
		input = h.newEndlessScript(channel)
	case Cut:
		input = &halfReader{source: channel, onHalf: func() { _ = conn.Close() }}
		_ = h.runCommand(input, channel, line)

		return -1, false
	case Reboot:
		input = &halfReader{source: channel, onHalf: func() { go h.restartAndRecord() }}
		_ = h.runCommand(input, channel, line)

		return -1, false
	case CutLate:
		code = h.runCommand(channel, channel, line)
		_ = conn.Close()

		return code, false
	}

	return h.runCommand(input, channel, line), true
}

// newEndlessScript discards the script that the client sends and returns a script that never ends.
func (h *Host) newEndlessScript(channel ssh.Channel) io.Reader {
	go func() { _, _ = io.Copy(io.Discard, channel) }()

	return strings.NewReader("while :; do /bin/sleep 1; done\n")
}

// halfReader returns half of the data of its first read. The next read calls onHalf and returns
// io.EOF.
type halfReader struct {
	source io.Reader
	onHalf func()
	done   bool
}

// Read implements io.Reader.
func (h *halfReader) Read(p []byte) (int, error) {
	if h.done {
		h.onHalf()

		return 0, io.EOF
	}

	h.done = true
	n, err := h.source.Read(p)

	return n / 2, err
}

func (h *Host) recordStart(label string) {
	h.mu.Lock()
	h.running[label]++
	h.mu.Unlock()

	if h.options.Watch != nil {
		h.options.Watch(Run{Label: label})
	}
}

func (h *Host) recordEnd(label string, code int) {
	run := Run{Label: label, Ended: true, Code: code}

	h.mu.Lock()
	h.running[label]--
	h.runs = append(h.runs, run)
	h.mu.Unlock()

	if h.options.Watch != nil {
		h.options.Watch(run)
	}
}

// runCommand runs a command and returns its exit code. The command continues when the connection is
// closed. OpenSSH also ends only commands that have a terminal.
func (h *Host) runCommand(input io.Reader, channel ssh.Channel, line string) int {
	if h.box == nil {
		return h.runLight(input, channel, line)
	}

	argv := h.box.buildArgv(line)
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // the command outlives its connection

	// These writers never fail, so that a command continues when the client no longer reads the
	// output.
	cmd.Stdout, cmd.Stderr = lossyWriter{channel}, lossyWriter{channel.Stderr()}

	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}

	if err != nil {
		h.recordUnknown("start command: " + err.Error())

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

// lossyWriter discards write errors.
type lossyWriter struct{ writer io.Writer }

// Write writes p and always reports success.
func (d lossyWriter) Write(p []byte) (int, error) {
	_, _ = d.writer.Write(p)

	return len(p), nil
}
