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
	conformance.Run(t, newHarness)
}

func TestCrashes(t *testing.T) {
	t.Parallel()
	conformance.CrashesAtEveryCall(t, newHarness)
}

// newHarness returns the harness of a new cloud for one case.
func newHarness(t *testing.T) conformance.Harness {
	t.Helper()

	const gib = 1 << 30

	cloud := &Cloud{Memory: 64 * gib, Template: "ubuntu"}
	calls := &conformance.CallHooks{}
	cloud.OnCall = func(operation string, before bool) {
		calls.Run(conformance.Boundary{Before: before, Write: true, Call: operation})
	}

	return conformance.Harness{
		Connect:  func(_ testing.TB, options hypervisor.Options) hypervisor.Connection { return Connect(cloud, options) },
		Template: hypervisor.TemplateRef{Name: cloud.Template}, Shape: hypervisor.Shape{CPU: 2, Memory: 2 * gib},
		IDMin: minID, Inspect: func() conformance.State { return inspect(cloud) }, OnCall: calls.Add,
		PowerOff: func(id int) {
			update(t, cloud, "power off", id, func(current vm, _ bool) (vm, error) {
				current.Running = false

				return current, nil
			})
		},
		OccupyID: func(_ testing.TB, id int) {
			update(t, cloud, "occupy", id, func(vm, bool) (vm, error) {
				return vm{Owner: hypervisor.Owner{Name: "somebody's"}, Running: true}, nil
			})
		},
		DeleteExternally: func(_ testing.TB, id int) {
			update(t, cloud, "vanish", id, func(vm, bool) (vm, error) { return vm{}, nil })
		},
	}
}

// update changes a machine as another client than the provider does.
func update(t *testing.T, cloud *Cloud, operation string, id int, mutate func(vm, bool) (vm, error)) {
	t.Helper()

	if err := cloud.update(t.Context(), operation, id, mutate); err != nil {
		t.Fatal(err)
	}
}

func inspect(cloud *Cloud) conformance.State {
	var (
		out     conformance.State
		foreign []string
	)

	vms, _ := cloud.list()
	for id, current := range vms {
		if current.Operator == "" {
			foreign = append(foreign, fmt.Sprint(id, current))

			continue
		}

		out.Machines = append(out.Machines, conformance.ObservedMachine{
			ID: id, ClaimUID: current.Owner.UID, OperatorUID: current.Operator, Running: current.Running, Starts: current.Starts,
		})

		if current.Seed != nil {
			out.Seeds = append(out.Seeds, fmt.Sprint("iso of ", id))
		}
	}

	slices.Sort(foreign)
	out.Foreign = strings.Join(foreign, "\n")

	return out
}
