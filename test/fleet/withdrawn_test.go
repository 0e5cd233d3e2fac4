// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	gopve "github.com/luthermonson/go-proxmox"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// What machines are made of is taken away while one runs, and comes back or does not: a condition
// names it, the machine stays, one that is asked for meanwhile waits without asking again and
// again, and is made once it can be.
func TestWithdrawnWhileMachinesRun(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct {
		name string
		// take takes it away; back gives it back.
		take func(*fleet.Fleet)
		back func(*fleet.Fleet)
		// about is what has the condition.
		about func(f *fleet.Fleet, waits *v1alpha1.MachineClaim) step.Object
		says  string
	}{
		{
			name: "template", take: removeTemplate,
			back: func(f *fleet.Fleet) {
				asRoot(f, "/nodes/pve1/qemu", map[string]any{
					"vmid": 9001, "name": pve.DefaultTemplate, "memory": 512, "scsi0": "local-lvm:1", "net0": "virtio,bridge=vmbr0",
				})
				asRoot(f, "/nodes/pve1/qemu/9001/template", nil)
				// Its grants went with it.
				f.EventuallyCondition(f.NewTemplate(), step.Ready, metav1.ConditionFalse, "PermissionDenied")
				grant(f, "/vms/9001", "HyperFleetTemplate")
			},
			about: func(f *fleet.Fleet, _ *v1alpha1.MachineClaim) step.Object { return f.NewTemplate() },
			says:  pve.DefaultTemplate,
		},
		{
			name:  "storage of disks",
			take:  func(f *fleet.Fleet) { f.PVE.SetStorageDown("pve1", "local-lvm", true) },
			back:  func(f *fleet.Fleet) { f.PVE.SetStorageDown("pve1", "local-lvm", false) },
			about: func(_ *fleet.Fleet, waits *v1alpha1.MachineClaim) step.Object { return waits },
			says:  "local-lvm",
		},
		{
			name:  "storage of ISOs",
			take:  func(f *fleet.Fleet) { f.PVE.SetStorageDown("pve1", "local", true) },
			back:  func(f *fleet.Fleet) { f.PVE.SetStorageDown("pve1", "local", false) },
			about: func(_ *fleet.Fleet, waits *v1alpha1.MachineClaim) step.Object { return waits },
			says:  "storage 'local' is not online",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()

			model := fleet.Model().WithNodes(1)
			model.Guest.Script = func(vm pve.GuestVM) { <-vm.Context.Done() }

			f := fleet.New(t, env, fleet.Options{Model: model})
			f.CreateCluster(f.NewCluster())
			f.Create(f.NewTemplate())
			f.Start()

			runs, waits := f.NewClaim("runs"), f.NewClaim("waits")
			f.Create(runs)
			eventuallyRunning(f, 1)
			tc.take(f)
			f.Create(waits)

			f.Eventually("a condition that names the "+tc.name, func() (bool, string) {
				said := notReady(t, f, tc.about(f, waits))

				return strings.Contains(said, tc.says), said
			})

			if made := running(f); made != 1 {
				t.Errorf("%d machines run, want the one that did", made)
			}

			if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(runs), runs); err != nil || runs.Status.EndReason != "" {
				t.Errorf("the claim of the machine that runs: %+v, %v", runs.Status, err)
			}

			tc.back(f)
			eventuallyRunning(f, 2)

			// Seven tries a minute, and what was made before it was known.
			if n := calls(f.PVE, http.MethodPost, "/nodes/*/qemu/*/clone") + calls(f.PVE, http.MethodPost, "/nodes/*/storage/*/upload"); n > 20 {
				t.Errorf("%d clones and uploads for two machines", n)
			}

			for _, claim := range []*v1alpha1.MachineClaim{runs, waits} {
				if err := f.Client.Delete(t.Context(), claim); err != nil {
					t.Fatal(err)
				}
			}

			f.EventuallyClean()
		})
	}
}

// removeTemplate removes the template, as a person would, whose machines stay.
func removeTemplate(f *fleet.Fleet) {
	f.T.Helper()

	if err := asAdministrator(f).Delete(f.T.Context(), "/nodes/pve1/qemu/9001", nil); err != nil {
		f.T.Fatal(err)
	}

	f.EventuallyCondition(f.NewTemplate(), step.Ready, metav1.ConditionFalse, "TemplateNotFound")
}

func asAdministrator(f *fleet.Fleet) *gopve.Client {
	return gopve.NewClient(f.PVE.URL()+"/api2/json", gopve.WithHTTPClient(f.PVE.HTTPClient()),
		gopve.WithCredentials(&gopve.Credentials{Username: pve.RootUser, Password: pve.DefaultPassword}), gopve.WithEagerAuth())
}

// grant gives the operator's user and its token a role on a path.
func grant(f *fleet.Fleet, path, role string) {
	f.T.Helper()

	if err := asAdministrator(f).Put(f.T.Context(), "/access/acl", map[string]any{
		"path": path, "users": pve.DefaultUser, "tokens": pve.DefaultTokenID, "roles": role,
	}, nil); err != nil {
		f.T.Fatal(err)
	}
}

// asRoot has the administrator make a change, and waits for its task.
func asRoot(f *fleet.Fleet, path string, params map[string]any) {
	f.T.Helper()

	var upid string
	if err := asAdministrator(f).Post(f.T.Context(), path, params, &upid); err != nil {
		f.T.Fatal(err)
	}

	f.Eventually("task "+upid, func() (bool, string) {
		for _, task := range f.PVE.Snapshot().Tasks {
			if task.UPID == upid {
				return task.Exit == "OK", task.Exit
			}
		}

		return false, "no such task"
	})
}

func running(f *fleet.Fleet) int {
	n := 0

	for _, vm := range f.PVE.Snapshot().Made() {
		if vm.Status == "running" {
			n++
		}
	}

	return n
}

func eventuallyRunning(f *fleet.Fleet, n int) {
	f.T.Helper()
	f.Eventually(fmt.Sprintf("%d machines running", n), func() (bool, string) { return running(f) == n, f.Describe() })
}
