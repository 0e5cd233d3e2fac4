// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package external_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/external"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/providerpb"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// All clusters share the queue of claims, so the events of one program are limited. Those that cannot be names of claims
// are ignored.
func TestWakeEventsAreLimited(t *testing.T) {
	t.Parallel()

	const many = 100000

	address := newSocket(t)
	serveFake(t, address, &fake{
		check: newInfo,
		connect: func(stream grpc.ServerStreamingServer[providerpb.Event]) error {
			err := stream.Send(&providerpb.Event{Event: &providerpb.Event_Connected{
				Connected: &providerpb.Connected{Session: "s", Protocol: providerpb.ProtocolVersion},
			}})

			long := hypervisor.Owner{Namespace: "ci", Name: strings.Repeat("x", 1000)}
			for i := 0; err == nil && i < many; i++ {
				owner := hypervisor.Owner{Namespace: "ci", Name: strconv.Itoa(i)}
				if i == 0 {
					owner = long
				}

				err = stream.Send(&providerpb.Event{Event: &providerpb.Event_Wake{Wake: providerpb.NewOwner(owner)}})
			}

			<-stream.Context().Done()

			return err
		},
	})

	var woken, tooLong atomic.Int32

	p := connect(t, address, hypervisor.Options{Wake: func(owner hypervisor.Owner) {
		woken.Add(1)

		if len(owner.Name) > 253 {
			tooLong.Add(1)
		}
	}})

	if _, err := p.Check(t.Context()); err != nil {
		t.Fatal(err)
	}

	timing.WaitUntil(t, "the first events", func() bool { return woken.Load() >= 500 })

	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if n := woken.Load(); n > 5000 {
			t.Fatalf("%d owners were woken within seconds", n)
		}
	}

	if tooLong.Load() > 0 {
		t.Error("an owner was woken whose name no claim can have")
	}

	// The other calls work meanwhile.
	if _, err := p.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// A status of another kind than the program's own errors has a text, too.
func TestTextsOfStatusesAreLimited(t *testing.T) {
	t.Parallel()

	address := newSocket(t)
	program := &fake{}
	serveFake(t, address, program)

	p := connect(t, address, hypervisor.Options{})

	for _, code := range []codes.Code{codes.Unknown, codes.PermissionDenied, codes.NotFound, codes.Internal, codes.Unavailable} {
		program.check = func(context.Context) (*providerpb.Info, error) {
			return nil, status.Error(code, "a\x1b[31m\u009b31m\u202eb"+strings.Repeat("x", 5000))
		}

		_, err := p.Check(t.Context())
		if err == nil || len(err.Error()) > 1400 || strings.ContainsAny(err.Error(), "\x1b\u009b\u202e") {
			t.Errorf("%s: the text is not limited: %.100q", code, err)
		}
	}
}

func TestNamesAndAddressesAreChecked(t *testing.T) {
	t.Parallel()

	address := newSocket(t)
	owner := hypervisor.Owner{Namespace: "ci", Name: "a", UID: "u"}
	own := providerpb.NewOwner(owner)
	program := &fake{}
	serveFake(t, address, program)

	p := connect(t, address, hypervisor.Options{})
	get := func(change func(*providerpb.Machine)) error {
		m := &providerpb.Machine{Id: 100, Owner: own, State: "Running", Mac: "02:00:00:00:00:01", Ip: "fd00::1"}
		change(m)

		program.get = func(*providerpb.MachineRef) (*providerpb.Machine, error) { return m, nil }
		_, err := p.Get(t.Context(), hypervisor.MachineRef{ID: 100, Owner: owner})

		return err
	}
	reserve := func(addresses ...string) error {
		program.reserve = func(*providerpb.ReserveRequest) (*providerpb.Reservation, error) {
			return &providerpb.Reservation{Id: 100, Exists: true, Addresses: addresses}, nil
		}
		_, err := p.Reserve(t.Context(), hypervisor.MachineSpec{Owner: owner})

		return err
	}
	checkNode := func(node *providerpb.Node) error {
		program.check = func(context.Context) (*providerpb.Info, error) {
			return &providerpb.Info{Nodes: []*providerpb.Node{node}}, nil
		}
		_, err := p.Check(t.Context())

		return err
	}

	for name, err := range map[string]error{
		"IP":             get(func(m *providerpb.Machine) { m.Ip = "10.0.0.1;reboot" }),
		"MAC":            get(func(m *providerpb.Machine) { m.Mac = "\u009b31m" }),
		"machine's node": get(func(m *providerpb.Machine) { m.Node = "a\x1b[31m" }),
		"owner":          get(func(m *providerpb.Machine) { m.Owner = &providerpb.Owner{Uid: "u", Pool: strings.Repeat("x", 5000)} }),
		"node":           checkNode(&providerpb.Node{Name: "a\u202eb"}),
		"address":        reserve("10.0.0.1/24", "everything"),
		"many addresses": reserve(slices.Repeat([]string{"10.0.0.1/24"}, 17)...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkError(t, err, hypervisor.Unavailable, "ProviderAnswerInvalid")
		})
	}

	if err := errors.Join(reserve("10.0.0.1/24", "fd00::1/64"), get(func(*providerpb.Machine) {})); err != nil {
		t.Error(err)
	}
}

// One status has the texts of all nodes, and the API server accepts about a megabyte.
func TestTextsOfNodesAreLimitedTogether(t *testing.T) {
	t.Parallel()

	address := newSocket(t)
	program := &fake{check: func(context.Context) (*providerpb.Info, error) {
		out := &providerpb.Info{}
		for i := range 1000 {
			out.Nodes = append(out.Nodes, &providerpb.Node{
				Name: strconv.Itoa(i), OfflineReason: strings.Repeat("x", 2000),
				Exclusions: slices.Repeat([]string{strings.Repeat("x", 600)}, 16),
			})
		}

		return out, nil
	}}
	serveFake(t, address, program)

	info, err := connect(t, address, hypervisor.Options{}).Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	size := 0
	for _, node := range info.Nodes {
		size += max(len(node.OfflineReason), len(strings.Join(node.Exclusions, "; "))) // a condition has one of them
	}

	if size > 512<<10 {
		t.Errorf("the texts of the nodes have %d bytes", size)
	}
}

// WrapCall gets the error that the caller gets, so that metrics know timeouts.
func TestMetricsKnowTimeouts(t *testing.T) {
	t.Parallel()

	address := newSocket(t)
	serveFake(t, address, &fake{check: func(ctx context.Context) (*providerpb.Info, error) {
		<-ctx.Done()

		return nil, ctx.Err()
	}})

	var measured error

	p := connect(t, address, hypervisor.Options{WrapCall: func(_ context.Context, call hypervisor.Call, do func() error) error {
		err := do()
		if call.Operation == "Check" {
			measured = err
		}

		return err
	}})
	external.SetTimeout(p, time.Second)

	_, err := p.Check(t.Context())
	checkError(t, err, hypervisor.Unavailable, "ProviderTimeout")

	if !errors.Is(measured, context.DeadlineExceeded) {
		t.Errorf("want a timeout, got %v", measured)
	}
}

// The claims of all clusters share some workers. A program that answers each call just in time gets few of them.
func TestSlowProgramGetsFewCalls(t *testing.T) {
	t.Parallel()

	const (
		timeout = 4 * time.Second
		workers = 16
	)

	address := newSocket(t)
	owner := hypervisor.Owner{Namespace: "ci", Name: "a", UID: "u"}

	var running, most atomic.Int32

	serveFake(t, address, &fake{check: newInfo, get: func(*providerpb.MachineRef) (*providerpb.Machine, error) {
		for n, seen := running.Add(1), most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
		}
		defer running.Add(-1)

		time.Sleep(timeout * 5 / 8)

		return &providerpb.Machine{Id: 100, Owner: providerpb.NewOwner(owner), State: "Running"}, nil
	}})

	p := connect(t, address, hypervisor.Options{})
	external.SetTimeout(p, timeout)

	get := func() error {
		_, err := p.Get(t.Context(), hypervisor.MachineRef{ID: 100, Owner: owner})

		return err
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}

	var (
		all    sync.WaitGroup
		mu     sync.Mutex
		errs   []error
		passed int
	)

	for range workers {
		all.Go(func() {
			err := get()

			mu.Lock()
			defer mu.Unlock()

			if err == nil {
				passed++
			} else {
				errs = append(errs, err)
			}
		})
	}

	timing.WaitUntil(t, "some calls wait for the program", func() bool { return running.Load() > 0 })

	// The cluster's own status is not affected.
	if _, err := p.Check(t.Context()); err != nil {
		t.Error(err)
	}

	all.Wait()

	if most.Load() > 4 || passed == 0 || passed+len(errs) != workers {
		t.Fatalf("%d calls at the same time, %d passed, %d failed", most.Load(), passed, len(errs))
	}

	checkError(t, errs[0], hypervisor.Unavailable, "ProviderCircuitOpen", "calls are in progress")
}
