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
	"time"
)

// agentPort is the id of the agent's port in QMP events.
const agentPort = "qga0"

// The limits of a guest's response. Guests are untrusted.
const (
	maxAgentReply = 4 << 20
	// agentDelimiter precedes the response to guest-sync-delimited. It does not occur in JSON text.
	agentDelimiter = 0xff
)

// ErrNoAgent means that the guest has no agent or that the agent has not opened its port.
var ErrNoAgent = errors.New("QEMU guest agent is not running")

// agent is a connection to the guest agent.
type agent struct {
	conn net.Conn

	mu   sync.Mutex // one command at a time
	sync int64

	state sync.Mutex
	open  chan struct{} // closed while the agent's port is open
	isUp  bool
}

func newAgent(conn net.Conn) *agent { return &agent{conn: conn, open: make(chan struct{})} }

// setOpen records that the guest has opened or closed the port (QMP event VSERPORT_CHANGE).
func (a *agent) setOpen(isOpen bool) {
	a.state.Lock()
	defer a.state.Unlock()
	switch {
	case isOpen && !a.isUp:
		close(a.open)
	case !isOpen && a.isUp:
		a.open = make(chan struct{})
	}
	a.isUp = isOpen
}

func (a *agent) openChannel() <-chan struct{} {
	a.state.Lock()
	defer a.state.Unlock()
	return a.open
}

// call runs a command in the guest. It waits for the agent until ctx ends.
func (a *agent) call(ctx context.Context, command string) (json.RawMessage, error) {
	select {
	case <-a.openChannel():
	case <-ctx.Done():
		return nil, ErrNoAgent
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	deadline, _ := ctx.Deadline()
	if err := a.conn.SetDeadline(deadline); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = a.conn.SetDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-ended // otherwise the deadline would end the next call
		}
	}()
	a.sync++
	reader := bufio.NewReader(io.LimitReader(a.conn, maxAgentReply))
	if err := a.synchronize(reader); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	if _, err := fmt.Fprintf(a.conn, "{\"execute\":%q}\n", command); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	return readAgentReply(reader)
}

// synchronize discards the responses of earlier commands whose callers have stopped waiting.
func (a *agent) synchronize(reader *bufio.Reader) error {
	// The delimiter also makes the agent discard an incomplete command.
	_, err := fmt.Fprintf(a.conn, "\xff{\"execute\":\"guest-sync-delimited\",\"arguments\":{\"id\":%d}}\n", a.sync)
	if err != nil {
		return err
	}
	return awaitSync(reader, a.sync)
}

// awaitSync reads until the response to the sync command with this id.
func awaitSync(reader *bufio.Reader, id int64) error {
	for {
		if _, err := reader.ReadSlice(agentDelimiter); errors.Is(err, bufio.ErrBufferFull) {
			continue
		} else if err != nil {
			return err
		}
		line, err := reader.ReadBytes('\n')
		if err != nil {
			return err
		}
		var reply struct {
			Return *int64 `json:"return"`
		}
		if json.Unmarshal(line, &reply) == nil && reply.Return != nil && *reply.Return == id {
			return nil
		}
	}
}

func readAgentReply(reader *bufio.Reader) (json.RawMessage, error) {
	line, err := reader.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	var reply struct {
		Return json.RawMessage `json:"return"`
		Error  *struct {
			Desc string `json:"desc"`
		} `json:"error"`
	}
	if err := json.Unmarshal(line, &reply); err != nil {
		return nil, fmt.Errorf("read guest agent's response: %w", err)
	}
	if reply.Error != nil {
		return nil, fmt.Errorf("guest agent: %s", reply.Error.Desc)
	}
	if reply.Return == nil {
		return nil, errors.New("read guest agent's response: it has neither return nor error")
	}
	return reply.Return, nil
}
