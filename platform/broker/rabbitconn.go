// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// closeTimeout is how long a server may take to close a connection.
const closeTimeout = 2 * time.Second

// errBlocked means that the server does not read events because it lacks memory or disk space.
var errBlocked = errors.New(
	"RabbitMQ accepts no events because of an alarm: free memory or disk space on its nodes, or raise the limit")

// connection is a connection that can be closed without the help of the server. The deadlines of the library
// are not enough, because each heartbeat of the server extends them.
type connection struct {
	*amqp.Connection

	network *trackedConn

	mu sync.Mutex
	// blockedErr is why the server blocks the connection. It is nil if the server does not block it.
	blockedErr error
	// changed is closed when blockedErr changes.
	changed chan struct{}
}

func newConnection(conn *amqp.Connection, network *trackedConn) *connection {
	network.setOpen()

	c := &connection{Connection: conn, network: network, changed: make(chan struct{})}
	notifications := conn.NotifyBlocked(make(chan amqp.Blocking, 1))

	// The library closes the channel with the connection, and does not read while nobody receives from it.
	go func() {
		for n := range notifications {
			c.setBlocked(n)
		}
	}()

	return c
}

func (c *connection) setBlocked(n amqp.Blocking) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.blockedErr = nil
	if n.Active {
		c.blockedErr = fmt.Errorf("%w (%s)", errBlocked, n.Reason)
	}

	close(c.changed)
	c.changed = make(chan struct{})
}

// blocked returns why the server blocks the connection, or nil, and a channel that is closed when this changes.
func (c *connection) blocked() (changed <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.changed, c.blockedErr
}

// waitUntilUnblocked waits until the server does not block the connection. If ctx ends earlier, it returns why
// the server blocks it.
func (c *connection) waitUntilUnblocked(ctx context.Context) error {
	for {
		changed, err := c.blocked()
		if err == nil {
			return nil
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return err
		}
	}
}

// call runs calls on the connection, because the library has no timeouts. If they take longer than
// rabbitCallTimeout, or if ctx ends, it aborts the connection, which ends them.
func (c *connection) call(ctx context.Context, calls func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, rabbitCallTimeout, errNoAnswer)
	defer cancel()

	stop := context.AfterFunc(ctx, c.network.abort)

	err := calls()
	if isAborted := !stop(); isAborted && err != nil {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}

	return err
}

// rollBackMessage publishes a message in a transaction, which it rolls back.
func (c *connection) rollBackMessage(ctx context.Context, exchange, key string) error {
	channel, err := openChannel(c)
	if err != nil {
		return err
	}
	defer channel.Close() //nolint:errcheck // the channel is no longer needed

	if err := channel.Tx(); err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}

	if err := channel.PublishWithContext(ctx, exchange, key, mandatory, immediate, amqp.Publishing{}); err != nil {
		return fmt.Errorf("publish in a transaction: %w", err)
	}

	if err := channel.TxRollback(); err != nil {
		return fmt.Errorf("roll back a transaction: %w", err)
	}

	return nil
}

// close closes the connection. The server delivers its unacknowledged messages again.
func (c *connection) close() {
	defer time.AfterFunc(closeTimeout, c.network.abort).Stop()

	_ = c.Close()
}
