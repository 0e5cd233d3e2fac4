// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// One thing goes wrong on the way, and the machine is made and removed all the same:
// once, and with nothing left.
func TestTroubleThatPasses(t *testing.T) {
	t.Parallel()

	const (
		clone   = "/nodes/*/qemu/*/clone"
		machine = "/nodes/*/qemu/1*"
		config  = "/nodes/*/qemu/*/config"
		own     = "/nodes/*/qemu/100000/config"
		start   = "/nodes/*/qemu/*/status/start"
		stop    = "/nodes/*/qemu/*/status/stop"
		upload  = "/nodes/*/storage/*/upload"
		iso     = "/nodes/*/storage/*/content/*/*"
	)

	cases := []struct {
		name  string
		fault pve.Fault
	}{
		{"clone: lock times out", pve.Fault{Kind: pve.FaultLockTimeout, Path: clone}},
		{"clone: lock times out in the task", pve.Fault{Kind: pve.FaultTaskLock, Path: clone}},
		{"clone: task ends with warnings", pve.Fault{Kind: pve.FaultWarnings, Path: clone}},
		{"clone: end of the task is lost", pve.Fault{Kind: pve.FaultTaskLost, Path: clone}},
		{"clone: worker is killed before it begins", pve.Fault{Kind: pve.FaultTaskKilled, Path: clone}},
		{"clone: task fails", pve.Fault{Kind: pve.FaultTaskError, Path: clone}},
		{"clone: answer is lost", pve.Fault{Kind: pve.FaultCutConnection, Path: clone}},
		{"clone: proxy gives up waiting", pve.Fault{Kind: pve.FaultProxyTimeout, Path: clone}},
		{"clone: node not reached", pve.Fault{Kind: pve.FaultNodeDown, Path: clone}},
		{"clone: gateway error", pve.Fault{Kind: pve.FaultError, Path: clone, Status: 502, Reason: "Bad Gateway"}},
		{"clone: too many requests", pve.Fault{Kind: pve.FaultError, Path: clone, Status: 429, Reason: "Too Many Requests"}},
		{"clone: storage full for a moment", pve.Fault{Kind: pve.FaultStorageFull, Path: clone}},
		{"clone: base volume is locked", pve.Fault{Kind: pve.FaultTaskError, Path: clone,
			Reason: "clone failed: cfs-lock 'storage-local-lvm' error: got lock request timeout"}},
		{"upload: answer is lost", pve.Fault{Kind: pve.FaultCutConnection, Path: upload}},
		{"upload: task is lost", pve.Fault{Kind: pve.FaultTaskLost, Path: upload}},
		{"upload: worker is killed", pve.Fault{Kind: pve.FaultTaskKilled, Path: upload}},
		{"config: answer is lost", pve.Fault{Kind: pve.FaultCutConnection, Path: config, Method: "PUT"}},
		{"config: locked", pve.Fault{Kind: pve.FaultLockTimeout, Path: config, Method: "PUT"}},
		{"config: changed meanwhile", pve.Fault{Kind: pve.FaultError, Path: config, Method: "PUT",
			Reason: "detected modified configuration - file changed by other user? Try again."}},
		{"config: reading fails for a moment", pve.Fault{Kind: pve.FaultError, Path: config, Method: "GET", Status: 595,
			Reason: "Connection refused"}},
		{"config: a node that was away denies to read it", pve.Fault{Kind: pve.FaultError, Path: own, Method: "GET", Status: 403,
			Reason: "Permission check failed (/vms/100000, VM.Audit)", Count: 3}},
		{"config: a node that was away denies to write it", pve.Fault{Kind: pve.FaultError, Path: own, Method: "PUT", Status: 403,
			Reason: "Permission check failed (/vms/100000, VM.Config.Options)"}},
		{"start: answer is lost", pve.Fault{Kind: pve.FaultCutConnection, Path: start}},
		{"start: end of the task is lost", pve.Fault{Kind: pve.FaultTaskLost, Path: start}},
		{"start: worker is killed", pve.Fault{Kind: pve.FaultTaskError, Path: start}},
		{"start: lock times out in the task", pve.Fault{Kind: pve.FaultTaskLock, Path: start}},
		{"start: ends with warnings", pve.Fault{Kind: pve.FaultWarnings, Path: start}},
		{"stop: answer is lost", pve.Fault{Kind: pve.FaultCutConnection, Path: stop}},
		{"stop: fails", pve.Fault{Kind: pve.FaultTaskError, Path: stop}},
		{"destroy: answer is lost", pve.Fault{Kind: pve.FaultCutConnection, Path: machine, Method: "DELETE"}},
		{"destroy: lock times out in the task", pve.Fault{Kind: pve.FaultTaskLock, Path: machine, Method: "DELETE"}},
		{"destroy: end of the task is lost", pve.Fault{Kind: pve.FaultTaskLost, Path: machine, Method: "DELETE"}},
		{"ISO: answer is lost", pve.Fault{Kind: pve.FaultCutConnection, Path: iso, Method: "DELETE"}},
		{"ISO: task fails", pve.Fault{Kind: pve.FaultTaskError, Path: iso, Method: "DELETE"}},
		{"tasks: can't be listed", pve.Fault{Kind: pve.FaultError, Path: "/nodes/*/tasks", Status: 503, Reason: "busy", Count: 20}},
		{"machines: can't be listed", pve.Fault{Kind: pve.FaultError, Path: "/cluster/resources", Status: 595, Reason: "x", Count: 7}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()

			m := fastModel()
			m.Delays.Clone = 5 * time.Millisecond

			s := pvetest.New(t, m)
			p := connect(t, s)

			if c.fault.Count == 0 {
				c.fault.Count = 1
			}

			s.AddFault(c.fault)

			_, sp := create(t, p, spec(1))

			if made := s.Snapshot().Made(); len(made) != 1 || made[0].Starts != 1 {
				t.Errorf("made %+v", made)
			}

			remove(t, p, sp)
			nothingLeft(t, s)

			if len(s.Faults()) != 0 && c.fault.Count == 1 {
				t.Errorf("the fault never struck: %+v", s.Faults())
			}
		})
	}
}

// The connection breaks in the midst of an upload: what came of the cloud-init ISO does not count.
func TestUploadCut(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	cut := &cutting{}
	p := connect(t, s, func(_ *hypervisor.Config, o *hypervisor.Options) {
		o.Transport = func(next http.RoundTripper) http.RoundTripper {
			cut.next = next

			return cut
		}
	})

	_, sp := create(t, p, spec(1))
	snap := s.Snapshot()

	if len(snap.Made()) != 1 || snap.Made()[0].Starts != 1 || len(snap.ISOs()) != 1 {
		t.Errorf("made %+v, ISOs %+v", snap.Made(), snap.ISOs())
	}

	if !cut.done.Load() {
		t.Error("no upload was cut")
	}

	remove(t, p, sp)
	nothingLeft(t, s)
}

// cutting breaks the connection of the first upload after some of it.
type cutting struct {
	next http.RoundTripper
	done atomic.Bool
}

func (c *cutting) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.HasSuffix(req.URL.Path, "/upload") && c.done.CompareAndSwap(false, true) {
		const some = 1000

		body := req.Body
		req = req.Clone(req.Context())
		req.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(io.LimitReader(body, some), iotest.ErrReader(io.ErrUnexpectedEOF)), body}
	}

	return c.next.RoundTrip(req)
}

// Some trouble does not pass by itself. It is told in words, and ends when a person has
// done what they say.
func TestTroubleForPeople(t *testing.T) {
	t.Parallel()

	t.Run("a clone left locked", func(t *testing.T) {
		t.Parallel()

		s := pvetest.New(t, fastModel())
		p := connect(t, s)
		s.AddFault(pve.Fault{Kind: pve.FaultHalfClone, Count: 1})

		sp := spec(1)
		err := createError(t, p, &sp)
		says(t, err, hypervisor.Rejected, "left locked (clone)", "qm unlock 100000")
		says(t, p.Delete(t.Context(), refOf(sp)), hypervisor.Rejected, "qm unlock 100000")

		// The person removes it.
		s.SetLock(sp.ID, "")
		s.Vanish(sp.ID)

		_, sp = create(t, p, sp)
		remove(t, p, sp)
	})

	t.Run("a clone that keeps failing", func(t *testing.T) {
		t.Parallel()

		s := pvetest.New(t, fastModel())
		p := connect(t, s)
		s.AddFault(pve.Fault{Kind: pve.FaultTaskError, Path: "/nodes/*/qemu/*/clone", Reason: "clone failed: copying did not work"})

		sp := spec(1)
		says(t, createError(t, p, &sp), "", "copying did not work", "100000")
	})

	t.Run("a storage that stays full", func(t *testing.T) {
		t.Parallel()

		s := pvetest.New(t, fastModel())
		p := connect(t, s)
		s.AddFault(pve.Fault{Kind: pve.FaultTaskError, Path: "/nodes/*/qemu/*/clone",
			Reason: "clone failed: lvcreate error: insufficient free space"})

		sp := spec(1)
		says(t, createError(t, p, &sp), hypervisor.NoCapacity, "insufficient free space")
	})

	t.Run("a machine that lost its record", func(t *testing.T) {
		t.Parallel()

		s := pvetest.New(t, fastModel())
		p := connect(t, s)
		made, sp := create(t, p, spec(1))

		if err := root(t, s).Put(t.Context(), "/nodes/"+made.Node+"/qemu/100000/config",
			map[string]any{"description": "mine now"}, nil); err != nil {
			t.Fatal(err)
		}

		says(t, p.Delete(t.Context(), refOf(sp)), hypervisor.NotOwned, "100000")

		if vm, ok := s.Snapshot().VM(made.ID); !ok || vm.Status != "running" {
			t.Errorf("it was touched: %+v", vm)
		}
	})
}

// A VM migrates while it runs: it is followed, and removed where it is.
func TestMigration(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel().WithSharedStorage())
	p := connect(t, s)
	made, sp := create(t, p, spec(1))

	other := "pve1"
	if made.Node == other {
		other = "pve2"
	}

	s.Migrate(made.ID, other)
	eventually(t, "it runs on "+other, func() bool {
		got, err := p.Get(t.Context(), refOf(sp))

		return err == nil && got.Node == other && got.State == hypervisor.StateRunning
	})

	// It moves once more, and nobody looks at it.
	s.Migrate(made.ID, made.Node)
	eventually(t, "it is listed where it was", func() bool {
		all, err := p.List(t.Context())

		return err == nil && len(all) == 1 && all[0].Node == made.Node
	})
	remove(t, p, sp)
	nothingLeft(t, s)
}

// The status in the listing lags behind by seconds; a machine just started is not taken
// for one that has stopped.
func TestLagOfTheListing(t *testing.T) {
	t.Parallel()

	m := fastModel()
	m.StatusLag = time.Hour

	s := pvetest.New(t, m)
	p := connect(t, s, realTime)
	_, sp := create(t, p, spec(1))

	// The listing says stopped, as it did when the machine was cloned. A new process asks the machine.
	for who, p := range map[string]hypervisor.Provider{"the same process": p, "a new process": connect(t, s, realTime)} {
		if got, err := p.Get(t.Context(), refOf(sp)); err != nil || got.State != hypervisor.StateRunning {
			t.Errorf("get by %s: %+v %v", who, got, err)
		}
	}
}

// An upload that was on its way when another operator took over ends after the machine and
// its cloud-init ISO are gone. The new leader, which remembers that they are, removes it at once.
func TestAnISOThatComesLate(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	p := connect(t, s)
	_, sp := create(t, p, spec(1))

	isos := s.Snapshot().ISOs()
	if len(isos) != 1 {
		t.Fatalf("%d cloud-init ISOs for one machine", len(isos))
	}

	remove(t, p, sp)

	name := isos[0].VolID[strings.LastIndex(isos[0].VolID, "/")+1:]
	if _, err := s.AddISO("pve2", "local", name, []byte("late")); err != nil {
		t.Fatal(err)
	}

	listed, err := p.List(t.Context())
	if err != nil || len(listed) != 1 || listed[0].State != hypervisor.StateRemains {
		t.Fatalf("listed: %+v, %v", listed, err)
	}

	remove(t, p, hypervisor.MachineSpec{Owner: listed[0].Owner})
	nothingLeft(t, s)
}

// createError goes on until it gives an error that waiting does not fix, or the one that is looked for.
func createError(t testing.TB, p hypervisor.Provider, sp *hypervisor.MachineSpec, kinds ...hypervisor.Kind) (err error) {
	t.Helper()
	eventually(t, "there is an error", func() bool {
		var m hypervisor.Machine

		m, err = conformance.Further(t.Context(), p, sp, seed)
		if err == nil && m.State == hypervisor.StateRunning {
			t.Fatal("it runs")
		}

		kind := hypervisor.KindOf(err)

		return err != nil && kind != hypervisor.Busy && (kind != hypervisor.UnknownOutcome || slices.Contains(kinds, kind))
	})

	return err
}

// says makes sure of an error's kind and of words in it.
func says(t testing.TB, err error, kind hypervisor.Kind, words ...string) {
	t.Helper()

	if err == nil || hypervisor.KindOf(err) != kind {
		t.Errorf("want kind %q, got %q: %v", kind, hypervisor.KindOf(err), err)

		return
	}

	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err.Error(), word)
		}
	}
}
