// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package external

import (
	"context"
	"fmt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/providerpb"
)

// Check calls the program; see hypervisor.Provider.
func (p *Provider) Check(ctx context.Context) (hypervisor.Info, error) {
	var out hypervisor.Info

	err := p.call(ctx, hypervisor.Call{Operation: "Check"}, func(ctx context.Context) error {
		response, err := p.client.Check(ctx, &providerpb.CheckRequest{})
		out = response.ToInfo()

		return err
	})
	if err == nil {
		err = checkNodes("Check", out.Nodes)
	}

	if err != nil {
		return hypervisor.Info{}, err
	}

	out.Product, out.Version, out.Warnings = limitText(out.Product), limitText(out.Version), limitTexts(out.Warnings, maxText)

	return out, nil
}

// Resolve calls the program; see hypervisor.Provider.
func (p *Provider) Resolve(
	ctx context.Context, ref hypervisor.TemplateRef, shape hypervisor.Shape,
) ([]hypervisor.Template, error) {
	var out []hypervisor.Template

	err := p.callForClaim(ctx, hypervisor.Call{Operation: "Resolve"}, func(ctx context.Context) error {
		response, err := p.client.Resolve(ctx,
			&providerpb.ResolveRequest{Ref: providerpb.NewTemplateRef(ref), Shape: providerpb.NewShape(shape)})
		out = response.ToTemplates()

		return err
	})
	if err != nil {
		return nil, err
	}

	if len(out) == 0 || len(out) > maxTemplates {
		return nil, newAnswerError("Resolve", fmt.Sprintf("it has %d templates", len(out)))
	}

	seen := map[string]bool{}

	for _, t := range out {
		id := fmt.Sprint(t.ID, "/", t.Node, "/", t.Name)
		isNamed := isName(t.Name, maxName) && isName(t.Node, maxNodeName) && isName(t.Storage, maxName) && isName(t.OS, maxNodeName)
		if !isNamed || t.ID < 0 || t.DiskBytes < 0 || seen[id] {
			return nil, newAnswerError("Resolve",
				fmt.Sprintf("a name of template %q is too long or has control characters, or the template occurs twice", limitText(id)))
		}

		seen[id] = true
	}

	return out, nil
}

// Reserve calls the program; see hypervisor.Provider. Until the first success in a session, it also sends the machines that
// claims hold.
func (p *Provider) Reserve(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Reservation, error) {
	request := &providerpb.ReserveRequest{Spec: providerpb.NewMachineSpec(spec)}

	session, err := p.session(ctx)
	if err != nil {
		return hypervisor.Reservation{}, err
	}

	if p.options.ListClaimed != nil && p.sessions.needsClaimed(session) {
		machines, err := p.options.ListClaimed(ctx, p.config.Name)
		if err != nil {
			return hypervisor.Reservation{}, fmt.Errorf("list the machines that claims hold: %w", err)
		}

		request.SetClaimed(machines)
	}

	var out hypervisor.Reservation

	err = p.callForClaim(ctx, hypervisor.Call{Operation: "Reserve"}, func(ctx context.Context) error {
		response, err := p.client.Reserve(ctx, request)
		out = response.ToReservation()

		return err
	})

	switch {
	case err != nil:
		return hypervisor.Reservation{}, err
	case out.ID < 1 || !isName(out.Node, maxNodeName):
		return hypervisor.Reservation{}, newAnswerError("Reserve",
			"the ID is not positive, or the node's name is too long or has control characters")
	case !out.Exists && (out.ID < p.config.IDMin || p.config.IDMax > 0 && out.ID > p.config.IDMax):
		return hypervisor.Reservation{}, newAnswerError("Reserve",
			fmt.Sprintf("the ID %d is outside of vmIdRange (%d to %d)", out.ID, p.config.IDMin, p.config.IDMax))
	}

	if err := checkAddresses("Reserve", out.Addresses); err != nil {
		return hypervisor.Reservation{}, err
	}

	p.sessions.setReserved(session)

	return out, nil
}

// Ensure calls the program; see hypervisor.Provider.
func (p *Provider) Ensure(ctx context.Context, spec hypervisor.MachineSpec) (hypervisor.Machine, error) {
	return p.callForMachine(ctx, hypervisor.Call{Operation: "Ensure", Write: true}, spec.ID, spec.Owner,
		func(ctx context.Context) (*providerpb.Machine, error) {
			return p.client.Ensure(ctx, providerpb.NewMachineSpec(spec))
		})
}

// Get calls the program; see hypervisor.Provider.
func (p *Provider) Get(ctx context.Context, ref hypervisor.MachineRef) (hypervisor.Machine, error) {
	return p.callForMachine(ctx, hypervisor.Call{Operation: "Get"}, ref.ID, ref.Owner,
		func(ctx context.Context) (*providerpb.Machine, error) {
			return p.client.Get(ctx, providerpb.NewMachineRef(ref))
		})
}

// callForMachine makes a call that returns a machine.
func (p *Provider) callForMachine(
	ctx context.Context, call hypervisor.Call, id int, owner hypervisor.Owner,
	do func(context.Context) (*providerpb.Machine, error),
) (hypervisor.Machine, error) {
	var out hypervisor.Machine

	if call.Write {
		// The program sends a wake event when the machine has changed, and this can be before the response.
		p.sessions.expectWake(owner)
	} else {
		p.sessions.stopExpectingWake(owner) // the owner reads the newest state instead
	}

	err := p.callForClaim(ctx, call, func(ctx context.Context) error {
		response, err := do(ctx)
		out = response.ToMachine()

		return err
	})
	if err == nil {
		err = checkMachine(call.Operation, &out, id, &owner)
	}

	if err != nil {
		return hypervisor.Machine{}, err
	}

	if call.Write && out.State != hypervisor.StateCreating {
		p.sessions.stopExpectingWake(owner)
	}

	return out, nil
}

// List calls the program; see hypervisor.Provider.
func (p *Provider) List(ctx context.Context) ([]hypervisor.Machine, error) {
	var out []hypervisor.Machine

	err := p.call(ctx, hypervisor.Call{Operation: "List"}, func(ctx context.Context) error {
		response, err := p.client.List(ctx, &providerpb.ListRequest{})
		out = response.ToMachines()

		return err
	})
	if err == nil && len(out) > maxMachines {
		err = newAnswerError("List", fmt.Sprintf("it has %d machines, more than %d", len(out), maxMachines))
	}

	for i := range out {
		if err == nil {
			err = checkMachine("List", &out[i], 0, nil)
		}
	}

	if err != nil {
		return nil, err
	}

	return out, nil
}

// Delete calls the program; see hypervisor.Provider.
func (p *Provider) Delete(ctx context.Context, ref hypervisor.MachineRef) error {
	p.sessions.expectWake(ref.Owner)

	err := p.callForClaim(ctx, hypervisor.Call{Operation: "Delete", Write: true}, func(ctx context.Context) error {
		_, err := p.client.Delete(ctx, providerpb.NewMachineRef(ref))

		return err
	})
	if hypervisor.Is(err, hypervisor.NotFound) {
		p.sessions.stopExpectingWake(ref.Owner)
	}

	return err
}

// Capacity calls the program; see hypervisor.Provider.
func (p *Provider) Capacity(ctx context.Context) (hypervisor.Capacity, error) {
	var out hypervisor.Capacity

	err := p.call(ctx, hypervisor.Call{Operation: "Capacity"}, func(ctx context.Context) error {
		response, err := p.client.Capacity(ctx, &providerpb.CapacityRequest{})
		out = response.ToCapacity()

		return err
	})
	if err == nil {
		err = checkNodes("Capacity", out.Nodes)
	}

	if err == nil && (isNegative(out.Free) || isNegative(out.Total) || out.Machines < 0 || out.Machines > maxMachines) {
		err = newAnswerError("Capacity", "an amount is negative or too large")
	}

	if err != nil {
		return hypervisor.Capacity{}, err
	}

	return out, nil
}

// ReadConsole calls the program; see hypervisor.ConsoleReader.
func (p *Provider) ReadConsole(ctx context.Context, ref hypervisor.MachineRef) ([]byte, error) {
	var out []byte

	err := p.callForClaim(ctx, hypervisor.Call{Operation: "ReadConsole"}, func(ctx context.Context) error {
		response, err := p.client.ReadConsole(ctx, providerpb.NewMachineRef(ref))
		out = response.GetText()

		return err
	})
	if err != nil {
		return nil, err
	}

	return out[max(0, len(out)-hypervisor.MaxConsole):], nil
}

// Execute calls the program; see hypervisor.Executor. Only ctx limits its time.
func (p *Provider) Execute(ctx context.Context, ref hypervisor.MachineRef, command []string) (hypervisor.ExecResult, error) {
	call := hypervisor.Call{Operation: "Execute", Write: true}

	session, err := p.session(ctx)
	if err != nil {
		return hypervisor.ExecResult{}, err
	}

	var out hypervisor.ExecResult

	err = p.wrapCall(ctx, call, func() error {
		response, err := p.client.Execute(withSession(ctx, session),
			&providerpb.ExecuteRequest{Machine: providerpb.NewMachineRef(ref), Command: command})
		out = response.ToExecResult()

		return err
	})
	if err != nil {
		return hypervisor.ExecResult{}, err
	}

	return out, nil
}
