// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package external_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/external"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/providerpb"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/server"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// fake is a program that answers as a case wants.
type fake struct {
	providerpb.UnimplementedHypervisorServer

	connect func(grpc.ServerStreamingServer[providerpb.Event]) error
	check   func(context.Context) (*providerpb.Info, error)
	get     func(*providerpb.MachineRef) (*providerpb.Machine, error)
	reserve func(*providerpb.ReserveRequest) (*providerpb.Reservation, error)
}

func (f *fake) Connect(_ *providerpb.ConnectRequest, stream grpc.ServerStreamingServer[providerpb.Event]) error {
	if f.connect != nil {
		return f.connect(stream)
	}

	return openSession(stream, providerpb.ProtocolVersion)
}

func openSession(stream grpc.ServerStreamingServer[providerpb.Event], protocol int32) error {
	err := stream.Send(&providerpb.Event{Event: &providerpb.Event_Connected{
		Connected: &providerpb.Connected{Session: "s", Protocol: protocol, Program: "fake"},
	}})
	if err != nil {
		return err
	}

	<-stream.Context().Done()

	return nil
}

func (f *fake) Check(ctx context.Context, _ *providerpb.CheckRequest) (*providerpb.Info, error) {
	return f.check(ctx)
}

func (f *fake) Get(_ context.Context, ref *providerpb.MachineRef) (*providerpb.Machine, error) {
	return f.get(ref)
}

func (f *fake) Reserve(_ context.Context, r *providerpb.ReserveRequest) (*providerpb.Reservation, error) {
	return f.reserve(r)
}

// newSocket returns the address of a socket.
func newSocket(t *testing.T) string {
	t.Helper()

	return external.UnixScheme + filepath.Join(loopback.SocketFolder(t), "s")
}

// serveFake serves a program at the address until the function that it returns is called.
func serveFake(t *testing.T, address string, service providerpb.HypervisorServer) (stop func()) {
	t.Helper()

	listener, err := net.Listen("unix", strings.TrimPrefix(address, external.UnixScheme))
	if err != nil {
		t.Fatal(err)
	}

	s := grpc.NewServer()
	if service != nil {
		providerpb.RegisterHypervisorServer(s, service)
	}

	go s.Serve(listener)

	t.Cleanup(s.Stop)

	return s.Stop
}

func connect(t *testing.T, address string, options hypervisor.Options) hypervisor.Connection {
	t.Helper()

	options.OperatorUID = "operator"

	p, err := external.New(hypervisor.Config{Name: "c", Address: address, IDMin: 100, IDMax: 199}, options)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(p.Close)

	return p
}

// checkError checks the kind, the reason and parts of the text of an error.
func checkError(t *testing.T, err error, kind hypervisor.Kind, reason string, parts ...string) {
	t.Helper()

	found, ok := errors.AsType[*hypervisor.Error](err)
	if !ok || found.Kind != kind || found.Reason != reason {
		t.Fatalf("want kind %s and reason %s, got %#v", kind, reason, err)
	}

	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("want %q in %q", part, err)
		}
	}
}

func newInfo(context.Context) (*providerpb.Info, error) {
	return &providerpb.Info{Product: "fake", Nodes: []*providerpb.Node{{Name: "node-1", Online: true}}}, nil
}

// A program that is gone fails calls at once, and is found again when it is back. Owners whose machines were being
// changed are woken, because the events of that time are lost.
func TestProgramIsGoneAndReturns(t *testing.T) {
	t.Parallel()

	address := newSocket(t)

	var woken atomic.Int32

	p := connect(t, address, hypervisor.Options{Wake: func(hypervisor.Owner) { woken.Add(1) }})

	_, err := p.Check(t.Context())
	checkError(t, err, hypervisor.Unavailable, "ProviderUnavailable", address, "start the provider")

	program := &fake{check: newInfo}
	stop := serveFake(t, address, program)

	timing.WaitUntil(t, "the program is found", func() bool {
		info, err := p.Check(t.Context())

		return err == nil && info.Product == "fake"
	})

	// The program does not know Delete, and no event follows.
	if err := p.Delete(t.Context(), hypervisor.MachineRef{ID: 100}); err == nil {
		t.Fatal("want an error")
	}

	stop()
	timing.WaitUntil(t, "the end of the program is noticed", func() bool {
		_, err := p.Check(t.Context())

		return hypervisor.Is(err, hypervisor.Unavailable)
	})

	serveFake(t, address, program)
	timing.WaitUntil(t, "the owner is woken", func() bool { return woken.Load() > 0 })
}

func TestProgramSpeaksAnotherVersion(t *testing.T) {
	t.Parallel()

	for name, program := range map[string]providerpb.HypervisorServer{
		"another service": nil,
		"another version": &fake{connect: func(s grpc.ServerStreamingServer[providerpb.Event]) error { return openSession(s, 7) }},
		"refused": &fake{connect: func(grpc.ServerStreamingServer[providerpb.Event]) error {
			return providerpb.NewStatus(hypervisor.Errorf(hypervisor.Rejected, providerpb.ReasonVersionMismatch, "install versions that fit"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			address := newSocket(t)
			serveFake(t, address, program)

			_, err := connect(t, address, hypervisor.Options{}).Check(t.Context())
			checkError(t, err, hypervisor.Rejected, "ProviderVersionMismatch", "install versions that fit")
		})
	}
}

// A call to a program that hangs ends with its context, and one that writes has an unknown outcome.
func TestProgramHangs(t *testing.T) {
	t.Parallel()

	address := newSocket(t)
	serveFake(t, address, &fake{check: func(ctx context.Context) (*providerpb.Info, error) {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("the deadline does not reach the program")
		}

		<-ctx.Done()

		return nil, ctx.Err()
	}})

	p := connect(t, address, hypervisor.Options{})

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()

	_, err := p.Check(ctx)
	checkError(t, err, hypervisor.Unavailable, "ProviderTimeout", "did not answer in time")

	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("want %v, got %v", context.DeadlineExceeded, err)
	}

	canceled, cancelNow := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancelNow)

	if _, err = p.Check(canceled); !errors.Is(err, context.Canceled) || hypervisor.KindOf(err) != "" {
		t.Errorf("want %v, got %v", context.Canceled, err)
	}
}

// After a call that the program did not answer, calls fail at once for a while, so that they do not occupy the workers that
// other clusters need.
func TestCallsFailAtOnceAfterATimeout(t *testing.T) {
	t.Parallel()

	var calls atomic.Int32

	address := newSocket(t)
	serveFake(t, address, &fake{check: func(ctx context.Context) (*providerpb.Info, error) {
		calls.Add(1)
		<-ctx.Done()

		return nil, providerpb.NewStatus(ctx.Err()) // as package server does
	}})

	p := connect(t, address, hypervisor.Options{})
	external.SetTimeout(p, 500*time.Millisecond)

	_, err := p.Check(t.Context())
	checkError(t, err, hypervisor.Unavailable, "ProviderTimeout")

	for range 10 {
		_, err = p.Check(t.Context())
		checkError(t, err, hypervisor.Unavailable, "ProviderCircuitOpen", "look at its log")
	}

	if got := calls.Load(); got != 1 {
		t.Errorf("the program got %d calls, want one", got)
	}
}

// A program that accepts connections and sends nothing does not delay calls after the first ones.
func TestProgramIsSilent(t *testing.T) {
	t.Parallel()

	address := newSocket(t)
	serveFake(t, address, &fake{connect: func(s grpc.ServerStreamingServer[providerpb.Event]) error {
		<-s.Context().Done()

		return nil
	}})

	p := connect(t, address, hypervisor.Options{})

	_, err := p.Check(t.Context())
	checkError(t, err, hypervisor.Unavailable, "ProviderTimeout")

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()

	_, err = p.Check(ctx)
	checkError(t, err, hypervisor.Unavailable, "ProviderTimeout")

	if ctx.Err() != nil {
		t.Error("the second call waited, too")
	}
}

// A program that ends each session at once is not called again and again.
func TestProgramEndsItsSessions(t *testing.T) {
	t.Parallel()

	var sessions atomic.Int32

	address := newSocket(t)
	serveFake(t, address, &fake{check: newInfo, connect: func(s grpc.ServerStreamingServer[providerpb.Event]) error {
		sessions.Add(1)

		return s.Send(&providerpb.Event{Event: &providerpb.Event_Connected{
			Connected: &providerpb.Connected{Session: "s", Protocol: providerpb.ProtocolVersion},
		}})
	}})

	start := time.Now()
	p := connect(t, address, hypervisor.Options{})
	timing.WaitUntil(t, "the end of a session is reported", func() bool {
		_, err := p.Check(t.Context())

		return hypervisor.Is(err, hypervisor.Unavailable)
	})

	_, err := p.Check(t.Context())
	checkError(t, err, hypervisor.Unavailable, "ProviderUnavailable", "has ended the session")

	// The delays between sessions grow, so the fourth one is not opened earlier.
	timing.WaitUntil(t, "four sessions", func() bool { return sessions.Load() >= 4 })

	if took := time.Since(start); took < 600*time.Millisecond {
		t.Errorf("four sessions were opened within %s", took)
	}
}

func TestAnswersAreChecked(t *testing.T) {
	t.Parallel()

	address := newSocket(t)
	owner := hypervisor.Owner{Namespace: "ci", Name: "a", UID: "u"}
	program := &fake{}
	serveFake(t, address, program)

	p := connect(t, address, hypervisor.Options{})
	get := func(m *providerpb.Machine) error {
		program.get = func(*providerpb.MachineRef) (*providerpb.Machine, error) { return m, nil }
		_, err := p.Get(t.Context(), hypervisor.MachineRef{ID: 100, Owner: owner})

		return err
	}
	check := func(info *providerpb.Info) error {
		program.check = func(context.Context) (*providerpb.Info, error) { return info, nil }
		_, err := p.Check(t.Context())

		return err
	}
	reserve := func(id int64) error {
		program.reserve = func(*providerpb.ReserveRequest) (*providerpb.Reservation, error) {
			return &providerpb.Reservation{Id: id}, nil
		}
		_, err := p.Reserve(t.Context(), hypervisor.MachineSpec{Owner: owner})

		return err
	}
	own := providerpb.NewOwner(owner)

	for name, err := range map[string]error{
		"state":           get(&providerpb.Machine{Id: 100, Owner: own, State: "Flying"}),
		"another machine": get(&providerpb.Machine{Id: 101, Owner: own, State: "Running"}),
		"another owner":   get(&providerpb.Machine{Id: 100, State: "Running"}),
		"long name":       get(&providerpb.Machine{Id: 100, Owner: own, State: "Running", Node: strings.Repeat("x", 64)}),
		"same nodes":      check(&providerpb.Info{Nodes: []*providerpb.Node{{Name: "a"}, {Name: "a"}}}),
		"node no name":    check(&providerpb.Info{Nodes: []*providerpb.Node{{}}}),
		"negative": check(&providerpb.Info{Nodes: []*providerpb.Node{{Name: "a",
			Free: &providerpb.Resources{Memory: -1}}}}),
		"many nodes":     check(&providerpb.Info{Nodes: slices.Repeat([]*providerpb.Node{{Name: "a"}}, 1001)}),
		"too large":      check(&providerpb.Info{Product: strings.Repeat("x", providerpb.MaxMessage)}),
		"ID below range": reserve(99),
		"ID above range": reserve(200),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkError(t, err, hypervisor.Unavailable, "ProviderAnswerInvalid", "provider conform")
		})
	}

	if err := get(&providerpb.Machine{Id: 100, Owner: own, State: "Running"}); err != nil {
		t.Error(err)
	}

	if err := reserve(100); err != nil {
		t.Error(err)
	}

	program.check = func(context.Context) (*providerpb.Info, error) {
		return &providerpb.Info{Product: strings.Repeat("ä", 1000), Warnings: slices.Repeat([]string{"a\x1b[31mb"}, 100)}, nil
	}

	info, err := p.Check(t.Context())
	if err != nil || len(info.Product) > 1100 || len(info.Warnings) != 16 || strings.Contains(info.Warnings[0], "\x1b") {
		t.Errorf("texts are not limited: %d bytes, %d warnings (%v)", len(info.Product), len(info.Warnings), err)
	}
}

func TestErrorsOfTheProgram(t *testing.T) {
	t.Parallel()

	address := newSocket(t)
	program := &fake{}
	serveFake(t, address, program)

	p := connect(t, address, hypervisor.Options{})
	check := func(err error) error {
		program.check = func(context.Context) (*providerpb.Info, error) { return nil, providerpb.NewStatus(err) }
		_, err = p.Check(t.Context())

		return err
	}

	err := check(&hypervisor.Error{Kind: hypervisor.NoCapacity, Reason: "Full", Message: "add nodes", RetryAfter: time.Minute})
	checkError(t, err, hypervisor.NoCapacity, "Full", "add nodes")

	if found, _ := errors.AsType[*hypervisor.Error](err); found.RetryAfter != time.Minute {
		t.Errorf("got %s", found.RetryAfter)
	}

	// A condition with such a reason could not be written.
	checkError(t, check(hypervisor.Errorf(hypervisor.Rejected, "not a reason!", "fix it")), hypervisor.Rejected, "ProviderError", "fix it")
	checkError(t, check(hypervisor.Errorf("Odd", "Reason", "fix it")), hypervisor.Unavailable, "ProviderAnswerInvalid", `"Odd"`)

	if err := check(errors.New("plain")); err == nil || hypervisor.KindOf(err) != "" || !strings.Contains(err.Error(), "plain") {
		t.Errorf("want an error without a kind, got %v", err)
	}

	if err := check(hypervisor.Errorf(hypervisor.Busy, "Busy", "%s", strings.Repeat("x", 5000))); len(err.Error()) > 1100 {
		t.Errorf("the text has %d bytes", len(err.Error()))
	}
}

// A restarted program gets the machines that claims hold until it has reserved an ID.
func TestClaimedMachinesReachTheProgram(t *testing.T) {
	t.Parallel()

	address := newSocket(t)
	fails := true

	var got [][]hypervisor.ClaimedMachine

	serveFake(t, address, &fake{reserve: func(r *providerpb.ReserveRequest) (*providerpb.Reservation, error) {
		got = append(got, r.ToClaimed())

		if fails {
			return nil, providerpb.NewStatus(hypervisor.Errorf(hypervisor.NoCapacity, "Full", "add nodes"))
		}

		return &providerpb.Reservation{Id: 150}, nil
	}})

	claimed := []hypervisor.ClaimedMachine{{ID: 101}, {
		ID: 102, Node: "n1", OwnerUID: "uid", CPU: 2, Memory: 1 << 30, Devices: []hypervisor.Device{{Name: "gpu", Count: 1, GPU: true}},
	}}
	p := connect(t, address, hypervisor.Options{ListClaimed: func(context.Context, string) ([]hypervisor.ClaimedMachine, error) {
		return claimed, nil
	}})

	for i := range 3 {
		fails = i == 0
		_, _ = p.Reserve(t.Context(), hypervisor.MachineSpec{})
	}

	if diff := cmp.Diff([][]hypervisor.ClaimedMachine{claimed, claimed, nil}, got); diff != "" {
		t.Errorf("claimed machines (-want +got):\n%s", diff)
	}
}

// A write is refused before it reaches the program when WrapCall refuses it.
func TestRefusedWrite(t *testing.T) {
	t.Parallel()

	address := newSocket(t)
	serveFake(t, address, &fake{})

	errLost := errors.New("not the leader")
	p := connect(t, address, hypervisor.Options{WrapCall: func(_ context.Context, call hypervisor.Call, do func() error) error {
		if call.Write {
			return errLost
		}

		return do()
	}})

	if err := p.Delete(t.Context(), hypervisor.MachineRef{ID: 100}); !errors.Is(err, errLost) {
		t.Errorf("want %v, got %v", errLost, err)
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()

	for _, address := range []string{"", "unix://relative", "host", "https://host:1"} {
		_, err := external.New(hypervisor.Config{Name: "c", Address: address}, hypervisor.Options{OperatorUID: "o"})
		checkError(t, err, hypervisor.Rejected, "ProviderAddressInvalid", "HOST:PORT")
	}

	_, err := external.New(hypervisor.Config{Name: "c", Address: "127.0.0.1:1"}, hypervisor.Options{OperatorUID: "o"})
	checkError(t, err, hypervisor.Rejected, "ClientCertificateMissing", "credentials.clientCert")

	err = server.Run(t.Context(), server.Options{Address: "127.0.0.1:0"}, server.Program{})
	if err == nil || !strings.Contains(err.Error(), "set all three files") {
		t.Errorf("want an error about files, got %v", err)
	}
}
