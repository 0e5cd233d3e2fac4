// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

const (
	// connectTimeout limits one attempt to connect to a host.
	connectTimeout = 10 * time.Second
	// readTimeout limits a call that only reads, and writeTimeout a call that changes something. cloneTimeout
	// limits a full clone.
	readTimeout  = 10 * time.Second
	writeTimeout = time.Minute
	cloneTimeout = 2 * time.Hour
	// The delay between attempts to connect grows from minReconnectDelay to maxReconnectDelay.
	minReconnectDelay = time.Second
	maxReconnectDelay = 30 * time.Second
)

// host is one libvirt host. It is safe for concurrent use.
type host struct {
	provider *Provider
	config   hypervisor.Host
	endpoint endpoint
	// slots limits the concurrent calls, and cloneSlots the concurrent full clones.
	slots, cloneSlots chan struct{}

	startOnce sync.Once
	// tried is closed when the first attempt to connect has ended.
	tried chan struct{}

	// listMu is held while the domains are listed.
	listMu sync.Mutex
	// opening is held by readers while they take a console over, and while the connection to the host is closed.
	opening sync.RWMutex

	mu sync.Mutex
	// session is nil while the host is not connected. Then err says why.
	session   *session
	err       error
	inventory inventory
	// storage is the pool as it was read last.
	storage   storage
	templates map[hypervisor.TemplateRef]cachedTemplate
	addresses map[golibvirt.UUID]address

	// isReadingAddresses is true while the guest agents return addresses.
	isReadingAddresses atomic.Bool
}

// session is one connection to libvirtd.
type session struct {
	rpc  *golibvirt.Libvirt
	wire *wire
	// hasEvents is true if libvirtd reports changes of domains.
	hasEvents bool
	events    <-chan golibvirt.DomainEventLifecycleMsg
	facts     facts
	// hasListedVolumes is true once the volumes were read that show which machines were started. While they cannot be read,
	// poolErr says why. The lock of the host guards both.
	hasListedVolumes bool
	poolErr          error
}

func newHost(p *Provider, config hypervisor.Host) (*host, error) {
	parsed, err := parseURI(config.URI)
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", config.Name, err)
	}

	return &host{
		provider: p, config: config, endpoint: parsed, tried: make(chan struct{}),
		// Full clones, which take long, leave at least one slot to other calls.
		slots:      make(chan struct{}, max(p.config.CallsPerNode, 2)), //nolint:mnd // as above
		cloneSlots: make(chan struct{}, max(1, min(p.config.ClonesPerStorage, p.config.CallsPerNode-1))),
		templates:  map[hypervisor.TemplateRef]cachedTemplate{},
	}, nil
}

// start starts to keep the host connected until the provider is closed.
func (h *host) start() {
	h.startOnce.Do(func() { h.provider.goroutines.Go(h.keepConnected) })
}

// currentSession returns the session. It waits for the first attempt to connect. Later, it does not wait: while
// the host is not connected, the error is of kind Unavailable or Rejected.
func (h *host) currentSession(ctx context.Context) (*session, error) {
	h.start()

	select {
	case <-h.tried:
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to host %s: %w", h.config.Name, ctx.Err())
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	if h.session == nil {
		return nil, h.err
	}

	return h.session, nil
}

// keepConnected connects to the host, again and again, until the provider is closed.
func (h *host) keepConnected() {
	ctx, clk := h.provider.ctx, h.provider.clock
	delay := minReconnectDelay

	for ctx.Err() == nil {
		s, err := h.connect(ctx)
		if err == nil {
			delay = minReconnectDelay
			err = h.serve(ctx, s)
		}

		h.setDown(err)

		timer := clk.NewTimer(delay)
		select {
		case <-timer.C():
		case <-ctx.Done():
		}

		timer.Stop()

		delay = min(2*delay, maxReconnectDelay)
	}
}

func (h *host) setDown(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.session, h.err = nil, h.classify("connect to host "+h.config.Name, readCall, err)
	if !hypervisor.Is(h.err, hypervisor.Rejected) {
		h.err = &hypervisor.Error{
			Kind: hypervisor.Unavailable, Reason: "HostUnreachable", Message: "connect to host " + h.config.Name, Err: err,
		}
	}

	h.markTried()
}

func (h *host) markTried() {
	select {
	case <-h.tried:
	default:
		close(h.tried)
	}
}

// connect connects to libvirtd, opens the driver, subscribes to events, and reads the host's facts.
func (h *host) connect(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()

	conn, err := h.dial(ctx)
	if err != nil {
		return nil, err
	}

	// The library's calls have no context. They end when the connection is closed.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	s := &session{rpc: golibvirt.NewWithDialer(dialers.NewAlreadyConnected(conn)), wire: conn}

	err = s.rpc.ConnectToURI(golibvirt.ConnectURI(h.endpoint.driver))
	if err == nil {
		// The subscription ends with the connection alone: libvirtd 9.0 crashes if a client cancels it and
		// disconnects at the same time.
		s.events, err = s.rpc.LifecycleEvents(context.WithoutCancel(ctx))
		s.hasEvents = err == nil
	}

	if errors.Is(err, golibvirt.ErrUnsupported) {
		err = nil
	}

	if err == nil {
		s.facts, err = h.readFacts(s)
	}

	if err != nil {
		s.close()

		if ctx.Err() != nil {
			return nil, fmt.Errorf("libvirtd does not respond: %w", ctx.Err())
		}

		return nil, err
	}

	return s, nil
}

// serve lists the domains, publishes the session, and follows the events until the connection ends.
func (h *host) serve(ctx context.Context, s *session) error {
	defer func() {
		h.opening.Lock()
		defer h.opening.Unlock()

		s.close()
	}()

	if err := h.list(ctx, s); err != nil {
		return err
	}

	h.mu.Lock()
	h.session, h.err = s, nil
	h.markTried()
	h.mu.Unlock()

	ticker := h.provider.clock.NewTicker(h.provider.listInterval(s))
	defer ticker.Stop()

	for {
		select {
		case event, ok := <-s.events:
			if !ok {
				s.events = nil

				continue
			}

			h.applyEvent(event)
		case <-ticker.C():
			if err := h.list(ctx, s); err != nil {
				return err
			}

			h.askAddresses(ctx, s)
		case <-s.wire.closed:
			return errors.New("the connection has ended")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// close closes the connection, and reads the remaining events, for which the library's goroutine waits.
func (s *session) close() {
	_ = s.wire.Close()

	if s.events != nil {
		for range s.events {
		}
	}
}

// call makes one call to the host. If ctx ends, call returns at once, and the call runs on until its
// timeout. After the timeout, the connection is closed, because libvirtd does not respond.
func (h *host) call(ctx context.Context, op operation, do func(*golibvirt.Libvirt) error) error {
	s, err := h.currentSession(ctx)
	if err != nil {
		return err
	}

	return h.callSession(ctx, s, op, do)
}

func (h *host) callSession(ctx context.Context, s *session, op operation, do func(*golibvirt.Libvirt) error) error {
	action := op.name + " on host " + h.config.Name

	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}

	select {
	case h.slots <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", action, ctx.Err())
	}

	var err error

	result := make(chan error, 1)

	// The call ends at the latest when the connection is closed.
	go func() {
		defer func() { <-h.slots }()

		result <- h.provider.wrapCall(ctx, hypervisor.Call{Operation: op.name, Write: op.isWrite}, func() error {
			watchdog := time.AfterFunc(op.timeout, func() { _ = s.wire.Close() })
			defer watchdog.Stop()

			return do(s.rpc)
		})
	}()

	select {
	case err = <-result:
		err = h.classify(action, op.isWrite, err)
	case <-ctx.Done():
		err = fmt.Errorf("%s: %w", action, ctx.Err())
	}

	if op.isWrite && err != nil {
		h.invalidate()
	}

	return err
}

// operation is a kind of call.
type operation struct {
	name    string
	isWrite bool
	timeout time.Duration
}

func newRead(name string) operation { return operation{name: name, timeout: readTimeout} }

func newWrite(name string) operation {
	return operation{name: name, isWrite: true, timeout: writeTimeout}
}
