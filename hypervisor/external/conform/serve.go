// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conform

import (
	"context"
	"errors"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance/runner"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/providerpb"
)

// Environment is the environment of one case.
type Environment struct {
	// Config has the cluster, the ID range and the settings with which the case connects.
	Config hypervisor.Config
	// Harness looks at the environment. Its functions Connect and Restart are not used.
	Harness conformance.Harness
}

// Lab prepares the environments of cases. It is safe for concurrent use.
type Lab interface {
	// NewCase prepares a new environment and returns its ID.
	NewCase(ctx context.Context) (id string, err error)
	// Find returns the environment with the ID. It finds it also if another process has prepared it.
	Find(ctx context.Context, id string) (Environment, error)
}

// Register adds the service for the cases to a server. It is the field Register of server.Program.
func Register(lab Lab) func(grpc.ServiceRegistrar) {
	return func(registrar grpc.ServiceRegistrar) {
		providerpb.RegisterConformanceServer(registrar, &service{lab: lab})
	}
}

type service struct {
	providerpb.UnimplementedConformanceServer

	lab Lab
}

// NewCase prepares the environment of a case.
func (s *service) NewCase(ctx context.Context, _ *providerpb.NewCaseRequest) (*providerpb.Case, error) {
	id, err := s.lab.NewCase(ctx)
	if err != nil {
		return nil, providerpb.NewStatus(err)
	}

	found, err := s.lab.Find(ctx, id)
	if err != nil {
		return nil, providerpb.NewStatus(err)
	}

	h := found.Harness

	return &providerpb.Case{
		CaseId: id, Connect: providerpb.NewConnectRequest(&found.Config, ""), Template: providerpb.NewTemplateRef(h.Template),
		Shape: providerpb.NewShape(h.Shape), TpmTemplate: providerpb.NewTemplateRef(h.TPMTemplate), PlacesAtStart: h.PlacesAtStart,
		NamesHoldOwner: h.NamesHoldOwner, TpmsHidden: h.TPMsHidden, ConsoleText: h.ConsoleText,
		Device: h.Device, Devices: int64(h.Devices),
	}, nil
}

// do runs one function of a case's harness, whose failure is the error of the call.
func (s *service) do(ctx context.Context, id string, f func(*runner.T, conformance.Harness)) error {
	found, err := s.lab.Find(ctx, id)
	if err != nil {
		return providerpb.NewStatus(err)
	}

	results, err := runner.Run(ctx, runner.Options{}, func(t *runner.T) { f(t, found.Harness) })
	if err != nil {
		return providerpb.NewStatus(err)
	}

	for i := range results {
		if results[i].Status == runner.Failed {
			return status.Error(codes.Internal, strings.Join(results[i].Messages, "; "))
		}
	}

	return nil
}

// Inspect reports the state of a case's hypervisor.
func (s *service) Inspect(ctx context.Context, ref *providerpb.CaseRef) (*providerpb.Observed, error) {
	out := &providerpb.Observed{}

	err := s.do(ctx, ref.GetCaseId(), func(_ *runner.T, h conformance.Harness) {
		state := h.Inspect()
		out.Seeds, out.TemplateTpms, out.Foreign = state.Seeds, state.TemplateTPMs, state.Foreign

		for _, m := range state.Machines {
			out.Machines = append(out.Machines, &providerpb.ObservedMachine{
				Id: int64(m.ID), ClaimUid: m.ClaimUID, OperatorUid: m.OperatorUID, Running: m.Running, Starts: int64(m.Starts), Tpm: m.TPM,
				Devices: m.Devices,
			})
		}
	})

	return out, err
}

// PowerOff powers a machine of a case off.
func (s *service) PowerOff(ctx context.Context, m *providerpb.CaseMachine) (*providerpb.CaseResponse, error) {
	return &providerpb.CaseResponse{}, s.do(ctx, m.GetCaseId(), func(_ *runner.T, h conformance.Harness) {
		h.PowerOff(int(m.GetMachineId()))
	})
}

// OccupyID creates a machine of another owner.
func (s *service) OccupyID(ctx context.Context, m *providerpb.CaseMachine) (*providerpb.CaseResponse, error) {
	return &providerpb.CaseResponse{}, s.do(ctx, m.GetCaseId(), func(t *runner.T, h conformance.Harness) {
		h.OccupyID(t, int(m.GetMachineId()))
	})
}

// DeleteExternally deletes a machine of a case.
func (s *service) DeleteExternally(ctx context.Context, m *providerpb.CaseMachine) (*providerpb.CaseResponse, error) {
	return &providerpb.CaseResponse{}, s.do(ctx, m.GetCaseId(), func(t *runner.T, h conformance.Harness) {
		h.DeleteExternally(t, int(m.GetMachineId()))
	})
}

// errNoCalls says that the program cannot report its calls.
var errNoCalls = errors.New("watch calls: the harness has no OnCall")

// WatchCalls reports each call of the case's provider to its hypervisor, which waits until the boundary is acknowledged.
func (s *service) WatchCalls(stream grpc.BidiStreamingServer[providerpb.CaseRef, providerpb.Boundary]) error {
	ref, err := stream.Recv()
	if err != nil {
		return err
	}

	found, err := s.lab.Find(stream.Context(), ref.GetCaseId())
	if err == nil && found.Harness.OnCall == nil {
		err = errNoCalls
	}

	if err != nil {
		return providerpb.NewStatus(err)
	}

	var (
		mu        sync.Mutex
		streamErr error
		ended     = make(chan struct{})
	)

	remove := found.Harness.OnCall(func(b conformance.Boundary) {
		mu.Lock()
		defer mu.Unlock()

		if streamErr != nil {
			return
		}

		streamErr = stream.Send(&providerpb.Boundary{Before: b.Before, Write: b.Write, Call: b.Call})
		if streamErr == nil {
			_, streamErr = stream.Recv()
		}

		if streamErr != nil {
			close(ended)
		}
	})
	defer remove()

	// The first message says that calls are watched from now on.
	mu.Lock()
	err = stream.Send(&providerpb.Boundary{})
	mu.Unlock()

	if err != nil {
		return err
	}

	select {
	case <-ended:
	case <-stream.Context().Done():
	}

	return nil
}
