// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package external

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/providerpb"
)

const (
	// maxWaiting limits the owners of whose machines an operation is in progress.
	maxWaiting = 10000
	// maxEvent limits an event in bytes.
	maxEvent = 64 << 10
	// wakesPerSecond and wakeBurst limit the events that one program may send, because the queue of claims is
	// shared by all clusters. Further events wait in the program.
	wakesPerSecond = 100
	wakeBurst      = 1000
	// maxSlowCalls limits the calls for claims to a program that was slow within slowPeriod, because the
	// workers are shared by the claims of all clusters.
	maxSlowCalls = 4
	slowPeriod   = time.Minute
)

// sessions is the state of the connection to the program: there is a session, or the last attempt to open one
// has failed, or the first attempt after the end of a session is in progress. Calls wait only in the third
// state.
type sessions struct {
	mu           sync.Mutex
	id           string
	failure      error
	changed      chan struct{}
	capabilities []string
	pausedUntil  time.Time
	// slowUntil is when the program no longer counts as slow, and inProgress the number of calls for claims.
	slowUntil  time.Time
	inProgress int
	// hasReserved is true once a call of Reserve has succeeded in the session.
	hasReserved bool
	// waiting has the owners that expect a wake event. They are woken when a session opens, because the events of the
	// time without a session are lost.
	waiting map[hypervisor.Owner]bool
}

func (s *sessions) init() { s.changed, s.waiting = make(chan struct{}), map[hypervisor.Owner]bool{} }

// set changes the state, and wakes the calls that wait for it.
func (s *sessions) set(change func(*sessions)) {
	s.mu.Lock()
	defer s.mu.Unlock()

	change(s)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *sessions) get() (id string, failure error, changed <-chan struct{}) { //nolint:revive,staticcheck // a state
	s.mu.Lock()
	defer s.mu.Unlock()

	if time.Now().Before(s.pausedUntil) {
		return "", newHangError(), s.changed
	}

	return s.id, s.failure, s.changed
}

func newHangError() error {
	return hypervisor.Errorf(hypervisor.Unavailable, "ProviderCircuitOpen",
		"the provider did not answer a call within %s: look at its log, and restart it", callTimeout)
}

// admit returns an error if the program is slow and already has maxSlowCalls calls for claims. Otherwise the
// caller must call leave at the end of its call.
func (s *sessions) admit() (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.inProgress >= maxSlowCalls && time.Now().Before(s.slowUntil) {
		return nil, hypervisor.Errorf(hypervisor.Unavailable, "ProviderCircuitOpen",
			"the provider is slow, and %d calls are in progress: look at its log", s.inProgress)
	}

	s.inProgress++

	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()

		s.inProgress--
	}, nil
}

func (s *sessions) setSlow() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.slowUntil = time.Now().Add(slowPeriod)
}

func (s *sessions) pause(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.pausedUntil = until
}

func (s *sessions) hasCapability(capability string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Contains(s.capabilities, capability)
}

// expectWake records that the owner waits for a wake event. If the session ends first, the next session wakes the owner,
// because the event may be lost.
func (s *sessions) expectWake(owner hypervisor.Owner) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if len(s.waiting) < maxWaiting {
		s.waiting[owner] = true
	}
}

// stopExpectingWake records that the owner no longer waits for a wake event.
func (s *sessions) stopExpectingWake(owner hypervisor.Owner) {
	s.mu.Lock()
	defer s.mu.Unlock()

	delete(s.waiting, owner)
}

// needsClaimed reports whether no call of Reserve has succeeded in the session.
func (s *sessions) needsClaimed(session string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.id == session && !s.hasReserved
}

func (s *sessions) setReserved(session string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.hasReserved = s.hasReserved || s.id == session
}

// session returns the ID of the open session. It waits while the first attempt to open one is in progress.
func (p *Provider) session(ctx context.Context) (string, error) {
	p.start.Do(func() { p.goroutines.Go(p.keepSession) })

	for {
		id, failure, changed := p.sessions.get()
		if failure != nil || id != "" {
			return id, failure
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return "", p.decodeError(ctx, hypervisor.Call{Operation: "Connect"}, ctx.Err())
		case <-p.ctx.Done():
			return "", errClosed
		}
	}
}

var errClosed = errors.New("call provider: the connection is closed")

func withSession(ctx context.Context, session string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, providerpb.SessionKey, session)
}

// keepSession opens sessions until the provider is closed.
func (p *Provider) keepSession() {
	delay := minRetryDelay

	for p.ctx.Err() == nil {
		start := time.Now()
		hasOpened, err := p.runSession()

		// After a long session, the next attempt decides whether calls fail. A program that ends each session at once has
		// failed.
		if hasOpened && time.Since(start) > maxRetryDelay {
			err, delay = nil, minRetryDelay
		}

		p.sessions.set(func(s *sessions) { s.id, s.failure = "", err })

		select {
		case <-p.ctx.Done():
		case <-time.After(delay):
		}

		delay = min(2*delay, maxRetryDelay)
	}
}

// runSession opens a session and reads its events until it ends. hasOpened is false if the program has opened none.
func (p *Provider) runSession() (hasOpened bool, err error) {
	ctx, cancel := context.WithCancelCause(p.ctx)
	defer cancel(nil)

	timer := time.AfterFunc(connectTimeout, func() { cancel(context.DeadlineExceeded) })
	defer timer.Stop()

	connect := hypervisor.Call{Operation: "Connect"}

	var connected *providerpb.Connected

	var stream providerpb.Hypervisor_ConnectClient

	err = p.wrapCall(ctx, connect, func() (err error) {
		stream, err = p.client.Connect(ctx, providerpb.NewConnectRequest(&p.config, p.options.OperatorUID),
			grpc.MaxCallRecvMsgSize(maxEvent))
		if err != nil {
			return err
		}

		first, err := stream.Recv()
		connected = first.GetConnected()

		return err
	})

	if err == nil {
		err = checkConnected(connected)
	}

	if err != nil {
		return false, err
	}

	if !timer.Stop() {
		return false, p.decodeError(ctx, connect, context.DeadlineExceeded)
	}

	p.startSession(connected)

	return true, p.readEvents(ctx, stream)
}

// readEvents wakes the owners of events until the session ends, and returns its end as an error.
func (p *Provider) readEvents(ctx context.Context, stream providerpb.Hypervisor_ConnectClient) error {
	for {
		event, err := stream.Recv()
		if err != nil {
			return hypervisor.Errorf(hypervisor.Unavailable, "ProviderUnavailable",
				"call provider %s: it has ended the session: look at its log, and start the provider if it does not run", p.config.Address)
		}

		wake := event.GetWake()
		if wake == nil || !isValidOwner(wake.ToOwner()) {
			continue
		}

		if p.wakes.Wait(ctx) == nil {
			owner := wake.ToOwner()
			p.sessions.stopExpectingWake(owner)
			p.options.Wake(owner)
		}
	}
}

func (p *Provider) startSession(connected *providerpb.Connected) {
	var missed []hypervisor.Owner

	p.sessions.set(func(s *sessions) {
		s.id, s.failure, s.hasReserved, s.pausedUntil = connected.GetSession(), nil, false, time.Time{}
		s.capabilities = connected.GetCapabilities()

		for owner := range s.waiting {
			missed = append(missed, owner)
		}

		clear(s.waiting)
	})

	for _, owner := range missed {
		p.options.Wake(owner)
	}
}

func checkConnected(connected *providerpb.Connected) error {
	switch {
	case connected.GetSession() == "":
		return newAnswerError("Connect", "its first event has no session")
	case connected.GetProtocol() != providerpb.ProtocolVersion:
		return newVersionError(fmt.Sprintf("it speaks version %d", connected.GetProtocol()))
	default:
		return nil
	}
}

func newVersionError(what string) error {
	return hypervisor.Errorf(hypervisor.Rejected, providerpb.ReasonVersionMismatch,
		"connect to provider: %s of the protocol, and this operator version %d: install versions that fit together",
		what, providerpb.ProtocolVersion)
}

// decodeError returns the error of a call as a hypervisor.Error, with the kind that the program gave it.
func (p *Provider) decodeError(ctx context.Context, call hypervisor.Call, err error) error {
	code := status.Code(err)

	// An error without a kind that says that the time is over is the same as no answer.
	detail := providerpb.FindError(err)
	if detail != nil && (detail.GetKind() != "" || code != codes.DeadlineExceeded && code != codes.Canceled) {
		return p.decodeDetail(call, detail)
	}

	// A write that was under way may have had its effect.
	kind := hypervisor.Unavailable
	if call.Write {
		kind = hypervisor.UnknownOutcome
	}

	switch {
	case errors.Is(context.Cause(ctx), context.Canceled):
		return fmt.Errorf("call %s of provider: %w", call.Operation, context.Canceled)
	case ctx.Err() != nil || code == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded):
		return &hypervisor.Error{
			Kind: kind, Reason: "ProviderTimeout", Err: context.DeadlineExceeded,
			Message: fmt.Sprintf("call %s of provider %s: it did not answer in time: look at its log", call.Operation, p.config.Address),
		}
	case code == codes.Unimplemented:
		return newVersionError("it does not know the call " + call.Operation)
	case code == codes.ResourceExhausted || code == codes.Internal:
		// gRPC reports answers that are too large, or that are no messages of the protocol.
		return newAnswerError(call.Operation, status.Convert(err).Message())
	case code == codes.Unavailable:
		return &hypervisor.Error{
			Kind: kind, Reason: "ProviderUnavailable",
			Message: fmt.Sprintf("call %s of provider %s: start the provider, and compare the addresses and certificates: %s",
				call.Operation, p.config.Address, limitText(status.Convert(err).Message())),
		}
	default:
		if grpcStatus, hasStatus := status.FromError(err); hasStatus {
			return fmt.Errorf("call %s of provider: %s: %s", call.Operation, code, limitText(grpcStatus.Message()))
		}

		return fmt.Errorf("call %s of provider: %w", call.Operation, err)
	}
}

func (p *Provider) decodeDetail(call hypervisor.Call, detail *providerpb.Error) error {
	if detail.GetReason() == providerpb.ReasonSessionUnknown {
		return hypervisor.Errorf(hypervisor.Unavailable, "ProviderUnavailable",
			"call %s of provider %s: it was restarted, and the operator connects again", call.Operation, p.config.Address)
	}

	message := limitText(detail.GetMessage())

	if detail.GetKind() == "" {
		return fmt.Errorf("call %s of provider: %s", call.Operation, message)
	}

	if !providerpb.IsKind(detail.GetKind()) {
		return newAnswerError(call.Operation,
			fmt.Sprintf("its error has the kind %q, which does not exist", limitText(detail.GetKind())))
	}

	reason := detail.GetReason()
	if !isReason(reason) {
		reason = "ProviderError"
	}

	return &hypervisor.Error{
		Kind: hypervisor.Kind(detail.GetKind()), Reason: reason, Message: message,
		RetryAfter: min(max(0, detail.GetRetryAfter().AsDuration()), maxRetryAfter),
	}
}
