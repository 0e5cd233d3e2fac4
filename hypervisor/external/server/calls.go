// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/providerpb"
)

// maxTerminalChunk is the size of a message with output of a console.
const maxTerminalChunk = 32 << 10

// Check calls the provider.
func (s *service) Check(ctx context.Context, _ *providerpb.CheckRequest) (*providerpb.Info, error) {
	return serve(ctx, s, func(current *session) (*providerpb.Info, error) {
		info, err := current.conn.Check(ctx)

		return providerpb.NewInfo(info), err
	})
}

// Resolve calls the provider.
func (s *service) Resolve(ctx context.Context, request *providerpb.ResolveRequest) (*providerpb.ResolveResponse, error) {
	return serve(ctx, s, func(current *session) (*providerpb.ResolveResponse, error) {
		templates, err := current.conn.Resolve(ctx, request.GetRef().ToTemplateRef(), request.GetShape().ToShape())

		return providerpb.NewResolveResponse(templates), err
	})
}

// Reserve calls the provider. The operator sends the machines that claims hold until a call of Reserve has succeeded in the
// session. A request without them therefore leaves the earlier ones as they are.
func (s *service) Reserve(ctx context.Context, request *providerpb.ReserveRequest) (*providerpb.Reservation, error) {
	return serve(ctx, s, func(current *session) (*providerpb.Reservation, error) {
		if len(request.GetClaimedIds()) > 0 {
			current.setClaimed(request.ToClaimed())
		}

		reservation, err := current.conn.Reserve(ctx, request.GetSpec().ToMachineSpec())

		return providerpb.NewReservation(reservation), err
	})
}

func (s *session) setClaimed(machines []hypervisor.ClaimedMachine) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.claimed = machines
}

// Ensure calls the provider.
func (s *service) Ensure(ctx context.Context, spec *providerpb.MachineSpec) (*providerpb.Machine, error) {
	return serve(ctx, s, func(current *session) (*providerpb.Machine, error) {
		m, err := current.conn.Ensure(ctx, spec.ToMachineSpec())

		return providerpb.NewMachine(m), err
	})
}

// Start calls the provider, whose function seed requests the seed from the operator.
func (s *service) Start(stream grpc.BidiStreamingServer[providerpb.StartRequest, providerpb.StartResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}

	m, err := serve(stream.Context(), s, func(current *session) (*providerpb.Machine, error) {
		m, err := current.conn.Start(stream.Context(), first.GetSpec().ToMachineSpec(),
			func(context.Context) (hypervisor.Seed, error) { return requestSeed(stream) })

		return providerpb.NewMachine(m), err
	})
	if err != nil {
		return err
	}

	return stream.Send(&providerpb.StartResponse{Response: &providerpb.StartResponse_Machine{Machine: m}})
}

// requestSeed requests the seed. If the operator has no seed, it cancels the call.
func requestSeed(stream grpc.BidiStreamingServer[providerpb.StartRequest, providerpb.StartResponse]) (hypervisor.Seed, error) {
	question := &providerpb.StartResponse_SeedRequest{SeedRequest: &providerpb.SeedRequest{}}
	if err := stream.Send(&providerpb.StartResponse{Response: question}); err != nil {
		return hypervisor.Seed{}, err
	}

	request, err := stream.Recv()
	if err != nil {
		return hypervisor.Seed{}, err
	}

	return request.GetSeed().ToSeed(), nil
}

// Get calls the provider.
func (s *service) Get(ctx context.Context, ref *providerpb.MachineRef) (*providerpb.Machine, error) {
	return serve(ctx, s, func(current *session) (*providerpb.Machine, error) {
		m, err := current.conn.Get(ctx, ref.ToMachineRef())

		return providerpb.NewMachine(m), err
	})
}

// List calls the provider.
func (s *service) List(ctx context.Context, _ *providerpb.ListRequest) (*providerpb.ListResponse, error) {
	return serve(ctx, s, func(current *session) (*providerpb.ListResponse, error) {
		machines, err := current.conn.List(ctx)

		return providerpb.NewListResponse(machines), err
	})
}

// Delete calls the provider.
func (s *service) Delete(ctx context.Context, ref *providerpb.MachineRef) (*providerpb.DeleteResponse, error) {
	return serve(ctx, s, func(current *session) (*providerpb.DeleteResponse, error) {
		return &providerpb.DeleteResponse{}, current.conn.Delete(ctx, ref.ToMachineRef())
	})
}

// Capacity calls the provider.
func (s *service) Capacity(ctx context.Context, _ *providerpb.CapacityRequest) (*providerpb.CapacityResponse, error) {
	return serve(ctx, s, func(current *session) (*providerpb.CapacityResponse, error) {
		capacity, err := current.conn.Capacity(ctx)

		return providerpb.NewCapacityResponse(capacity), err
	})
}

// newUnsupportedError returns the error for a call that needs a capability that the provider does not have.
func newUnsupportedError() error {
	return hypervisor.Errorf(hypervisor.Rejected, "Unsupported", "the provider does not support this call: look at its capabilities")
}

// ReadConsole calls the provider.
func (s *service) ReadConsole(ctx context.Context, ref *providerpb.MachineRef) (*providerpb.Console, error) {
	return serve(ctx, s, func(current *session) (*providerpb.Console, error) {
		reader, ok := hypervisor.Find[hypervisor.ConsoleReader](current.conn)
		if !ok {
			return nil, newUnsupportedError()
		}

		text, err := reader.ReadConsole(ctx, ref.ToMachineRef())

		return &providerpb.Console{Text: text}, err
	})
}

// Execute calls the provider.
func (s *service) Execute(ctx context.Context, request *providerpb.ExecuteRequest) (*providerpb.ExecuteResponse, error) {
	return serve(ctx, s, func(current *session) (*providerpb.ExecuteResponse, error) {
		executor, ok := hypervisor.Find[hypervisor.Executor](current.conn)
		if !ok {
			return nil, newUnsupportedError()
		}

		result, err := executor.Execute(ctx, request.GetMachine().ToMachineRef(), request.GetCommand())

		return providerpb.NewExecuteResponse(result), err
	})
}

// OpenTerminal opens the console and copies its input and output until one side closes it.
func (s *service) OpenTerminal(stream grpc.BidiStreamingServer[providerpb.TerminalInput, providerpb.TerminalOutput]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}

	console, err := serve(stream.Context(), s, func(current *session) (io.ReadWriteCloser, error) {
		terminal, ok := hypervisor.Find[hypervisor.Terminal](current.conn)
		if !ok {
			return nil, newUnsupportedError()
		}

		return terminal.OpenTerminal(stream.Context(), first.GetMachine().ToMachineRef())
	})
	if err != nil {
		return err
	}

	closeConsole := sync.OnceFunc(func() { _ = console.Close() })
	defer closeConsole()

	stop := context.AfterFunc(stream.Context(), closeConsole)
	defer stop()

	go func() {
		defer closeConsole()

		copyInput(console, stream)
	}()

	err = stream.Send(&providerpb.TerminalOutput{})

	for buffer := make([]byte, maxTerminalChunk); err == nil; {
		n, readErr := console.Read(buffer)
		if n > 0 {
			err = stream.Send(&providerpb.TerminalOutput{Data: buffer[:n]})
		}

		switch {
		case errors.Is(readErr, io.EOF):
			return err
		case readErr != nil:
			return providerpb.NewStatus(readErr)
		}
	}

	return err
}

// copyInput copies the user's input until the call ends.
func copyInput(console io.Writer, stream grpc.BidiStreamingServer[providerpb.TerminalInput, providerpb.TerminalOutput]) {
	for {
		input, err := stream.Recv()
		if err == nil {
			_, err = console.Write(input.GetData())
		}

		if err != nil {
			return
		}
	}
}
