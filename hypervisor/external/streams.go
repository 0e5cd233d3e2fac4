// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package external

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/providerpb"
)

// Start calls the program; see hypervisor.Provider. It sends the seed when the program requests it.
func (p *Provider) Start(
	ctx context.Context, spec hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	var seedErr error

	out, err := p.callForMachine(ctx, hypervisor.Call{Operation: "Start", Write: true}, spec.ID, spec.Owner,
		func(ctx context.Context) (*providerpb.Machine, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()

			stream, err := p.client.Start(ctx)
			if err != nil {
				return nil, err
			}

			if err := sendStart(stream, providerpb.NewMachineSpec(spec), nil); err != nil {
				return nil, err
			}

			isSeeded := false

			for {
				response, err := stream.Recv()
				if err != nil {
					return nil, err
				}

				if response.GetSeedRequest() == nil {
					return response.GetMachine(), nil
				}

				if isSeeded {
					return nil, newAnswerError("Start", "it requests the seed twice")
				}

				isSeeded = true

				var content hypervisor.Seed
				if content, seedErr = seed(ctx); seedErr != nil {
					return nil, seedErr
				}

				if err := sendStart(stream, nil, providerpb.NewSeed(content)); err != nil {
					return nil, err
				}
			}
		})
	if seedErr != nil {
		return out, seedErr // the program has created no ISO, and the caller knows its own error
	}

	return out, err
}

// sendStart sends a spec or a seed. If the call has ended, it returns the error of the program.
func sendStart(stream providerpb.Hypervisor_StartClient, spec *providerpb.MachineSpec, seed *providerpb.Seed) error {
	request := &providerpb.StartRequest{Request: &providerpb.StartRequest_Seed{Seed: seed}}
	if spec != nil {
		request.Request = &providerpb.StartRequest_Spec{Spec: spec}
	}

	err := stream.Send(request)
	if errors.Is(err, io.EOF) {
		_, err = stream.Recv()
	}

	return err
}

// OpenTerminal calls the program; see hypervisor.Terminal.
func (p *Provider) OpenTerminal(ctx context.Context, ref hypervisor.MachineRef) (io.ReadWriteCloser, error) {
	call := hypervisor.Call{Operation: "OpenTerminal"}

	session, err := p.session(ctx)
	if err != nil {
		return nil, err
	}

	// The console stays open after ctx has ended.
	open, cancel := context.WithCancel(p.ctx)
	stop := context.AfterFunc(ctx, cancel)

	var t *terminal

	err = p.wrapCall(ctx, call, func() error {
		stream, err := p.client.OpenTerminal(withSession(open, session))
		if err != nil {
			return err
		}

		first := &providerpb.TerminalInput{Input: &providerpb.TerminalInput_Machine{Machine: providerpb.NewMachineRef(ref)}}
		if err := stream.Send(first); err != nil && !errors.Is(err, io.EOF) {
			return err
		}

		output, err := stream.Recv()
		if err != nil {
			return err
		}

		t = &terminal{stream: stream, cancel: cancel, unread: output.GetData()}

		return nil
	})
	if err == nil && !stop() {
		err = p.decodeError(ctx, call, ctx.Err())
	}

	if err != nil {
		cancel()

		return nil, err
	}

	return t, nil
}

// terminal is an open console. One goroutine may read while another one writes.
type terminal struct {
	stream grpc.BidiStreamingClient[providerpb.TerminalInput, providerpb.TerminalOutput]
	cancel context.CancelFunc
	unread []byte
}

// Read reads output of the console. It returns io.EOF once the console is closed.
func (t *terminal) Read(buffer []byte) (int, error) {
	for len(t.unread) == 0 {
		output, err := t.stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return 0, io.EOF
			}

			return 0, fmt.Errorf("read console from provider: %w", err)
		}

		t.unread = output.GetData()
	}

	n := copy(buffer, t.unread)
	t.unread = t.unread[n:]

	return n, nil
}

// Write writes input of the console.
func (t *terminal) Write(data []byte) (int, error) {
	if err := t.stream.Send(&providerpb.TerminalInput{Input: &providerpb.TerminalInput_Data{Data: data}}); err != nil {
		return 0, fmt.Errorf("write to console by provider: %w", err)
	}

	return len(data), nil
}

// Close closes the console.
func (t *terminal) Close() error {
	t.cancel()

	return nil
}
