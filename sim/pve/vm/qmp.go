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

// errClosed means that QEMU has closed the control socket of the call.
var errClosed = errors.New("QEMU has closed its control socket")

// qmp is a QMP session. Each line is one JSON object. Responses have the ids of their calls, and
// events can occur between responses.
type qmp struct {
	conn    net.Conn
	onEvent func(event string, data json.RawMessage)

	mu      sync.Mutex
	lastID  int
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

// newQMP returns a session on the connection. The caller calls run once, which reads from the
// connection until it is closed.
func newQMP(conn net.Conn, onEvent func(string, json.RawMessage)) *qmp {
	return &qmp{conn: conn, onEvent: onEvent, waiting: map[int]chan<- qmpReply{}}
}

// run passes responses to their callers and events to onEvent until QEMU closes the socket.
func (q *qmp) run() {
	defer q.endSession()
	reader := json.NewDecoder(bufio.NewReader(q.conn))
	for {
		var r qmpReply
		if err := reader.Decode(&r); err != nil {
			if !errors.Is(err, io.EOF) {
				_ = q.conn.Close()
			}
			return
		}
		switch {
		case r.Event != "":
			q.onEvent(r.Event, r.Data)
		case r.Return != nil || r.Error != nil:
			q.deliver(r)
		default: // the greeting
		}
	}
}

func (q *qmp) deliver(r qmpReply) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ch := q.waiting[r.ID]; ch != nil {
		delete(q.waiting, r.ID)
		ch <- r // the channel has a buffer
	}
}

// endSession makes all waiting calls fail.
func (q *qmp) endSession() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, ch := range q.waiting {
		close(ch)
	}
	q.waiting = nil
}

// call runs a command and waits for its response.
func (q *qmp) call(ctx context.Context, command string, arguments map[string]any) error {
	reply := make(chan qmpReply, 1)
	q.mu.Lock()
	if q.waiting == nil {
		q.mu.Unlock()
		return fmt.Errorf("qmp %s: %w", command, errClosed)
	}
	q.lastID++
	id := q.lastID
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
	_ = q.conn.SetWriteDeadline(deadline) // if this call fails, the write fails too
	if _, err := q.conn.Write(append(line, '\n')); err != nil {
		q.cancelCall(id)
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
		q.cancelCall(id)
		return fmt.Errorf("qmp %s: %w", command, context.Cause(ctx))
	}
}

func (q *qmp) cancelCall(id int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiting, id)
}
