// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conform

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance/runner"
	"github.com/hyperfleet/hyperfleet/hypervisor/external"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/providerpb"
)

// callTimeout limits a call of the service for cases, including the time until a restarted program listens.
const callTimeout = time.Minute

// Options of Run.
type Options struct {
	// Address and TLS of the program, as in hypervisor.Config.
	Address string
	TLS     *tls.Config
	// Restart kills the program and starts it again. If it is nil, the cases for that are left out.
	Restart func()
	// Runner has the options of package runner.
	Runner runner.Options
}

// Run runs all cases and returns their results. An error means that no case could run.
func Run(ctx context.Context, options Options) ([]runner.Result, error) {
	conn, err := external.Dial(options.Address, options.TLS)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // nothing was written

	s := &suite{options: options, client: providerpb.NewConformanceClient(conn)}
	if err := s.probe(ctx); err != nil {
		return nil, err
	}

	return runner.Run(ctx, options.Runner, func(t *runner.T) {
		t.Run("cases", func(t *runner.T) { conformance.Run(t, s.newHarness) })
		t.Run("the operator crashes", func(t *runner.T) { conformance.RunCrashesAtEveryCall(t, s.newHarness) })

		if options.Restart != nil {
			t.Run("the program crashes", func(t *runner.T) { conformance.RunProgramCrashes(t, s.newHarness) })
		}
	})
}

type suite struct {
	options Options
	client  providerpb.ConformanceClient
}

// probe returns an error if the program does not serve the cases.
func (s *suite) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	_, err := s.client.NewCase(ctx, &providerpb.NewCaseRequest{})

	switch {
	case status.Code(err) == codes.Unimplemented:
		return fmt.Errorf("connect to %s: the program does not serve the service hyperfleet.provider.v1.Conformance: "+
			"start it as docs/guides/write-a-provider.md describes", s.options.Address)
	case err != nil:
		return fmt.Errorf("connect to %s: %w", s.options.Address, err)
	default:
		return nil
	}
}

func (s *suite) newHarness(t *runner.T) conformance.Harness {
	var prepared *providerpb.Case

	s.call(t, "prepare case", func(ctx context.Context) (err error) {
		prepared, err = s.client.NewCase(ctx, &providerpb.NewCaseRequest{}, grpc.WaitForReady(true))

		return err
	})

	ref := &providerpb.CaseRef{CaseId: prepared.GetCaseId()}
	machine := func(id int) *providerpb.CaseMachine {
		return &providerpb.CaseMachine{CaseId: prepared.GetCaseId(), MachineId: int64(id)}
	}

	config := prepared.GetConnect().ToConfig()
	config.Address, config.TLS = s.options.Address, s.options.TLS

	return conformance.Harness{
		Connect: func(tb conformance.TB, options hypervisor.Options) hypervisor.Connection {
			tb.Helper()

			connection, err := external.New(config, options)
			if err != nil {
				tb.Fatal(err)
			}

			return connection
		},
		Template: prepared.GetTemplate().ToTemplateRef(), Shape: prepared.GetShape().ToShape(),
		TPMTemplate: prepared.GetTpmTemplate().ToTemplateRef(), IDMin: config.IDMin, RealTime: true,
		PlacesAtStart: prepared.GetPlacesAtStart(), NamesHoldOwner: prepared.GetNamesHoldOwner(),
		TPMsHidden: prepared.GetTpmsHidden(), ConsoleText: prepared.GetConsoleText(),
		Device: prepared.GetDevice(), Devices: int(prepared.GetDevices()), Restart: s.options.Restart,
		Inspect: func() conformance.State { return s.inspect(t, ref) },
		OnCall:  func(f func(conformance.Boundary)) func() { return s.watchCalls(t, ref, f) },
		PowerOff: func(id int) {
			s.call(t, "power off machine", func(ctx context.Context) error {
				_, err := s.client.PowerOff(ctx, machine(id), grpc.WaitForReady(true))

				return err
			})
		},
		OccupyID: func(_ conformance.TB, id int) {
			s.call(t, "occupy ID", func(ctx context.Context) error {
				_, err := s.client.OccupyID(ctx, machine(id), grpc.WaitForReady(true))

				return err
			})
		},
		DeleteExternally: func(_ conformance.TB, id int) {
			s.call(t, "delete machine externally", func(ctx context.Context) error {
				_, err := s.client.DeleteExternally(ctx, machine(id), grpc.WaitForReady(true))

				return err
			})
		},
	}
}

// call makes one call of the service for cases. It repeats the call if the program was killed during it.
func (s *suite) call(t *runner.T, action string, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()

	err := do(ctx)
	for status.Code(err) == codes.Unavailable && ctx.Err() == nil {
		time.Sleep(retryInterval)

		err = do(ctx)
	}

	if err != nil {
		t.Fatalf("%s: %v", action, err)
	}
}

// retryInterval is the interval at which a call to a program that was killed is repeated.
const retryInterval = 20 * time.Millisecond

func (s *suite) inspect(t *runner.T, ref *providerpb.CaseRef) conformance.State {
	var observed *providerpb.Observed

	s.call(t, "inspect hypervisor", func(ctx context.Context) (err error) {
		observed, err = s.client.Inspect(ctx, ref, grpc.WaitForReady(true))

		return err
	})

	state := conformance.State{
		Seeds: observed.GetSeeds(), TemplateTPMs: observed.GetTemplateTpms(), Foreign: observed.GetForeign(),
	}
	for _, m := range observed.GetMachines() {
		state.Machines = append(state.Machines, conformance.ObservedMachine{
			ID: int(m.GetId()), ClaimUID: m.GetClaimUid(), OperatorUID: m.GetOperatorUid(), Running: m.GetRunning(),
			Starts: int(m.GetStarts()), TPM: m.GetTpm(), Devices: m.GetDevices(),
		})
	}

	return state
}

// watchCalls runs f at each call of the provider to the hypervisor until the program is killed or remove is called.
func (s *suite) watchCalls(t *runner.T, ref *providerpb.CaseRef, f func(conformance.Boundary)) (remove func()) {
	ctx, cancel := context.WithCancel(t.Context())

	stream, err := s.client.WatchCalls(ctx, grpc.WaitForReady(true))
	if err == nil {
		err = stream.Send(ref)
	}

	if err == nil {
		_, err = stream.Recv()
	}

	if err != nil {
		cancel()
		t.Fatalf("watch calls of the program: %v", err)
	}

	ended := make(chan struct{})

	go func() {
		defer close(ended)

		for {
			boundary, err := stream.Recv()
			if err != nil {
				return
			}

			f(conformance.Boundary{Before: boundary.GetBefore(), Write: boundary.GetWrite(), Call: boundary.GetCall()})

			if stream.Send(ref) != nil {
				return
			}
		}
	}()

	return func() {
		cancel()
		<-ended
	}
}
