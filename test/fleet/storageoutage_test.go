// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"net/http"
	"regexp"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// TestStorageOutageWhileMachinesRun checks that a condition names a storage that is unavailable while a machine
// runs, that the machine stays, and that a new machine is created after the outage, without many retries during
// it.
func TestStorageOutageWhileMachinesRun(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct {
		name string
		// take starts the outage, and back ends it.
		take func(*fleet.Fleet)
		back func(*fleet.Fleet)
		// says is either the message of the placement, or that of a call after a placement from before the outage.
		says *regexp.Regexp
	}{
		{
			name: "storage of disks",
			take: func(f *fleet.Fleet) { f.PVE.SetStorageDown("pve1", "local-lvm", true) },
			back: func(f *fleet.Fleet) { f.PVE.SetStorageDown("pve1", "local-lvm", false) },
			says: regexp.MustCompile("local-lvm"),
		},
		{
			name: "storage of ISOs",
			take: func(f *fleet.Fleet) { f.PVE.SetStorageDown("pve1", "local", true) },
			back: func(f *fleet.Fleet) { f.PVE.SetStorageDown("pve1", "local", false) },
			says: regexp.MustCompile("storage 'local' is not online|storage local because"),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()

			f := newFastFleet(t, fleet.Options{Model: fleet.Model().WithNodes(1), Guest: runIdleGuest})
			runs, waits := f.NewClaim("runs"), f.NewClaim("waits")
			createAndStart(f, f.NewTemplate(), runs)
			eventuallyRunning(f, 1)
			tc.take(f)
			f.Create(waits)

			f.Eventually("a condition that names the "+tc.name, func() (bool, string) {
				message := describeNotReady(f, waits)

				return tc.says.MatchString(message), message
			})

			if n := len(listRunning(f)); n != 1 {
				t.Errorf("%d machines run, want 1", n)
			}

			if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(runs), runs); err != nil || runs.Status.EndReason != "" {
				t.Errorf("the claim of the running machine: %+v, %v", runs.Status, err)
			}

			tc.back(f)
			eventuallyRunning(f, 2)

			// The operator retries seven times a minute, plus the calls before it detected the outage.
			if n := countCalls(f.PVE, http.MethodPost, "/nodes/*/qemu/*/clone") + countCalls(f.PVE, http.MethodPost, "/nodes/*/storage/*/upload"); n > 20 {
				t.Errorf("%d clones and uploads for two machines, want at most 20", n)
			}

			deleteObject(f, runs)
			deleteObject(f, waits)
			f.EventuallyClean()
		})
	}
}
