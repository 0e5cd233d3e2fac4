// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

func rabbitAccess(conf platform.BrokerRabbit) access {
	return access{
		field: "broker.rabbitmq", url: conf.URL, urlFile: conf.URLFile,
		caFile: conf.CAFile, certFile: conf.CertFile, keyFile: conf.KeyFile,
	}
}

// rabbitLink is a connection that is made anew when it is lost.
type rabbitLink struct {
	access access
	// made hears of each connection; it may be nil.
	made func()

	mu      sync.Mutex
	conn    *amqp.Connection
	channel *rabbitPublisher
	ended   bool

	// live is conn, for who can't wait for mu.
	live atomic.Pointer[amqp.Connection]
}

// guarded gives the connection up when calls on it take too long, which ends them.
func (l *rabbitLink) guarded(calls func() error) error {
	var late atomic.Bool

	timer := time.AfterFunc(rabbitCallTimeout, func() {
		late.Store(true)

		if conn := l.live.Load(); conn != nil {
			_ = conn.CloseDeadline(time.Now().Add(time.Second))
		}
	})
	defer timer.Stop()

	err := calls()
	if err != nil && late.Load() {
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}

	return err
}

// connection gives the connection; mu is held.
func (l *rabbitLink) connection() (*amqp.Connection, error) {
	if l.ended {
		return nil, errClosed
	}

	if l.conn != nil && !l.conn.IsClosed() {
		return l.conn, nil
	}

	conn, err := l.dial()
	if err != nil {
		return nil, err
	}

	l.conn, l.channel = conn, nil
	l.live.Store(conn)

	if l.made != nil {
		l.made()
	}

	return conn, nil
}

// stands says whether the connection is there.
func (l *rabbitLink) stands() bool {
	conn := l.live.Load()

	return conn != nil && !conn.IsClosed()
}

// publisher gives the channel that all publish on, which confirms, once there is the
// exchange; without one, whether it works.
func (l *rabbitLink) publisher(exchange, kind string) (*rabbitPublisher, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.channel != nil && !l.channel.IsClosed() && (exchange == "" || l.channel.declared[exchange]) {
		return l.channel, nil
	}

	conn, err := l.connection()
	if err != nil {
		return nil, err
	}

	err = l.guarded(func() error {
		if l.channel == nil || l.channel.IsClosed() {
			l.channel = nil

			channel, err := openChannel(conn)
			if err != nil {
				return err
			}

			if err := channel.Confirm(false); err != nil {
				return fmt.Errorf("have RabbitMQ confirm: %w", err)
			}

			l.channel = watched(channel)
		}

		if exchange == "" {
			return nil
		}

		if err := ensureExchange(conn, exchange, kind); err != nil {
			return err
		}

		l.channel.declared[exchange] = true

		return nil
	})
	if err != nil {
		return nil, l.access.explain(err)
	}

	return l.channel, nil
}

// forget has the next publisher open a new channel.
func (l *rabbitLink) forget(channel *rabbitPublisher) {
	l.mu.Lock()
	if l.channel == channel {
		l.channel = nil
	}
	l.mu.Unlock()

	// Others that wait for their confirmation on it are told that there is none.
	_ = channel.Close()
}

// open gives a channel of its own.
func (l *rabbitLink) open() (*amqp.Channel, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	conn, err := l.connection()
	if err != nil {
		return nil, err
	}

	return openChannel(conn)
}

// bound sees that a queue is there and gets what the exchange is sent.
func (l *rabbitLink) bound(exchange, kind, key, queue string, arguments amqp.Table) error {
	l.mu.Lock()
	defer l.mu.Unlock()

	conn, err := l.connection()
	if err != nil {
		return err
	}

	if err := ensureExchange(conn, exchange, kind); err != nil {
		return err
	}

	err = ensure(conn, func(channel *amqp.Channel, passive bool) error {
		declare := channel.QueueDeclare
		if passive {
			declare = channel.QueueDeclarePassive
		}

		_, err := declare(queue, true, false, false, false, arguments)

		return err
	})
	if err != nil {
		return fmt.Errorf("declare queue %s of RabbitMQ: %w", queue, err)
	}

	channel, err := openChannel(conn)
	if err != nil {
		return err
	}
	defer channel.Close() //nolint:errcheck // it has done its work

	if err := channel.QueueBind(queue, key, exchange, false, nil); err != nil {
		return fmt.Errorf("bind queue %s of RabbitMQ: %w", queue, err)
	}

	return nil
}

func (l *rabbitLink) end() {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.ended = true
	if l.conn != nil {
		_ = l.conn.CloseDeadline(time.Now().Add(rabbitDialTimeout))
	}
}

func openChannel(conn *amqp.Connection) (*amqp.Channel, error) {
	channel, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open channel of RabbitMQ: %w", err)
	}

	return channel, nil
}

// ensure declares what is not there. What is there is taken whatever it is like, and a
// channel ends with a no.
func ensure(conn *amqp.Connection, declare func(channel *amqp.Channel, passive bool) error) error {
	for _, passive := range []bool{true, false} {
		channel, err := openChannel(conn)
		if err != nil {
			return err
		}

		err = declare(channel, passive)
		_ = channel.Close()

		if said, ok := errors.AsType[*amqp.Error](err); !passive || !ok || said.Code != amqp.NotFound {
			return err
		}
	}

	return nil
}

func ensureExchange(conn *amqp.Connection, exchange, kind string) error {
	err := ensure(conn, func(channel *amqp.Channel, passive bool) error {
		declare := channel.ExchangeDeclare
		if passive {
			declare = channel.ExchangeDeclarePassive
		}

		return declare(exchange, kind, true, false, false, false, nil)
	})
	if err != nil {
		return fmt.Errorf("declare exchange %s of RabbitMQ: %w", exchange, err)
	}

	return nil
}

// rabbitPublisher is a channel that says why the server closed it.
type rabbitPublisher struct {
	*amqp.Channel

	// declared are the exchanges that there are.
	declared map[string]bool
	closed   chan struct{}
	// why is there when closed is closed; nil if the server did not say.
	why error
}

func watched(channel *amqp.Channel) *rabbitPublisher {
	p := &rabbitPublisher{Channel: channel, declared: map[string]bool{}, closed: make(chan struct{})}
	told := channel.NotifyClose(make(chan *amqp.Error, 1))

	go func() {
		defer close(p.closed)

		if said := <-told; said != nil {
			p.why = said
		}
	}()

	return p
}

// reason adds why the server closed the channel to an error on it, if it did.
func (p *rabbitPublisher) reason(ctx context.Context, err error) error {
	if !p.IsClosed() {
		return err
	}

	select {
	case <-p.closed:
		if p.why != nil {
			return fmt.Errorf("%w: %w", err, p.why)
		}
	case <-ctx.Done():
	}

	return err
}
