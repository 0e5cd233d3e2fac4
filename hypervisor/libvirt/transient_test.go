// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/libvirt"
)

func newOperator() hypervisor.Options { return hypervisor.Options{OperatorUID: "operator"} }

func (s *site) connectUntilEnd() hypervisor.Connection {
	s.t.Helper()

	conn := s.connect(s.t, newOperator())
	s.t.Cleanup(conn.Close)

	return conn
}

// newTransientSpec returns the spec of a machine that libvirt forgets when it is off.
func newTransientSpec() hypervisor.MachineSpec {
	return hypervisor.MachineSpec{
		Owner:    hypervisor.Owner{Namespace: "ci", Name: "claim", UID: "uid", Pool: "pool"},
		Template: hypervisor.TemplateRef{Name: template}, Shape: hypervisor.Shape{CPU: 1, Memory: 64 * mebibyte, Linked: true},
	}
}

// createThrough creates a machine over another socket of the host.
func (s *site) createThrough(socket string, options hypervisor.Options) (hypervisor.Connection, hypervisor.MachineSpec) {
	s.t.Helper()

	config := s.config
	config.Hosts = []hypervisor.Host{{Name: "host-1", URI: "qemu+unix:///session?socket=" + socket, StoragePool: s.name}}

	p, err := libvirt.New(config, options)
	s.must(err)
	s.t.Cleanup(p.Close)

	spec := newTransientSpec()
	_, err = conformance.Create(s.t.Context(), p, &spec, newSeed)
	s.must(err)

	return p, spec
}

// createUntil creates a machine in a process that ends right before or right after its first call of the operation.
func (s *site) createUntil(spec *hypervisor.MachineSpec, operation string, before bool) {
	s.t.Helper()

	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()

	stop := s.calls.Add(func(b conformance.Boundary) {
		if b.Call == operation && b.Before == before {
			cancel()
		}
	})
	conn := s.connect(s.t, newOperator())

	_, err := conformance.Create(ctx, conn, spec, newSeed)
	stop()
	conn.Close()

	if ctx.Err() == nil {
		s.t.Fatalf("the operation %s was not reached: %v", operation, err)
	}
}

// A machine is started once, and only the deletion of its ISO says that it was: whatever happens to the domain while no
// process of the operator runs.
func TestTransientMachineIsStartedOnce(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		name      string
		operation string
		before    bool
		// next is the operation right after whose first call a second process ends, if it is not empty.
		next string
		// isLost is true if the host loses the domain, as it does when it is restarted.
		isLost bool
		want   hypervisor.State
	}{
		{"the guest waits", "deleteVolume", true, "", false, hypervisor.StateRunning},
		{"the guest never ran", "deleteVolume", true, "", true, hypervisor.StateRunning},
		{"the guest waits with the mark", "deleteVolume", false, "", false, hypervisor.StateRunning},
		{"the guest may have run", "deleteVolume", false, "", true, hypervisor.StateStopped},
		{"the guest runs", "resumeDomain", false, "", false, hypervisor.StateRunning},
		{"the guest ran", "resumeDomain", false, "", true, hypervisor.StateStopped},
		{"the disk and the ISO exist", "createDomain", true, "", false, hypervisor.StateRunning},
		{"the ISO is replaced", "createDomain", true, "deleteVolume", false, hypervisor.StateRunning},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()

			s := newSite(t)
			spec := newTransientSpec()
			s.createUntil(&spec, c.operation, c.before)

			if c.next != "" {
				s.createUntil(&spec, c.next, false)
			}

			if c.isLost {
				s.powerOff(spec.ID)
			}

			p := s.connectUntilEnd()
			lost := newTransientSpec() // the claim's status was lost

			reserved, err := p.Reserve(t.Context(), lost)
			s.must(err)

			wasRun := c.want == hypervisor.StateStopped
			if wasRun && (!reserved.Exists || reserved.ID != spec.ID) {
				t.Errorf("want machine %d adopted, got %+v", spec.ID, reserved)
			}

			m, err := conformance.Create(t.Context(), p, &spec, newSeed)
			s.must(err)

			if m.State != c.want || m.Owner != spec.Owner {
				t.Errorf("want a machine that is %s, got %+v", c.want, m)
			}

			got, err := p.Get(t.Context(), hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner})
			if err != nil || got.State != c.want || got.Owner != spec.Owner {
				t.Errorf("want a machine that is %s, got %+v (%v)", c.want, got, err)
			}

			if state := s.inspect(); len(state.Machines) != 1 || state.Machines[0].Running == wasRun || len(state.Seeds) != 0 {
				t.Errorf("unexpected state %+v", state)
			}

			s.must(conformance.Delete(t.Context(), p, hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}))

			if state := s.inspect(); len(state.Machines)+len(state.Seeds) != 0 || strings.Contains(state.Foreign, "hf-") {
				t.Errorf("want nothing left, got %+v", state)
			}
		})
	}
}

// A process that was frozen before its first call does not start a machine that another process has run meanwhile.
func TestFrozenProcessStartsNothing(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	frozen, spec := s.connectUntilEnd(), newTransientSpec()

	_, err := conformance.Advance(t.Context(), frozen, &spec, newSeed) // it has reserved the ID and listed the domains
	s.must(err)

	first := spec
	runner := s.connect(t, newOperator())
	_, err = conformance.Create(t.Context(), runner, &first, newSeed)
	s.must(err)
	s.shutDown(spec.ID)
	s.eventually("the machine is off", func() bool {
		m, err := runner.Get(t.Context(), hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner})

		return err == nil && m.State == hypervisor.StateStopped
	})
	runner.Close()

	m, err := conformance.Create(t.Context(), frozen, &spec, newSeed)
	if err != nil || m.State != hypervisor.StateStopped {
		t.Errorf("want a machine that is off, got %+v (%v)", m, err)
	}

	if state := s.inspect(); len(state.Machines) != 1 || state.Machines[0].Starts != 1 || len(state.Seeds) != 0 {
		t.Errorf("unexpected state %+v", state)
	}

	s.must(conformance.Delete(t.Context(), frozen, hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}))
}

// A machine that somebody has suspended runs nevertheless, also for a new process.
func TestSuspendedMachineRuns(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	spec := newTransientSpec()
	_, err := conformance.Create(t.Context(), s.connectUntilEnd(), &spec, newSeed)
	s.must(err)

	s.use(func(rpc *golibvirt.Libvirt) error {
		d, _ := s.find(rpc, spec.ID)

		return rpc.DomainSuspend(d)
	})

	m, err := s.connectUntilEnd().Get(t.Context(), hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner})
	if err != nil || m.State != hypervisor.StateRunning {
		t.Errorf("want a running machine, got %+v (%v)", m, err)
	}
}

// Machines that need more than their volumes once they are off have a definition, which is deleted with them.
func TestDefinedMachines(t *testing.T) {
	t.Parallel()

	for name, change := range map[string]func(*hypervisor.MachineSpec){
		"a full clone": func(spec *hypervisor.MachineSpec) { spec.Shape.Linked = false },
		"with an address": func(spec *hypervisor.MachineSpec) {
			spec.Network = hypervisor.NetworkOptions{Addresses: []string{"192.0.2.10/24"}, AddressNetwork: "lab"}
		},
		"with a TPM":   func(spec *hypervisor.MachineSpec) { spec.Shape.TPM = true },
		"from standby": func(spec *hypervisor.MachineSpec) { spec.Standby = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := newSite(t)
			p, spec := s.connectUntilEnd(), newTransientSpec()
			change(&spec)

			_, err := conformance.Create(t.Context(), p, &spec, newSeed)
			s.must(err)

			spec.Standby = false
			_, err = conformance.Create(t.Context(), p, &spec, newSeed)
			s.must(err)
			s.shutDown(spec.ID)

			s.use(func(rpc *golibvirt.Libvirt) error {
				s.eventually("the machine is off", func() bool {
					found := s.domains(rpc)

					return len(found) == 1 && !found[0].isActive
				})

				return nil
			})

			other := s.connectUntilEnd()
			all, err := other.List(t.Context())
			s.must(err)

			isStopped := func(m hypervisor.Machine) bool { return m.State == hypervisor.StateStopped && m.Owner == spec.Owner }
			if !slices.ContainsFunc(all, isStopped) {
				t.Errorf("want a machine that is off, with its owner, got %+v", all)
			}

			s.must(conformance.Delete(t.Context(), other, hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}))

			if state := s.inspect(); len(state.Machines)+len(state.Seeds) != 0 || strings.Contains(state.Foreign, "hf-") {
				t.Errorf("want nothing left, got %+v", state)
			}
		})
	}
}

// A machine that somebody destroys is off, and one whose disk somebody deletes as well is gone.
func TestDestroyedMachine(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	options := newOperator()
	options.ListInterval = 1 // each question lists the domains
	p := s.connect(t, options)
	t.Cleanup(p.Close)

	spec := newTransientSpec()
	_, err := conformance.Create(t.Context(), p, &spec, newSeed)
	s.must(err)

	ref := hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}
	s.powerOff(spec.ID)
	s.eventually("the machine is off", func() bool {
		m, err := p.Get(t.Context(), ref)

		return err == nil && m.State == hypervisor.StateStopped
	})

	s.use(func(rpc *golibvirt.Libvirt) error {
		volumes, _, err := rpc.StoragePoolListAllVolumes(s.pool(rpc), 1, 0)
		for _, v := range volumes {
			if strings.Contains(v.Name, fmt.Sprintf("-%d-", spec.ID)) {
				err = rpc.StorageVolDelete(v, 0)
			}
		}

		return err
	})
	s.eventually("the machine is gone", func() bool {
		_, err := p.Get(t.Context(), ref)

		return hypervisor.Is(err, hypervisor.NotFound)
	})
}
