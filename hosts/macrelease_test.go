// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	sim "github.com/hyperfleet/hyperfleet/sim/scaleway"
)

func TestReleaseOfAnOrderedServer(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.createMachine("mac-1", nil)
	w.provisionFully("mac-1")
	w.updateStatus("mac-1", func(s *macStatus) { s.Bootstrapped = true })

	w.requireResult(w.release("mac-1"), "Done")

	if got := w.requireServers(1)[0]; !got.DeletionScheduled || got.Installs != 2 {
		t.Errorf("server %+v: want it reinstalled, and scheduled for deletion at the end of its minimum lease", got)
	}

	if got := w.getMachine("mac-1").Status; got.ServerID != "" || got.ProviderID != "" {
		t.Errorf("status %+v", got)
	}

	w.clock.Step(24 * time.Hour)
	w.requireServers(0)
}

func TestReleaseAfterTheLease(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.createMachine("mac-1", nil)
	w.provisionFully("mac-1")
	w.clock.Step(25 * time.Hour)

	w.requireResult(w.release("mac-1"), "Done")
	w.requireServers(0)
	w.requireResult(w.release("mac-1"), "Done")
}

func TestReleaseToThePool(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.sim.AddServer("pool-1", "M4-S")
	w.createMachine("mac-1", func(s *macSpec) { s.AdoptPoolPrefix = "pool-" })
	w.provisionFully("mac-1")
	w.updateStatus("mac-1", func(s *macStatus) { s.Bootstrapped = true })
	w.clock.Step(25 * time.Hour)

	w.requireResult(w.release("mac-1"), "Done")

	if got := w.requireServers(1)[0]; got.Name != "pool-1" || got.Installs != 2 || got.DeletionScheduled {
		t.Errorf("server %+v: want it reinstalled, with its old name", got)
	}

	w.createMachine("mac-2", func(s *macSpec) { s.AdoptPoolPrefix = "pool-" })
	w.requireResult(w.provision("mac-2"), "PoolEmpty")
	w.clock.Step(20 * time.Minute)
	w.provisionFully("mac-2")
}

// The server is busy, the API has an outage, and the operator restarts.
func TestReleaseDuringOutage(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.createMachine("mac-1", nil)
	w.provisionFully("mac-1")
	w.updateStatus("mac-1", func(s *macStatus) { s.BootstrapAttempts = 3 })
	w.requireResult(w.runFirstBoot("mac-1"), "Rebooting")

	w.requireResult(w.release("mac-1"), "WaitingForServer")
	w.clock.Step(2 * time.Minute)

	w.sim.Inject(sim.Fault{Method: "PATCH", Status: 500, Times: 3})

	if got := w.release("mac-1"); !strings.HasPrefix(got, "fail: ") {
		t.Fatalf("the reconcile ended with %s", got)
	}

	w.restart()
	w.requireResult(w.release("mac-1"), "Done")

	if got := w.requireServers(1)[0]; got.Installs != 2 || !got.DeletionScheduled {
		t.Errorf("server %+v: want it reinstalled once", got)
	}
}

// An order without a response leaves no server behind that costs money.
func TestReleaseOfAnOpenOrder(t *testing.T) {
	t.Parallel()

	for name, carriedOut := range map[string]bool{"executed": true, "not executed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newMacFixture(t, sim.Options{})
			w.createMachine("mac-1", nil)
			w.sim.Inject(sim.Fault{Method: post, Path: "/servers", Status: 504, RunsCall: carriedOut})
			w.provision("mac-1")
			w.sim.ClearFaults()

			if carriedOut {
				w.requireResult(w.release("mac-1"), "Done")
				w.clock.Step(24 * time.Hour)
			} else {
				w.requireResult(w.release("mac-1"), "OrderUnknown")
				w.clock.Step(3 * time.Minute)
				w.requireResult(w.release("mac-1"), "Done")
			}

			w.requireServers(0)
		})
	}
}

func TestReleaseWithoutAServer(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.createMachine("mac-1", func(s *macSpec) { s.CredentialsSecretRef.Name = "absent" })
	w.requireResult(w.release("mac-1"), "Done")

	w.createMachine("mac-2", nil)
	w.provisionFully("mac-2")
	w.sim.RemoveServer(w.getMachine("mac-2").Status.ServerID)
	w.requireResult(w.release("mac-2"), "Done")
}

// A machine whose server was adopted by another cluster does not wipe the server.
func TestReleaseOfAServerThatAnotherClusterHas(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	server := w.sim.AddServer("pool-1", "M4-S")
	w.createMachine("mac-1", func(s *macSpec) { s.AdoptPoolPrefix = "pool-" })
	w.requireResult(w.provision("mac-1"), "Adopting")
	w.sim.Rename(server.ID, "hf-theirs-uid")
	w.updateStatus("mac-1", func(s *macStatus) { s.SSHHostKey = "SHA256:x" })
	w.requireResult(w.release("mac-1"), "Done")

	if got := w.requireServers(1)[0]; got.Installs != 1 || got.Name != "hf-theirs-uid" {
		t.Errorf("server %+v: want it unchanged", got)
	}
}

func TestRebootOnceAfterThreeFailures(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.createMachine("mac-1", nil)
	w.provisionFully("mac-1")

	reboots := func() int { return w.sim.Calls()["POST /apple-silicon/v1alpha1/zones/fr-par-1/servers/ID/reboot"] }

	for attempts := int32(1); attempts < 8; attempts++ {
		w.updateStatus("mac-1", func(s *macStatus) { s.BootstrapAttempts = attempts })

		if attempts == 3 {
			w.requireResult(w.runFirstBoot("mac-1"), "Rebooting")
			w.requireResult(w.runFirstBoot("mac-1"), "WaitingForServer")
			w.clock.Step(2 * time.Minute)
		}

		w.requireResult(w.runFirstBoot("mac-1"), "Done")
	}

	if reboots() != 1 {
		t.Errorf("%d restarts, want one", reboots())
	}
}

// After a terminally failed first boot the server is wiped and released once. The machine reports that
// until a person clears the failure.
func TestServerThatRefusesItsFirstBoot(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.createMachine("mac-1", nil)
	w.provisionFully("mac-1")

	failed := metav1.NewTime(w.clock.Now())
	w.updateStatus("mac-1", func(s *macStatus) {
		s.BootstrapAttempts, s.BootstrapRebootIssued, s.SSHHostKey = 8, true, "SHA256:x"
		s.FailureReason, s.FailureMessage = infrav1.FailureBootstrapExceededRetries, "it refused"
		s.FailedHostConfigHash, s.LastUpdateFailureTime, s.Phase = w.kind.Hash(), &failed, infrav1.HostFailed
	})

	for range 3 {
		w.requireResult(w.provision("mac-1"), infrav1.FailureBootstrapExceededRetries)
		w.clock.Step(time.Minute)
	}

	got := w.getMachine("mac-1").Status
	if got.ServerID != "" || got.SSHHostKey != "" || len(got.Addresses) != 0 || got.Phase != infrav1.HostFailed ||
		got.FailureMessage != "it refused; the server was released: clear status.failureReason to get another server" {
		t.Errorf("status %+v", got)
	}

	if server := w.requireServers(1)[0]; server.Installs != 2 || !server.DeletionScheduled {
		t.Errorf("server %+v: want it reinstalled and scheduled for deletion", server)
	}

	w.updateStatus("mac-1", func(s *macStatus) { s.FailureReason, s.FailureMessage = "", "" })
	w.requireResult(w.provision("mac-1"), "WaitingForServer")

	if got := w.getMachine("mac-1").Status; got.BootstrapAttempts != 0 || got.BootstrapRebootIssued {
		t.Errorf("the status still has failures of the old server: %+v", got)
	}
}
