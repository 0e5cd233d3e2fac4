// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// addRelease adds a template with tags to the model, which was created at a time on the given nodes.
func addRelease(m *pve.Model, name string, firstVMID int, tags, meta string, nodes ...string) {
	config := map[string]string{"tags": tags, "meta": meta}
	m.Templates = append(slices.Clone(m.Templates), pve.Template{
		Name: name, VMID: firstVMID, Storage: m.Templates[0].Storage, Nodes: nodes, Config: config,
	})
	m.ACL = slices.Clone(m.ACL)

	for i := range max(len(nodes), len(m.Nodes)) {
		for _, principal := range []string{pve.DefaultUser, pve.DefaultTokenID} {
			m.ACL = append(m.ACL, pve.ACL{Path: fmt.Sprintf("/vms/%d", firstVMID+i), Principal: principal, Role: "HyperFleetTemplate"})
		}
	}
}

func newMeta(seconds int) string { return fmt.Sprintf("creation-qemu=10.1.2,ctime=%d", seconds) }

func TestTemplatesByTags(t *testing.T) {
	t.Parallel()

	newest := hypervisor.TemplateRef{Tags: "runner,linux", Newest: true}

	for name, tc := range map[string]struct {
		model func(*pve.Model)
		ref   hypervisor.TemplateRef
		want  []int
		kind  hypervisor.Kind
		words string
	}{
		"the only release": {
			model: func(m *pve.Model) { addRelease(m, "r1", 9011, "linux;runner;x", newMeta(100)) },
			ref:   hypervisor.TemplateRef{Tags: "runner,linux"}, want: []int{9011, 9012, 9013},
		},
		"another case": {
			model: func(m *pve.Model) { addRelease(m, "r1", 9011, "linux;runner", newMeta(100)) },
			ref:   hypervisor.TemplateRef{Tags: "Runner,LINUX"}, want: []int{9011, 9012, 9013},
		},
		"the newest release": {
			model: func(m *pve.Model) {
				addRelease(m, "b-old", 9011, "linux;runner", newMeta(100))
				addRelease(m, "a-new", 9021, "linux;runner", newMeta(200))
				addRelease(m, "c-without-a-tag", 9031, "linux", newMeta(300))
			},
			ref: newest, want: []int{9021, 9022, 9023},
		},
		"a late copy of the old release": {
			model: func(m *pve.Model) {
				addRelease(m, "old", 9011, "linux;runner", newMeta(100), "pve1")
				addRelease(m, "old", 9012, "linux;runner", newMeta(300), "pve2")
				addRelease(m, "new", 9021, "linux;runner", newMeta(200), "pve1")
			},
			ref: newest, want: []int{9021},
		},
		"the same time": {
			model: func(m *pve.Model) {
				addRelease(m, "r-05", 9011, "linux;runner", newMeta(100))
				addRelease(m, "r-06", 9021, "linux;runner", newMeta(100))
			},
			ref: newest, want: []int{9021, 9022, 9023},
		},
		"the selected release": {
			model: func(m *pve.Model) {
				addRelease(m, "old", 9011, "linux;runner", newMeta(100), "pve1")
				addRelease(m, "new", 9021, "linux;runner", newMeta(200), "pve1")
				addRelease(m, "old", 9031, "linux", newMeta(50), "pve2")
			},
			ref: hypervisor.TemplateRef{Tags: "runner,linux", Name: "old"}, want: []int{9011},
		},
		"several releases": {
			model: func(m *pve.Model) {
				addRelease(m, "old", 9011, "linux;runner", newMeta(100))
				addRelease(m, "new", 9021, "linux;runner", newMeta(200))
			},
			ref:  hypervisor.TemplateRef{Tags: "runner"},
			kind: hypervisor.Rejected, words: "the templates new, old have the tags runner: set template.proxmox.newest",
		},
		"no such tag": {
			model: func(m *pve.Model) { addRelease(m, "r1", 9011, "linux", newMeta(100)) },
			ref:   newest, kind: hypervisor.NotFound, words: "there is no template with the tags runner,linux",
		},
		"a machine with the tags": {
			model: func(m *pve.Model) {
				m.VMs = slices.Clone(m.VMs)
				m.VMs[0].Config = map[string]string{"tags": "runner;linux"}
			},
			ref: newest, kind: hypervisor.NotFound, words: "there is no template with the tags",
		},
		"a release without a time": {
			model: func(m *pve.Model) {
				addRelease(m, "old", 9011, "linux;runner", newMeta(100))
				addRelease(m, "new", 9021, "linux;runner", "creation-qemu=6.1")
			},
			ref: newest, kind: hypervisor.Rejected, words: "template 9021 (new) on node pve1 has no creation time",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p := connectChanged(t, tc.model, nil)
			found, err := p.Resolve(t.Context(), tc.ref, newSpec(1).Shape)

			if tc.kind != "" {
				if !hypervisor.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.words) {
					t.Errorf("error %v, want ...%s...", err, tc.words)
				}

				return
			}

			if err != nil {
				t.Fatal(err)
			}

			var ids []int
			for _, template := range found {
				ids = append(ids, template.ID)
			}

			slices.Sort(ids)

			if diff := cmp.Diff(tc.want, ids); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A machine is cloned from the template with the tags, and a node that does not respond does not hide the
// releases of the other nodes.
func TestMachineOfTaggedTemplate(t *testing.T) {
	t.Parallel()

	p := connectChanged(t, func(m *pve.Model) {
		addRelease(m, "old", 9011, "runner", newMeta(100))
		addRelease(m, "new", 9021, "runner", newMeta(200))
	}, nil)

	spec := newSpec(1)
	spec.Template = hypervisor.TemplateRef{Tags: "runner", Name: "old"}

	if made, _ := create(t, p, spec); made.ID == 0 {
		t.Errorf("no machine: %+v", made)
	}
}

// With nested virtualization, a machine has the CPU of its node, whatever its template has.
func TestNestedVirtualization(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		template string
		nested   bool
		want     string
	}{
		"not requested":                {"x86-64-v2-AES", false, "x86-64-v2-AES"},
		"another CPU":                  {"x86-64-v2-AES", true, "host"},
		"no CPU":                       {"", true, "host"},
		"the node's CPU":               {"host,flags=+aes", true, "host,flags=+aes"},
		"the node's CPU, in long form": {"cputype=host", true, "cputype=host"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := fastModel()
			m.Templates = slices.Clone(m.Templates)
			m.Templates[0].Config = map[string]string{"cpu": tc.template}
			s := pvetest.New(t, m)
			spec := newSpec(1)
			spec.Shape.Nested = tc.nested

			made, _ := create(t, connect(t, s), spec)
			if vm, _ := s.Snapshot().VM(made.ID); vm.Config["cpu"] != tc.want {
				t.Errorf("the CPU is %q, want %q", vm.Config["cpu"], tc.want)
			}
		})
	}
}

func TestOperatingSystemOfTemplates(t *testing.T) {
	t.Parallel()

	for ostype, want := range map[string]string{
		"l26": hypervisor.OSLinux, "win11": hypervisor.OSWindows, "w2k8": hypervisor.OSWindows, "other": "", "solaris": "",
	} {
		p := connectChanged(t, func(m *pve.Model) {
			m.Templates = slices.Clone(m.Templates)
			m.Templates[0].Config = map[string]string{"ostype": ostype}
		}, nil)

		found, err := p.Resolve(t.Context(), newSpec(1).Template, newSpec(1).Shape)
		if err != nil || len(found) == 0 || found[0].OS != want {
			t.Errorf("ostype %s: %+v, %v; want %q", ostype, found, err, want)
		}
	}
}
