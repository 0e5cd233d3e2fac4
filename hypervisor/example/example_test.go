// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package example

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, fresh)
}

func TestCrashes(t *testing.T) {
	t.Parallel()
	conformance.CrashesAtEveryCall(t, fresh)
}

// fresh makes a cloud for one case.
func fresh(t *testing.T) conformance.Harness {
	t.Helper()

	const gib = 1 << 30

	cloud := &Cloud{Memory: 64 * gib, Template: "ubuntu"}
	calls := &conformance.Calls{}
	cloud.OnCall = func(what string, before bool) {
		calls.Tell(conformance.Boundary{Before: before, Write: true, What: what})
	}

	return conformance.Harness{
		Connect:  func(_ testing.TB, options hypervisor.Options) hypervisor.Connection { return Connect(cloud, options) },
		Template: hypervisor.TemplateRef{Name: cloud.Template}, Shape: hypervisor.Shape{CPU: 2, Memory: 2 * gib},
		IDMin: minID, Inspect: func() conformance.State { return inspect(cloud) }, OnCall: calls.On,
		PowerOff: func(id int) {
			change(t, cloud, "power off", id, func(at vm, _ bool) (vm, error) {
				at.Running = false

				return at, nil
			})
		},
		Occupy: func(_ testing.TB, id int) {
			change(t, cloud, "occupy", id, func(vm, bool) (vm, error) {
				return vm{Owner: hypervisor.Owner{Name: "somebody's"}, Running: true}, nil
			})
		},
		Vanish: func(_ testing.TB, id int) {
			change(t, cloud, "vanish", id, func(vm, bool) (vm, error) { return vm{}, nil })
		},
	}
}

// change is done by somebody else than the provider.
func change(t *testing.T, cloud *Cloud, what string, id int, do func(vm, bool) (vm, error)) {
	t.Helper()

	if err := cloud.change(t.Context(), what, id, do); err != nil {
		t.Fatal(err)
	}
}

func inspect(cloud *Cloud) conformance.State {
	var (
		out     conformance.State
		foreign []string
	)

	vms, _ := cloud.all()
	for id, at := range vms {
		if at.Operator == "" {
			foreign = append(foreign, fmt.Sprint(id, at))

			continue
		}

		out.Machines = append(out.Machines, conformance.Seen{
			ID: id, ClaimUID: at.Owner.UID, OperatorUID: at.Operator, Running: at.Running, Starts: at.Starts,
		})

		if at.Seed != nil {
			out.Seeds = append(out.Seeds, fmt.Sprint("iso of ", id))
		}
	}

	slices.Sort(foreign)
	out.Foreign = strings.Join(foreign, "\n")

	return out
}
