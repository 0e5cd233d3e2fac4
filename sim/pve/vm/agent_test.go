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

// qga is the far end of the agent's port: it answers as qemu-ga does
// (docs/interop/qemu-ga-ref), after what was left in the pipe.
func qga(conn net.Conn, left string, answers map[string]string) {
	_, _ = io.WriteString(conn, left)
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadBytes('\n')
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

// pair is a connection as QEMU has it.
func pair(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	ours, file, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err = net.FileConn(file)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	return ours, theirs
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
			ours, theirs := pair(t)
			go qga(theirs, left, map[string]string{tc.command: tc.answer})
			a := newAgent(ours)
			a.opened(true)
			if tc.closed {
				a.opened(false)
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

// TestAgentAgain gives up on one command and has the next one answered.
func TestAgentAgain(t *testing.T) {
	t.Parallel()
	ours, theirs := pair(t)
	go qga(theirs, "", map[string]string{"guest-ping": `{"return": {}}`})
	a := newAgent(ours)
	a.opened(true)
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := a.call(short, "guest-silent"); !errors.Is(err, ErrNoAgent) {
		t.Errorf("silence: %v", err)
	}
	if got, err := a.call(t.Context(), "guest-ping"); err != nil || string(got) != "{}" {
		t.Errorf("ping: %s %v", got, err)
	}
}

// FuzzAgentReply reads what a hostile guest may write to its agent's port.
func FuzzAgentReply(f *testing.F) {
	for _, seed := range []string{
		"\xff{\"return\": 1}\n{\"return\": []}\n", "\xff\xff{\"return\": 1}\n{\"error\": {\"desc\": \"x\"}}\n",
		"\xff{\"return\": 2}\n", "{\"return\": 1}\n", "\xff{\"return\": 1}\nnull\n", strings.Repeat("x", 9000) + "\xff{\"return\":1}\n{}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bufio.NewReader(bytes.NewReader(data))
		if awaitSync(in, 1) != nil {
			return
		}
		if !bytes.Contains(data, []byte{agentDelimiter}) {
			t.Error("in step without a delimiter")
		}
		got, err := readAgentReply(in)
		if (err == nil) != (got != nil) || err == nil && !json.Valid(got) {
			t.Errorf("%q %v", got, err)
		}
	})
}

// TestQMPEnds wakes a caller whose QEMU goes away, and refuses further ones.
func TestQMPEnds(t *testing.T) {
	t.Parallel()
	ours, theirs := pair(t)
	q := newQMP(ours, func(string, json.RawMessage) {})
	done := make(chan struct{})
	go func() { defer close(done); q.run() }()
	go func() {
		_, _ = bufio.NewReader(theirs).ReadString('\n')
		_ = theirs.Close()
	}()
	if err := q.call(t.Context(), "quit", nil); !errors.Is(err, errClosed) {
		t.Errorf("cut off: %v", err)
	}
	<-done
	if err := q.call(t.Context(), "quit", nil); !errors.Is(err, errClosed) {
		t.Errorf("after the end: %v", err)
	}
}
