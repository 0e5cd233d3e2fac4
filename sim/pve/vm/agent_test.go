// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// serveGuestAgent acts as the guest agent at the other end of the port. It first writes left, the remains of
// earlier output, and then responds as qemu-ga does (docs/interop/qemu-ga-ref).
func serveGuestAgent(conn net.Conn, left string, answers map[string]string) {
	_, _ = io.WriteString(conn, left)
	reader := bufio.NewReader(conn)
	for {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			return
		}
		var c struct {
			Execute   string
			Arguments struct{ ID int64 }
		}
		if json.Unmarshal(bytes.TrimLeft(line, "\xff"), &c) != nil {
			continue
		}
		if c.Execute == "guest-sync-delimited" {
			_, _ = fmt.Fprintf(conn, "\xff{\"return\": %d}\n", c.Arguments.ID)
			continue
		}
		if answer := answers[c.Execute]; answer != "" {
			_, _ = io.WriteString(conn, answer+"\n")
		}
	}
}

// newConnections returns a connection like the one of QEMU.
func newConnections(t *testing.T) (local, remote net.Conn) {
	t.Helper()
	local, file, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	remote, err = net.FileConn(file)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = local.Close(), remote.Close() })
	return local, remote
}

func TestAgent(t *testing.T) {
	t.Parallel()
	const left = "{\"return\": {}}\n\xff{\"return\": 7}\n{\"ret"
	for _, tc := range []struct {
		name, command, answer, want, err string
		closed, wait                     bool
	}{
		{name: "answer", command: "guest-ping", answer: `{"return": {}}`, want: `{}`},
		{name: "refusal", command: "guest-x", answer: `{"error": {"class": "CommandNotFound", "desc": "not found"}}`, err: "not found"},
		{name: "rubbish", command: "guest-x", answer: `rubbish`, err: "invalid character"},
		{name: "neither", command: "guest-x", answer: `{}`, err: "neither return nor error"},
		{name: "silence", command: "guest-x", wait: true, err: ErrNoAgent.Error()},
		{name: "port not open", command: "guest-ping", closed: true, wait: true, err: ErrNoAgent.Error()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			local, remote := newConnections(t)
			go serveGuestAgent(remote, left, map[string]string{tc.command: tc.answer})
			a := newAgent(local)
			a.setOpen(true)
			if tc.closed {
				a.setOpen(false)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if tc.wait {
				ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
			}
			got, err := a.call(ctx, tc.command)
			if string(got) != tc.want || tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("%s %v, want %s %s", got, err, tc.want, tc.err)
			}
		})
	}
}

// TestAgentAgain cancels one command and receives the response of the next one.
func TestAgentAgain(t *testing.T) {
	t.Parallel()
	local, remote := newConnections(t)
	go serveGuestAgent(remote, "", map[string]string{"guest-ping": `{"return": {}}`})
	a := newAgent(local)
	a.setOpen(true)
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := a.call(short, "guest-silent"); !errors.Is(err, ErrNoAgent) {
		t.Errorf("silence: %v", err)
	}
	if got, err := a.call(t.Context(), "guest-ping"); err != nil || string(got) != "{}" {
		t.Errorf("ping: %s %v", got, err)
	}
}

// FuzzAgentReply reads the output of a malicious guest on its agent's port.
func FuzzAgentReply(f *testing.F) {
	for _, seed := range []string{
		"\xff{\"return\": 1}\n{\"return\": []}\n", "\xff\xff{\"return\": 1}\n{\"error\": {\"desc\": \"x\"}}\n",
		"\xff{\"return\": 2}\n", "{\"return\": 1}\n", "\xff{\"return\": 1}\nnull\n", strings.Repeat("x", 9000) + "\xff{\"return\":1}\n{}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		reader := bufio.NewReader(bytes.NewReader(data))
		if awaitSync(reader, 1) != nil {
			return
		}
		if !bytes.Contains(data, []byte{agentDelimiter}) {
			t.Error("in step without a delimiter")
		}
		got, err := readAgentReply(reader)
		if (err == nil) != (got != nil) || err == nil && !json.Valid(got) {
			t.Errorf("%q %v", got, err)
		}
	})
}

// TestQMPEnds checks that a waiting call and later calls fail when QEMU has ended.
func TestQMPEnds(t *testing.T) {
	t.Parallel()
	local, remote := newConnections(t)
	q := newQMP(local, func(string, json.RawMessage) {})
	done := make(chan struct{})
	go func() { defer close(done); q.run() }()
	go func() {
		_, _ = bufio.NewReader(remote).ReadString('\n')
		_ = remote.Close()
	}()
	if err := q.call(t.Context(), "quit", nil); !errors.Is(err, errClosed) {
		t.Errorf("cut off: %v", err)
	}
	<-done
	if err := q.call(t.Context(), "quit", nil); !errors.Is(err, errClosed) {
		t.Errorf("after the end: %v", err)
	}
}
