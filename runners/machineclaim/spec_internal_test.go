// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// The hypervisor gets the owner, the name, the template, the resources and the network of a machine.
func TestSpecOfMachine(t *testing.T) {
	t.Parallel()

	claim := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "a", UID: "u"}}
	claim.Spec.RunnerPoolRef = &v1alpha1.LocalObjectReference{Name: "linux"}
	claim.Status.VMRef = &v1alpha1.VMReference{VMID: "105", Node: "pve1"}

	template := &v1alpha1.HypervisorMachineTemplate{Spec: v1alpha1.HypervisorMachineTemplateSpec{
		Template:  v1alpha1.TemplateSource{Proxmox: &v1alpha1.ProxmoxTemplate{TemplateName: "debian"}},
		Resources: v1alpha1.MachineResources{CPU: 2, Memory: resource.MustParse("4Gi")},
		Network: &v1alpha1.MachineNetwork{Bridge: "vmbr1", Mode: v1alpha1.NetworkModeStatic, Static: &v1alpha1.StaticNetwork{
			IPAddress: "192.0.2.5", Netmask: "255.255.255.0", Gateway: "192.0.2.1",
		}},
	}}
	s := &scope{claim: claim, template: template, names: vmspec.Names{Hostname: "ci-a", DNSServers: []string{"192.0.2.53"}}}

	want := hypervisor.MachineSpec{
		Owner: hypervisor.Owner{Namespace: "ci", Name: "a", UID: "u", Pool: "linux"}, ID: 105, Node: "pve1", Hostname: "ci-a",
		Template: hypervisor.TemplateRef{Name: "debian"},
		Shape:    hypervisor.Shape{CPU: 2, Memory: 4 << 30, Linked: true, Bridge: "vmbr1", CloudInitSource: hypervisor.SourceNoCloud},
		Network: hypervisor.NetworkOptions{
			Addresses: []string{"192.0.2.5/24"}, Gateways: []string{"192.0.2.1"}, DNSServers: []string{"192.0.2.53"},
		},
	}
	if diff := cmp.Diff(want, s.newMachineSpec()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
