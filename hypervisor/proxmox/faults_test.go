// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"errors"
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
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// A single fault does not prevent the creation and the deletion of the machine. The machine is created
// exactly once, and nothing is left after its deletion.
func TestTransientErrors(t *testing.T) {
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
		{"clone: response is lost", pve.Fault{Kind: pve.FaultCutConnection, Path: clone}},
		{"clone: proxy gives up waiting", pve.Fault{Kind: pve.FaultProxyTimeout, Path: clone}},
		{"clone: node not reached", pve.Fault{Kind: pve.FaultNodeDown, Path: clone}},
		{"clone: gateway error", pve.Fault{Kind: pve.FaultError, Path: clone, Status: 502, Reason: "Bad Gateway"}},
		{"clone: too many requests", pve.Fault{Kind: pve.FaultError, Path: clone, Status: 429, Reason: "Too Many Requests"}},
		{"clone: storage full for a moment", pve.Fault{Kind: pve.FaultStorageFull, Path: clone}},
		{"clone: base volume is locked", pve.Fault{Kind: pve.FaultTaskError, Path: clone,
			Reason: "clone failed: cfs-lock 'storage-local-lvm' error: got lock request timeout"}},
		{"upload: response is lost", pve.Fault{Kind: pve.FaultCutConnection, Path: upload}},
		{"upload: task is lost", pve.Fault{Kind: pve.FaultTaskLost, Path: upload}},
		{"upload: worker is killed", pve.Fault{Kind: pve.FaultTaskKilled, Path: upload}},
		{"config: response is lost", pve.Fault{Kind: pve.FaultCutConnection, Path: config, Method: "PUT"}},
		{"config: locked", pve.Fault{Kind: pve.FaultLockTimeout, Path: config, Method: "PUT"}},
		{"config: changed meanwhile", pve.Fault{Kind: pve.FaultError, Path: config, Method: "PUT",
			Reason: "detected modified configuration - file changed by other user? Try again."}},
		{"config: reading fails for a moment", pve.Fault{Kind: pve.FaultError, Path: config, Method: "GET", Status: 595,
			Reason: "Connection refused"}},
		{"config: a node that was unavailable denies to read it", pve.Fault{Kind: pve.FaultError, Path: own, Method: "GET", Status: 403,
			Reason: "Permission check failed (/vms/100000, VM.Audit)", Count: 3}},
		{"config: a node that was unavailable denies to write it", pve.Fault{Kind: pve.FaultError, Path: own, Method: "PUT", Status: 403,
			Reason: "Permission check failed (/vms/100000, VM.Config.Options)"}},
		{"start: response is lost", pve.Fault{Kind: pve.FaultCutConnection, Path: start}},
		{"start: end of the task is lost", pve.Fault{Kind: pve.FaultTaskLost, Path: start}},
		{"start: worker is killed", pve.Fault{Kind: pve.FaultTaskError, Path: start}},
		{"start: lock times out in the task", pve.Fault{Kind: pve.FaultTaskLock, Path: start}},
		{"start: ends with warnings", pve.Fault{Kind: pve.FaultWarnings, Path: start}},
		{"stop: response is lost", pve.Fault{Kind: pve.FaultCutConnection, Path: stop}},
		{"stop: fails", pve.Fault{Kind: pve.FaultTaskError, Path: stop}},
		{"destroy: response is lost", pve.Fault{Kind: pve.FaultCutConnection, Path: machine, Method: "DELETE"}},
		{"destroy: lock times out in the task", pve.Fault{Kind: pve.FaultTaskLock, Path: machine, Method: "DELETE"}},
		{"destroy: end of the task is lost", pve.Fault{Kind: pve.FaultTaskLost, Path: machine, Method: "DELETE"}},
		{"ISO: response is lost", pve.Fault{Kind: pve.FaultCutConnection, Path: iso, Method: "DELETE"}},
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

			_, sp := create(t, p, newSpec(1))

			if made := s.Snapshot().CreatedVMs(); len(made) != 1 || made[0].Starts != 1 {
				t.Errorf("created %+v", made)
			}

			remove(t, p, sp)
			expectNothingLeft(t, s)

			if len(s.Faults()) != 0 && c.fault.Count == 1 {
				t.Errorf("the fault never struck: %+v", s.Faults())
			}
		})
	}
}

// The connection breaks during an upload. The incomplete cloud-init ISO is not used.
func TestInterruptedUpload(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	cut := &cuttingTransport{}
	p := connect(t, s, func(_ *hypervisor.Config, o *hypervisor.Options) {
		o.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
			cut.next = next

			return cut
		}
	})

	_, sp := create(t, p, newSpec(1))
	snap := s.Snapshot()

	if len(snap.CreatedVMs()) != 1 || snap.CreatedVMs()[0].Starts != 1 || len(snap.ISOs()) != 1 {
		t.Errorf("created %+v, ISOs %+v", snap.CreatedVMs(), snap.ISOs())
	}

	if !cut.done.Load() {
		t.Error("no upload was cut")
	}

	remove(t, p, sp)
	expectNothingLeft(t, s)
}

// cuttingTransport is a transport that breaks the connection during the first upload.
type cuttingTransport struct {
	next http.RoundTripper
	done atomic.Bool
}

func (c *cuttingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
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

// Some faults need a person. The error names the fix, and the machine continues after the fix.
func TestTerminalErrors(t *testing.T) {
	t.Parallel()

	t.Run("a clone left locked", func(t *testing.T) {
		t.Parallel()

		s := pvetest.New(t, fastModel())
		p := connect(t, s)
		s.AddFault(pve.Fault{Kind: pve.FaultHalfClone, Count: 1})

		sp := newSpec(1)
		err := createError(t, p, &sp)
		requireError(t, err, hypervisor.Rejected, "still locked (clone)", "qm unlock 100000")
		requireError(t, p.Delete(t.Context(), newRef(sp)), hypervisor.Rejected, "qm unlock 100000")

		// The fix is to remove the lock.
		s.SetLock(sp.ID, "")
		s.DeleteVM(sp.ID)

		_, sp = create(t, p, sp)
		remove(t, p, sp)
	})

	t.Run("a clone that keeps failing", func(t *testing.T) {
		t.Parallel()

		s := pvetest.New(t, fastModel())
		p := connect(t, s)
		s.AddFault(pve.Fault{Kind: pve.FaultTaskError, Path: "/nodes/*/qemu/*/clone", Reason: "clone failed: copying did not work"})

		sp := newSpec(1)
		requireError(t, createError(t, p, &sp), "", "copying did not work", "100000")
	})

	t.Run("a storage that stays full", func(t *testing.T) {
		t.Parallel()

		s := pvetest.New(t, fastModel())
		p := connect(t, s)
		s.AddFault(pve.Fault{Kind: pve.FaultTaskError, Path: "/nodes/*/qemu/*/clone",
			Reason: "clone failed: lvcreate error: insufficient free space"})

		sp := newSpec(1)
		requireError(t, createError(t, p, &sp), hypervisor.NoCapacity, "insufficient free space")
	})

	t.Run("a machine that lost its record", func(t *testing.T) {
		t.Parallel()

		for _, status := range []string{"running", "stopped"} {
			checkMachineWithoutRecord(t, status)
		}
	})
}

// checkMachineWithoutRecord checks that a machine is not deleted after another client has replaced its ownership record.
func checkMachineWithoutRecord(t *testing.T, status string) {
	t.Helper()

	s := pvetest.New(t, fastModel())
	p := connect(t, s)
	made, sp := create(t, p, newSpec(1))

	if status == "stopped" {
		s.PowerOff(made.ID)
		timing.WaitUntil(t, "the machine is stopped", func() bool {
			machine, err := p.Get(t.Context(), newRef(sp))

			return err == nil && machine.State == hypervisor.StateStopped
		})
	}

	if err := newRootClient(t, s).Put(t.Context(), "/nodes/"+made.Node+"/qemu/100000/config",
		map[string]any{"description": "mine now"}, nil); err != nil {
		t.Fatal(err)
	}

	requireError(t, p.Delete(t.Context(), newRef(sp)), hypervisor.NotOwned, "100000")

	if vm, ok := s.Snapshot().VM(made.ID); !ok || vm.Status != status {
		t.Errorf("it was touched: %+v", vm)
	}
}

// A task fails, and the machine cannot be read right afterwards. The failure is returned nevertheless: each call counts as
// one failed attempt.
func TestFailedTaskIsReturnedAfterReadFails(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct{ path, read, reason string }{
		"start":  {"/status/start", "/nodes/*/qemu/*/status/current", "StartFailed"},
		"resize": {"/resize", "/nodes/*/qemu/*/config", "ResizeFailed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := pvetest.New(t, fastModel())
			p := connect(t, s)
			s.AddFault(pve.Fault{Kind: pve.FaultTaskError, Path: "/nodes/*/qemu/*" + tc.path, Reason: "boom"})

			sp := newSpec(1)
			sp.Shape.Disk = 100 * gib
			sp = reserve(t, p, sp)

			var removeFault func()

			readErrors, failures := 0, 0

			timing.WaitUntil(t, "two attempts have failed", func() bool {
				_, err := p.Start(t.Context(), sp, seed)

				switch failed, _ := errors.AsType[*hypervisor.Error](err); {
				case failed != nil && failed.Reason == tc.reason:
					failures++
				case err != nil && removeFault != nil:
					readErrors++
					removeFault()
				case removeFault == nil && countCalls(s, "", tc.path) == 1:
					removeFault = s.AddFault(pve.Fault{Kind: pve.FaultError, Method: http.MethodGet, Path: tc.read})
				}

				return failures == 2
			})

			if calls := countCalls(s, "", tc.path); calls != failures || readErrors == 0 {
				t.Errorf("%d calls, and %d of them are returned as failed; %d reads failed", calls, failures, readErrors)
			}
		})
	}
}

// A running VM migrates. The provider finds the VM on its new node and deletes it there.
func TestMigration(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel().WithSharedStorage())
	p := connect(t, s)
	made, sp := create(t, p, newSpec(1))

	other := "pve1"
	if made.Node == other {
		other = "pve2"
	}

	s.Migrate(made.ID, other)
	timing.WaitUntil(t, "it runs on "+other, func() bool {
		got, err := p.Get(t.Context(), newRef(sp))

		return err == nil && got.Node == other && got.State == hypervisor.StateRunning
	})

	// The VM migrates again, and no reconcile observes the migration.
	s.Migrate(made.ID, made.Node)
	timing.WaitUntil(t, "it is listed where it was", func() bool {
		all, err := p.List(t.Context())

		return err == nil && len(all) == 1 && all[0].Node == made.Node
	})
	remove(t, p, sp)
	expectNothingLeft(t, s)
}

// The status in the list lags behind by seconds. A machine that was just started does not count as stopped.
func TestStaleListing(t *testing.T) {
	t.Parallel()

	m := fastModel()
	m.StatusLag = time.Hour

	s := pvetest.New(t, m)
	p := connect(t, s, useRealTime)
	_, sp := create(t, p, newSpec(1))

	// The list still shows the status of the clone: stopped. A new process reads the status of the machine
	// itself.
	for who, p := range map[string]hypervisor.Provider{"the same process": p, "a new process": connect(t, s, useRealTime)} {
		if got, err := p.Get(t.Context(), newRef(sp)); err != nil || got.State != hypervisor.StateRunning {
			t.Errorf("get by %s: %+v %v", who, got, err)
		}
	}
}

// An upload of the previous leader ends after the machine and its cloud-init ISO were deleted. The new
// leader still has the record of the deletion and deletes the late ISO immediately.
func TestLateISO(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	p := connect(t, s)
	_, sp := create(t, p, newSpec(1))

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
	expectNothingLeft(t, s)
}

// createError continues the creation until it returns a terminal error, or an UnknownOutcome error if kinds
// contains that kind.
func createError(t testing.TB, p hypervisor.Provider, sp *hypervisor.MachineSpec, kinds ...hypervisor.Kind) (err error) {
	t.Helper()
	timing.WaitUntil(t, "there is an error", func() bool {
		var m hypervisor.Machine

		m, err = conformance.Advance(t.Context(), p, sp, seed)
		if err == nil && m.State == hypervisor.StateRunning {
			t.Fatal("it runs")
		}

		kind := hypervisor.KindOf(err)

		return err != nil && kind != hypervisor.Busy && (kind != hypervisor.UnknownOutcome || slices.Contains(kinds, kind))
	})

	return err
}

// requireError checks the kind of an error and the texts in its message.
func requireError(t testing.TB, err error, kind hypervisor.Kind, words ...string) {
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
