// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	gopve "github.com/luthermonson/go-proxmox"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// choice is a value for a field of a template, and the reason for which it is rejected, or "" if it is valid.
type choice struct {
	value  any
	reason string
}

// newChoices returns the choices, with valid ones several times.
func newChoices(all ...choice) []any {
	out := make([]any, 0, len(all))
	for _, c := range all {
		out = append(out, c)

		if c.reason == "" {
			out = append(out, c, c) // otherwise hardly any template would be valid in all fields
		}
	}

	return out
}

// testTemplates checks that a template is ready if and only if the hypervisor can create machines from it, that it
// reports why it is not ready, and that it is not ready after the VM template is deleted.
func testTemplates(t *testing.T, w *fixture) {
	t.Helper()

	options := newOptions(6, 16)
	site, own := newTemplateSite(w, options.RunCount())
	sources := newChoices(
		choice{pve.DefaultTemplate, ""}, choice{9001, ""}, choice{9003, ""},
		choice{4711, "TemplateNotFound"}, choice{"nowhere", "TemplateNotFound"},
		choice{100, "NotATemplate"}, choice{"accounting", "NotATemplate"},
	)
	memories := newChoices(choice{"512Mi", ""}, choice{"8Gi", ""}, choice{"4Ti", "ResourcesExceedNode"})
	bridges := newChoices(choice{"vmbr0", ""}, choice{"", ""}, choice{"vmbr7", "BridgeNotFound"})
	texts := newChoices(
		choice{"", ""}, choice{"#cloud-config\nhostname: {{ .Hostname }}\n", ""}, choice{"#!/bin/sh\necho\n", ""},
		choice{"#cloud-config\nhostname: {{ .Hostname }\n", "CloudInitInvalid"},
		choice{"#cloud-config\nhostname: {{ .Nobody }}\n", "CloudInitInvalid"},
	)

	property.Check(t, "a template is ready if it is valid", options, prop.ForAllNoShrink(
		func(source, memory, bridge, text choice, disappears bool) string {
			template := site.NewTemplate(w.Fleet, w.newName("valid"))
			template.Spec.Template.Proxmox = newProxmoxTemplate(source.value)
			template.Spec.Resources.Memory = resource.MustParse(memory.value.(string))
			template.Spec.Network = &v1alpha1.MachineNetwork{Bridge: bridge.value.(string)}
			template.Spec.CloudInit = &v1alpha1.CloudInit{UserData: text.value.(string)}
			reasons := listReasons(source, memory, bridge, text)
			id := 0

			if disappears && source.reason == "" {
				id = <-own
				template.Spec.Template.Proxmox = newProxmoxTemplate(id)
			}

			return firstProblem(
				func() string { return w.create(template) },
				func() string { return w.waitForReady(template, len(reasons) == 0) },
				func() string { return checkReason(template, reasons) },
				func() string {
					if id == 0 {
						return ""
					}

					if err := newAdminClient(site.PVE).Delete(context.Background(), fmt.Sprintf("/nodes/pve1/qemu/%d", id), nil); err != nil {
						return err.Error()
					}

					if len(reasons) > 0 {
						return ""
					}

					return w.waitForReady(template, false) + checkReason(template, []string{"TemplateNotFound"})
				},
				func() string { return w.delete(template) },
			)
		},
		gen.OneConstOf(sources...), gen.OneConstOf(memories...), gen.OneConstOf(bridges...), gen.OneConstOf(texts...), gen.Bool()))
}

// newProxmoxTemplate returns a reference by name or by ID.
func newProxmoxTemplate(value any) *v1alpha1.ProxmoxTemplate {
	if name, ok := value.(string); ok {
		return &v1alpha1.ProxmoxTemplate{TemplateName: name}
	}

	id := int32(value.(int))

	return &v1alpha1.ProxmoxTemplate{TemplateID: &id}
}

// listReasons returns the reasons for which the choices are rejected.
func listReasons(all ...choice) []string {
	var out []string

	for _, c := range all {
		if c.reason != "" {
			out = append(out, c.reason)
		}
	}

	return out
}

// checkReason returns a message if the reason of the object is not one of the reasons.
func checkReason(obj step.Object, reasons []string) string {
	ready := meta.FindStatusCondition(*obj.StatusConditions(), step.Ready)
	if len(reasons) == 0 {
		return ""
	}

	if !slices.Contains(reasons, ready.Reason) || ready.Message == "" {
		return fmt.Sprintf("want one of %v, got %s", reasons, describeConditions(obj))
	}

	return ""
}

// newTemplateSite creates a site with enough VM templates that each run can delete one.
func newTemplateSite(w *fixture, runs int) (*fleet.Site, chan int) {
	model := fleet.Model()
	own := make(chan int, 2*runs)

	for i := range cap(own) {
		id := 8000 + i
		own <- id

		model.Templates = append(model.Templates, pve.Template{
			Name: fmt.Sprintf("own-%d", i), VMID: id, Nodes: []string{"pve1"}, Storage: "local-lvm", DiskSize: 1,
		})
		for _, who := range []string{pve.DefaultUser, pve.DefaultTokenID} {
			model.ACL = append(model.ACL, pve.ACL{Path: fmt.Sprintf("/vms/%d", id), Principal: who, Role: "HyperFleetTemplate"})
		}
	}

	return w.createSite("templates", false, model), own
}

// newAdminClient returns a client of the hypervisor with all privileges.
func newAdminClient(server *pve.Server) *gopve.Client {
	return gopve.NewClient(server.URL()+"/api2/json", gopve.WithHTTPClient(server.HTTPClient()),
		gopve.WithCredentials(&gopve.Credentials{Username: pve.RootUser, Password: pve.DefaultPassword}), gopve.WithEagerAuth())
}

// testResolution checks that a template is found by its ID, or by its name, which templates on several nodes may
// have.
func testResolution(t *testing.T, w *fixture) {
	t.Helper()

	model := fleet.Model()
	model.Templates = []pve.Template{
		{Name: "everywhere", VMID: 9001, Storage: "local-lvm", DiskSize: 4},
		{Name: "on-one", VMID: 9101, Nodes: []string{"pve2"}, Storage: "local-lvm", DiskSize: 8},
		{Name: "on-two", VMID: 9201, Nodes: []string{"pve1", "pve3"}, Storage: "local-lvm", DiskSize: 16},
	}

	for i := range model.ACL {
		if strings.HasPrefix(model.ACL[i].Path, "/vms/900") {
			model.ACL[i].Path = "/vms"
		}
	}

	site := w.createSite("resolution", true, model)
	byName := map[string][]int{"everywhere": {9001, 9002, 9003}, "on-one": {9101}, "on-two": {9201, 9202}}
	refs := []any{}

	for _, name := range slices.Sorted(maps.Keys(byName)) {
		refs = append(refs, choice{value: name})
		for _, id := range byName[name] {
			refs = append(refs, choice{value: id})
		}
	}

	property.Check(t, "a reference resolves to the right templates", newOptions(5, 16), prop.ForAllNoShrink(func(ref choice, uses bool) string {
		template := site.NewTemplate(w.Fleet, w.newName("ref"))
		template.Spec.Template.Proxmox = newProxmoxTemplate(ref.value)

		want := byName[fmt.Sprint(ref.value)]
		if id, ok := ref.value.(int); ok {
			want = []int{id}
		}

		claim := w.NewClaim(template.Name)
		claim.Spec.TemplateRef.Name = template.Name

		return firstProblem(
			func() string { return w.create(template) },
			func() string { return w.waitForReady(template, true) },
			func() string {
				var got []int

				for _, source := range template.Status.Sources {
					id, _ := strconv.Atoi(source.ID) // 0 is not in want
					got = append(got, id)
				}

				slices.Sort(got)

				if !slices.Equal(got, want) {
					return fmt.Sprintf("%v resolved to %v, want %v", ref.value, got, want)
				}

				return ""
			},
			func() string {
				if !uses {
					return ""
				}

				return firstProblem(
					func() string { return w.create(claim) },
					func() string {
						return w.waitForPhase(claim, v1alpha1.MachineClaimBootstrapping, v1alpha1.MachineClaimReady)
					},
					func() string { return checkNode(template, claim) },
					func() string { return w.delete(claim) },
					func() string { return w.waitForDeletion(claim) },
				)
			},
			func() string { return w.delete(template) },
		)
	}, gen.OneConstOf(refs...), gen.Bool()))
}

// checkNode returns a message if the machine is not on a node of one of the template's sources.
func checkNode(template *v1alpha1.HypervisorMachineTemplate, claim *v1alpha1.MachineClaim) string {
	if claim.Status.VMRef == nil {
		return "no machine was created: " + describeConditions(claim)
	}

	for _, source := range template.Status.Sources {
		if source.Node == claim.Status.VMRef.Node {
			return ""
		}
	}

	return "the machine is on node " + claim.Status.VMRef.Node + ", which does not have the template"
}
