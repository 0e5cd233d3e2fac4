// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"cmp"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// TestNodesThatCannotBeUsed checks that the other nodes are used if a node has no storage for cloud-init ISOs or for
// disks, if its storage for ISOs is down, or if it has left the cluster and is still in spec.nodes.
func TestNodesThatCannotBeUsed(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		model   func(*pve.Model)
		started func(*pve.Server)
		// storage is the storage of the disks. Default: local-lvm.
		storage string
		warning string
	}{
		"no storage for ISOs": {
			model: func(m *pve.Model) { m.Storages[0].Nodes = []string{"pve2"} }, warning: "node pve1 is not used",
		},
		"no storage for disks": {
			model: func(m *pve.Model) {
				m.VMs, m.Storages[1].Nodes, m.Templates[0].Nodes = nil, []string{"pve2"}, []string{"pve2"}
			},
			warning: "node pve1 is not used",
		},
		"another storage for disks": {
			model: func(m *pve.Model) {
				m.Storages = append(m.Storages, pve.Storage{
					Name: "fast", Type: "lvmthin", Content: []string{"images"}, Size: 1024 * gib, Nodes: []string{"pve2"},
				})

				for _, grant := range m.ACL {
					if grant.Path == "/storage/local-lvm" {
						grant.Path = "/storage/fast"
						m.ACL = append(m.ACL, grant)
					}
				}
			},
			storage: "fast", warning: "node pve1 is not used",
		},
		"left the cluster": {
			started: func(s *pve.Server) { s.AddFault(pve.Fault{Kind: pve.FaultNodeLost, Node: "pve1"}) }, warning: "no node pve1",
		},
		"storage for ISOs down": {started: func(s *pve.Server) { s.SetStorageDown("pve1", "local", true) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			model := fastModel()
			if tc.model != nil {
				tc.model(&model)
			}

			s := pvetest.New(t, model)
			if tc.started != nil {
				tc.started(s)
			}

			p := connect(t, s, func(c *hypervisor.Config, _ *hypervisor.Options) {
				c.ISOStorage, c.DefaultStorage = "local", cmp.Or(tc.storage, "local-lvm")
				c.Nodes = []string{"pve1", "pve2", "pve3"}
			})

			info, err := p.Check(t.Context())
			if err != nil || !strings.Contains(strings.Join(info.Warnings, "; "), tc.warning) {
				t.Errorf("the check returns %v and the warnings %q", err, info.Warnings)
			}

			for n := range 6 {
				spec := newSpec(n)
				spec.Shape.Linked = tc.storage == ""

				if _, err := p.Resolve(t.Context(), spec.Template, spec.Shape); err != nil {
					t.Fatal(err)
				}

				reserved, err := p.Reserve(t.Context(), spec)
				if err != nil || reserved.Node == "pve1" {
					t.Errorf("machine %d is placed on node %q: %v", n, reserved.Node, err)
				}
			}
		})
	}
}

// TestResponsesWithoutData checks that a running machine does not count as stopped or gone while reads return status
// 200 and no data, also after a restart of the operator.
func TestResponsesWithoutData(t *testing.T) {
	t.Parallel()

	for _, body := range []string{`{"data":null}`, `{"data":null,"errors":{"vmid":"x"}}`, `{}`} {
		s := pvetest.New(t, fastModel())

		var isBroken atomic.Bool

		breakReads := func(_ *hypervisor.Config, o *hypervisor.Options) {
			o.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
				return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
					res, err := next.RoundTrip(r)
					if err == nil && r.Method == http.MethodGet && isBroken.Load() && !strings.HasSuffix(r.URL.Path, "/access/permissions") {
						_ = res.Body.Close()
						res.Body = io.NopCloser(strings.NewReader(body))
					}

					return res, err
				})
			}
		}

		first := connect(t, s, breakReads)
		_, spec := create(t, first, newSpec(1))
		isBroken.Store(true)

		for name, p := range map[string]hypervisor.Provider{"first": first, "restarted": connect(t, s, breakReads)} {
			for range 5 {
				ref := newRef(spec)
				ref.PowerOffReported = true

				m, err := p.Get(t.Context(), ref)
				if hypervisor.Is(err, hypervisor.NotFound) || m.State == hypervisor.StateStopped {
					t.Errorf("%s: with %s, the machine is %s: %v", name, body, m.State, err)
				}
			}

			if _, err := p.List(t.Context()); err == nil {
				t.Errorf("%s: with %s, the list succeeds", name, body)
			}
		}
	}
}
