// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// A cloud-init ISO is uploaded for another node than the connected node, and the connection between the
// nodes is slow. An upload to a shared storage does not need that connection. An upload to another storage
// returns an error of its own.
func TestUploadForAnotherNode(t *testing.T) {
	t.Parallel()

	const isos = "isos"

	for _, row := range []struct {
		name, storage string
		// only is the name of the only node that has the shared storage, or "" if all nodes have the
		// storage.
		only       string
		isReported bool
	}{
		{name: "shared", storage: isos},
		{name: "shared by other nodes than the called node", storage: isos, only: "pve2", isReported: true},
		{name: "its own", storage: "local", isReported: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()

			m := fastModel()
			m.Delays.SSH = time.Hour

			storage := pve.Storage{Name: isos, Type: "nfs", Content: []string{"iso"}, Shared: true, Size: 1 << 40}
			if row.only != "" {
				storage.Nodes = []string{row.only}
			}

			m.Storages = append(m.Storages, storage)
			for _, who := range []string{pve.DefaultUser, pve.DefaultTokenID} {
				m.ACL = append(m.ACL, pve.ACL{Path: "/storage/" + isos, Principal: who, Role: "HyperFleetISO"})
			}

			s := pvetest.New(t, m, pve.WithClock(conformance.FastClock(t, conformance.Speed)))
			p := connect(t, s, func(c *hypervisor.Config, _ *hypervisor.Options) {
				c.ISOStorage, c.Nodes = row.storage, []string{"pve2"}
			})
			want := newSpec(1)

			if row.isReported {
				requireError(t, createError(t, p, &want, hypervisor.UnknownOutcome), hypervisor.UnknownOutcome, "node pve2 over SSH", "shared isoStorage")

				return
			}

			_, want = create(t, p, want)
			remove(t, p, want)
			expectNothingLeft(t, s)

			for _, call := range s.Calls() {
				if strings.HasSuffix(call.Path, "/upload") && call.Path != "/nodes/localhost/storage/"+isos+"/upload" {
					t.Errorf("%s %s", call.Method, call.Path)
				}

				if call.Method == http.MethodDelete && call.Status != http.StatusOK {
					t.Errorf("%s %s: %d %s", call.Method, call.Path, call.Status, call.Reason)
				}
			}
		})
	}
}
