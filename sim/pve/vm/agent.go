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

// Limits of what a guest may answer: it is not trusted.
const (
	maxAgentReply = 4 << 20
	// agentDelimiter precedes the reply to guest-sync-delimited; it is in no
	// JSON text.
	agentDelimiter = 0xff
)

// ErrNoAgent is a guest in which no agent has opened its port, or that has
// none.
var ErrNoAgent = errors.New("QEMU guest agent is not running")

// agent talks to the guest agent.
type agent struct {
	conn net.Conn

	mu   sync.Mutex // one command at a time
	sync int64

	state sync.Mutex
	open  chan struct{} // closed while the guest has the port open
	isUp  bool
}

func newAgent(conn net.Conn) *agent { return &agent{conn: conn, open: make(chan struct{})} }

// opened follows the port (QMP event VSERPORT_CHANGE).
func (a *agent) opened(up bool) {
	a.state.Lock()
	defer a.state.Unlock()
	switch {
	case up && !a.isUp:
		close(a.open)
	case !up && a.isUp:
		a.open = make(chan struct{})
	}
	a.isUp = up
}

func (a *agent) ready() <-chan struct{} {
	a.state.Lock()
	defer a.state.Unlock()
	return a.open
}

// call runs a command in the guest. It waits for the agent until ctx ends.
func (a *agent) call(ctx context.Context, command string) (json.RawMessage, error) {
	select {
	case <-a.ready():
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
			<-ended // else it would end the next call
		}
	}()
	a.sync++
	in := bufio.NewReader(io.LimitReader(a.conn, maxAgentReply))
	if err := a.synchronise(in); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	if _, err := fmt.Fprintf(a.conn, "{\"execute\":%q}\n", command); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	return readAgentReply(in)
}

// synchronise drops what is left of commands given up before.
func (a *agent) synchronise(in *bufio.Reader) error {
	// The delimiter makes the agent drop half a command, too.
	_, err := fmt.Fprintf(a.conn, "\xff{\"execute\":\"guest-sync-delimited\",\"arguments\":{\"id\":%d}}\n", a.sync)
	if err != nil {
		return err
	}
	return awaitSync(in, a.sync)
}

// awaitSync reads up to the reply to the sync with this id.
func awaitSync(in *bufio.Reader, id int64) error {
	for {
		if _, err := in.ReadSlice(agentDelimiter); errors.Is(err, bufio.ErrBufferFull) {
			continue
		} else if err != nil {
			return err
		}
		line, err := in.ReadBytes('\n')
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

func readAgentReply(in *bufio.Reader) (json.RawMessage, error) {
	line, err := in.ReadBytes('\n')
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
		return nil, fmt.Errorf("read the guest agent's reply: %w", err)
	}
	if reply.Error != nil {
		return nil, fmt.Errorf("guest agent: %s", reply.Error.Desc)
	}
	if reply.Return == nil {
		return nil, errors.New("read the guest agent's reply: it has neither return nor error")
	}
	return reply.Return, nil
}
