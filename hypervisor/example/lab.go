// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package example

import (
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/conform"
)

const gib = 1 << 30

// SettingCase is the setting with the ID of the case to which a connection belongs.
const SettingCase = "case"

// casePattern is the form of a case's ID, which is part of a file name.
var casePattern = regexp.MustCompile(`^[A-Z0-9]+$`)

// Lab has a cloud for each conformance case.
type Lab struct {
	// Folder has the files of the clouds.
	Folder string

	mu    sync.Mutex
	cases map[string]*labCase
}

type labCase struct {
	cloud *Cloud
	calls conformance.CallHooks
}

// NewCloud returns a cloud with one template. file is its field File.
func NewCloud(file string) *Cloud {
	return &Cloud{Memory: 64 * gib, Template: "ubuntu", File: file}
}

// NewCase returns the ID of a new cloud.
func (*Lab) NewCase(context.Context) (string, error) { return rand.Text(), nil }

// Find returns the environment of a case.
func (l *Lab) Find(_ context.Context, id string) (conform.Environment, error) {
	found, err := l.find(id)
	if err != nil {
		return conform.Environment{}, err
	}

	return conform.Environment{
		Config:  hypervisor.Config{Name: "conformance", IDMin: defaultMinID, Settings: map[string]string{SettingCase: id}},
		Harness: NewHarness(found.cloud, &found.calls),
	}, nil
}

// Cloud returns the cloud of a case.
func (l *Lab) Cloud(id string) (*Cloud, error) {
	found, err := l.find(id)
	if err != nil {
		return nil, err
	}

	return found.cloud, nil
}

func (l *Lab) find(id string) (*labCase, error) {
	if !casePattern.MatchString(id) {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "CaseInvalid", "find case %q: it was not prepared by NewCase", id)
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	if found, ok := l.cases[id]; ok {
		return found, nil
	}

	found := &labCase{cloud: NewCloud(filepath.Join(l.Folder, id+".json"))}
	found.cloud.OnCall = func(operation string, isBefore bool) {
		found.calls.Run(conformance.Boundary{Before: isBefore, Write: true, Call: operation})
	}

	if err := found.cloud.load(); err != nil {
		return nil, err
	}

	if l.cases == nil {
		l.cases = map[string]*labCase{}
	}

	l.cases[id] = found

	return found, nil
}

// NewHarness returns the harness of a cloud for one case. calls has the hooks that the cloud's OnCall runs.
func NewHarness(cloud *Cloud, calls *conformance.CallHooks) conformance.Harness {
	change := func(tb conformance.TB, operation string, id int, mutate func(vm, bool) (vm, error)) {
		tb.Helper()

		// The call is one of another client, so the cases do not watch it.
		updated, err := cloud.apply(id, mutate)
		if err != nil {
			tb.Fatalf("%s machine %d: %v", operation, id, err)
		}

		cloud.wakeOwner(updated)
	}

	return conformance.Harness{
		Connect: func(tb conformance.TB, options hypervisor.Options) hypervisor.Connection {
			tb.Helper()

			p, err := Connect(cloud, hypervisor.Config{}, options)
			if err != nil {
				tb.Fatal(err)
			}

			return p
		},
		Template: hypervisor.TemplateRef{Name: cloud.Template}, Shape: hypervisor.Shape{CPU: 2, Memory: 2 * gib},
		IDMin: defaultMinID, Inspect: func() conformance.State { return inspect(cloud) }, OnCall: calls.Add,
		PowerOff: func(id int) {
			updated, err := cloud.apply(id, func(current vm, exists bool) (vm, error) {
				if !exists {
					return vm{}, errNotFound
				}

				current.Running = false

				return current, nil
			})
			if err == nil {
				cloud.wakeOwner(updated)
			}
		},
		OccupyID: func(tb conformance.TB, id int) {
			change(tb, "occupy", id, func(vm, bool) (vm, error) {
				return vm{Owner: hypervisor.Owner{Name: "somebody's"}, Running: true}, nil
			})
		},
		DeleteExternally: func(tb conformance.TB, id int) {
			change(tb, "delete", id, func(vm, bool) (vm, error) { return vm{}, nil })
		},
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
