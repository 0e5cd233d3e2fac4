// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/providerpb"
)

// maxSessions limits the open sessions.
const maxSessions = 64

// service is the gRPC service of a program.
type service struct {
	providerpb.UnimplementedHypervisorServer

	program Program

	mu       sync.Mutex
	sessions map[string]*session
}

func newService(program Program) *service {
	return &service{program: program, sessions: map[string]*session{}}
}

// session is the connection for one operator and one cluster.
type session struct {
	conn hypervisor.Connection
	// calls are the calls in progress.
	calls sync.WaitGroup

	mu sync.Mutex
	// wakes has the owners to wake, and notify tells that there are some.
	wakes   []hypervisor.Owner
	notify  chan struct{}
	claimed []hypervisor.ClaimedMachine
}

// wake queues an event. An owner is in the queue once.
func (s *session) wake(owner hypervisor.Owner) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if slices.Contains(s.wakes, owner) {
		return
	}

	s.wakes = append(s.wakes, owner)

	select {
	case s.notify <- struct{}{}:
	default:
	}
}

func (s *session) takeWakes() []hypervisor.Owner {
	s.mu.Lock()
	defer s.mu.Unlock()

	wakes := s.wakes
	s.wakes = nil

	return wakes
}

func (s *session) listClaimed(context.Context, string) ([]hypervisor.ClaimedMachine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.claimed, nil
}

// Connect opens a session and sends its events until the call ends.
func (s *service) Connect(request *providerpb.ConnectRequest, stream grpc.ServerStreamingServer[providerpb.Event]) error {
	if request.GetProtocol() != providerpb.ProtocolVersion {
		return providerpb.NewStatus(hypervisor.Errorf(hypervisor.Rejected, providerpb.ReasonVersionMismatch,
			"connect operator: it speaks version %d of the protocol, and provider %s %s version %d: install versions that fit together",
			request.GetProtocol(), s.program.Name, s.program.Version, providerpb.ProtocolVersion))
	}

	current := &session{notify: make(chan struct{}, 1)}

	conn, err := s.program.New(request.ToConfig(), hypervisor.Options{
		OperatorUID: request.GetOperatorUid(), Wake: current.wake, ListClaimed: current.listClaimed,
	})
	if err != nil {
		return providerpb.NewStatus(err)
	}
	defer conn.Close()

	current.conn = conn

	id := rand.Text()
	if !s.add(id, current) {
		return providerpb.NewStatus(hypervisor.Errorf(hypervisor.Busy, "TooManySessions",
			"connect operator: %d sessions are open: stop operators that you do not need", maxSessions))
	}

	defer current.calls.Wait()
	defer s.remove(id)

	err = stream.Send(&providerpb.Event{Event: &providerpb.Event_Connected{Connected: &providerpb.Connected{
		Session: id, Protocol: providerpb.ProtocolVersion, Program: s.program.Name, Version: s.program.Version,
		Capabilities: listCapabilities(conn),
	}}})

	for err == nil {
		select {
		case <-stream.Context().Done():
			return nil
		case <-current.notify:
		}

		for _, owner := range current.takeWakes() {
			if err == nil {
				err = stream.Send(&providerpb.Event{Event: &providerpb.Event_Wake{Wake: providerpb.NewOwner(owner)}})
			}
		}
	}

	return err
}

func listCapabilities(provider hypervisor.Provider) []string {
	var out []string

	if _, ok := hypervisor.Find[hypervisor.ConsoleReader](provider); ok {
		out = append(out, providerpb.CapabilityConsole)
	}

	if _, ok := hypervisor.Find[hypervisor.Terminal](provider); ok {
		out = append(out, providerpb.CapabilityTerminal)
	}

	if _, ok := hypervisor.Find[hypervisor.Executor](provider); ok {
		out = append(out, providerpb.CapabilityCommands)
	}

	return out
}

// add adds a session, and returns false if there are too many.
func (s *service) add(id string, current *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	if len(s.sessions) >= maxSessions {
		return false
	}

	s.sessions[id] = current

	return true
}

func (s *service) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	delete(s.sessions, id)
}

// enter returns the session of a call. The caller calls leave when the call has ended.
func (s *service) enter(ctx context.Context) (current *session, leave func(), err error) {
	var id string
	if values := metadata.ValueFromIncomingContext(ctx, providerpb.SessionKey); len(values) == 1 {
		id = values[0]
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	current, ok := s.sessions[id]
	if !ok {
		return nil, nil, providerpb.NewStatus(hypervisor.Errorf(hypervisor.Rejected, providerpb.ReasonSessionUnknown,
			"find session: the program does not know it: call Connect first"))
	}

	current.calls.Add(1)

	return current, current.calls.Done, nil
}

// serve runs one call on the connection of its session, and returns its errors as statuses.
func serve[T any](ctx context.Context, s *service, do func(*session) (T, error)) (T, error) {
	var none T

	current, leave, err := s.enter(ctx)
	if err != nil {
		return none, err
	}
	defer leave()

	out, err := do(current)
	if err != nil {
		return none, providerpb.NewStatus(err)
	}

	return out, nil
}
