// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// errClosed is a call on a control socket whose QEMU has gone.
var errClosed = errors.New("QEMU has closed its control socket")

// qmp is a QMP session: one JSON object per line, replies by id, events in
// between.
type qmp struct {
	conn    net.Conn
	onEvent func(event string, data json.RawMessage)

	mu      sync.Mutex
	next    int
	waiting map[int]chan<- qmpReply // nil once the session has ended
}

type qmpReply struct {
	ID     int             `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	Event string          `json:"event"`
	Data  json.RawMessage `json:"data"`
}

// newQMP reads from the connection until it ends; run must be called once.
func newQMP(conn net.Conn, onEvent func(string, json.RawMessage)) *qmp {
	return &qmp{conn: conn, onEvent: onEvent, waiting: map[int]chan<- qmpReply{}}
}

// run hands out what QEMU says until it has closed the socket.
func (q *qmp) run() {
	defer q.end()
	in := json.NewDecoder(bufio.NewReader(q.conn))
	for {
		var r qmpReply
		if err := in.Decode(&r); err != nil {
			if !errors.Is(err, io.EOF) {
				_ = q.conn.Close()
			}
			return
		}
		switch {
		case r.Event != "":
			q.onEvent(r.Event, r.Data)
		case r.Return != nil || r.Error != nil:
			q.answer(r)
		default: // the greeting
		}
	}
}

func (q *qmp) answer(r qmpReply) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ch := q.waiting[r.ID]; ch != nil {
		delete(q.waiting, r.ID)
		ch <- r // has room
	}
}

// end wakes all callers.
func (q *qmp) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, ch := range q.waiting {
		close(ch)
	}
	q.waiting = nil
}

// call runs a command and waits for its reply.
func (q *qmp) call(ctx context.Context, command string, arguments map[string]any) error {
	reply := make(chan qmpReply, 1)
	q.mu.Lock()
	if q.waiting == nil {
		q.mu.Unlock()
		return fmt.Errorf("qmp %s: %w", command, errClosed)
	}
	q.next++
	id := q.next
	q.waiting[id] = reply
	q.mu.Unlock()
	request := map[string]any{"execute": command, "id": id}
	if len(arguments) > 0 {
		request["arguments"] = arguments
	}
	line, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("qmp %s: %w", command, err)
	}
	deadline, _ := ctx.Deadline()
	_ = q.conn.SetWriteDeadline(deadline) // if that fails, so does the write
	if _, err := q.conn.Write(append(line, '\n')); err != nil {
		q.forget(id)
		return fmt.Errorf("qmp %s: %w", command, errors.Join(errClosed, err))
	}
	select {
	case r, ok := <-reply:
		switch {
		case !ok:
			return fmt.Errorf("qmp %s: %w", command, errClosed)
		case r.Error != nil:
			return fmt.Errorf("qmp %s: %s", command, r.Error.Desc)
		}
		return nil
	case <-ctx.Done():
		q.forget(id)
		return fmt.Errorf("qmp %s: %w", command, context.Cause(ctx))
	}
}

func (q *qmp) forget(id int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiting, id)
}
