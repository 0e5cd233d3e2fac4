// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"
)

func TestMaskBits(t *testing.T) {
	t.Parallel()

	cases := map[string]int{
		"255.255.255.0": 24, "255.255.252.0": 22, "0.0.0.0": 0, "255.255.255.255": 32, "24": 24, "64": 64, "0": 0,
		"255.0.255.0": -1, "129": -1, "-1": -1, "": -1, "mask": -1, "ffff:ffff::": 32,
	}
	for mask, want := range cases {
		if got := vmspec.ParseNetmask(mask); got != want {
			t.Errorf("ParseNetmask(%q) = %d, want %d", mask, got, want)
		}
	}
}

// The spec of a claim can name its runner.
func TestRunnerNameOfTheSpec(t *testing.T) {
	t.Parallel()

	claim := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Name: "pool-abc12", UID: "11111111-2222-4333-8444-555555555555"}}

	for _, row := range []struct {
		config *v1alpha1.WorkloadConfig
		want   string
	}{
		{nil, "pool-abc12-11111111"},
		{&v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{}}, "pool-abc12-11111111"},
		{&v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{RunnerName: "runner-abc123"}}, "runner-abc123"},
	} {
		claim.Spec.WorkloadConfig.Config = row.config

		request := vmspec.NewRunnerRequest(claim, workload.RunnerSpec{}, vmspec.Settings{})
		if got := vmspec.RunnerName(claim); got != row.want || request.Name != row.want {
			t.Errorf("runner %s, in the request %s, want %s", got, request.Name, row.want)
		}
	}
}

func TestNamesOf(t *testing.T) {
	t.Parallel()

	claim := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "pool-abc12"}}
	cluster := &v1alpha1.HypervisorCluster{Spec: v1alpha1.HypervisorClusterSpec{DNS: &v1alpha1.HypervisorDNS{
		Domain: "fleet.example", Servers: []string{"192.0.2.1"}, Search: []string{"fleet.example"},
	}}}
	machineIdentity := &v1alpha1.HypervisorMachineTemplate{Spec: v1alpha1.HypervisorMachineTemplateSpec{Network: &v1alpha1.MachineNetwork{
		DNS: &v1alpha1.MachineDNS{Domain: "own.example"},
	}}}
	plain := &v1alpha1.HypervisorMachineTemplate{}

	cases := map[string]struct {
		template      *v1alpha1.HypervisorMachineTemplate
		cluster       *v1alpha1.HypervisorCluster
		withNamespace bool
		want          vmspec.Names
	}{
		"without any DNS settings the FQDN is the host name": {
			plain, &v1alpha1.HypervisorCluster{}, false,
			vmspec.Names{Hostname: "pool-abc12", FQDN: "pool-abc12"},
		},
		"the cluster's domain": {plain, cluster, false, vmspec.Names{
			Hostname: "pool-abc12", FQDN: "pool-abc12.fleet.example", Domain: "fleet.example",
			DNSServers: []string{"192.0.2.1"}, SearchDomains: []string{"fleet.example"},
		}},
		"the template's domain takes precedence, the rest stays": {machineIdentity, cluster, true, vmspec.Names{
			Hostname: "ci-pool-abc12", FQDN: "ci-pool-abc12.own.example", Domain: "own.example",
			DNSServers: []string{"192.0.2.1"}, SearchDomains: []string{"fleet.example"},
		}},
		"the template's servers and search domains take precedence": {
			&v1alpha1.HypervisorMachineTemplate{Spec: v1alpha1.HypervisorMachineTemplateSpec{Network: &v1alpha1.MachineNetwork{
				DNS: &v1alpha1.MachineDNS{Search: []string{"a.example", "b.example"}, Servers: []string{"192.0.2.2"}},
			}}},
			cluster, false, vmspec.Names{
				Hostname: "pool-abc12", FQDN: "pool-abc12.fleet.example", Domain: "fleet.example",
				DNSServers: []string{"192.0.2.2"}, SearchDomains: []string{"a.example", "b.example"},
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if diff := cmp.Diff(tc.want, vmspec.NewNames(claim, tc.template, tc.cluster, tc.withNamespace)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The hypervisor gets the addresses of a template's static network, beside the names' DNS servers.
func TestNetworkOptionsOfAStaticNetwork(t *testing.T) {
	t.Parallel()

	static := &v1alpha1.StaticNetwork{IPAddress: "192.0.2.5", Netmask: "255.255.255.0", Gateway: "192.0.2.1", DNS: []string{"192.0.2.3"}}
	template := &v1alpha1.HypervisorMachineTemplate{Spec: v1alpha1.HypervisorMachineTemplateSpec{
		Network: &v1alpha1.MachineNetwork{Mode: v1alpha1.NetworkModeStatic, Static: static},
	}}
	names := vmspec.Names{DNSServers: []string{"192.0.2.2"}, SearchDomains: []string{"a.example"}}
	want := hypervisor.NetworkOptions{
		Addresses: []string{"192.0.2.5/24"}, Gateways: []string{"192.0.2.1"},
		DNSServers: []string{"192.0.2.3"}, SearchDomains: []string{"a.example"},
	}

	if diff := cmp.Diff(want, vmspec.NewNetworkOptions(&v1alpha1.MachineClaim{}, template, names)); diff != "" {
		t.Error(diff)
	}

	template.Spec.Network.Mode = v1alpha1.NetworkModeDHCP
	want = hypervisor.NetworkOptions{DNSServers: []string{"192.0.2.2"}, SearchDomains: []string{"a.example"}}

	if diff := cmp.Diff(want, vmspec.NewNetworkOptions(&v1alpha1.MachineClaim{}, template, names)); diff != "" {
		t.Errorf("with DHCP: %s", diff)
	}
}

func TestLongHostnameKeepsItsRandomEnd(t *testing.T) {
	t.Parallel()

	claim := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: strings.Repeat("n", 40), Name: strings.Repeat("p", 40) + "-x7k2p",
	}}

	names := vmspec.NewNames(claim, &v1alpha1.HypervisorMachineTemplate{}, &v1alpha1.HypervisorCluster{}, true)
	if len(names.Hostname) > 63 || !strings.HasSuffix(names.Hostname, "-x7k2p") || strings.HasPrefix(names.Hostname, "-") {
		t.Errorf("host name %q", names.Hostname)
	}
}

// Windows accepts computer names of at most 15 characters. Names of two claims differ, whatever they have in common.
func TestHostnamesOfWindows(t *testing.T) {
	t.Parallel()

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.Bootstrap.OS = v1alpha1.OSWindows
	seen := map[string]string{}

	for _, name := range []string{"win-abc12", "windows-2022-abc12", "windows-2022-abc13", "windows-2022-abc12", "1234567", "a-------b-------c"} {
		for _, uid := range []types.UID{"u1", "u2"} {
			claim := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: name, UID: uid}}
			got := vmspec.NewNames(claim, template, &v1alpha1.HypervisorCluster{}, false).Hostname

			if again := vmspec.NewNames(claim, template, &v1alpha1.HypervisorCluster{}, false).Hostname; again != got {
				t.Errorf("%s: %q, then %q", name, got, again)
			}

			if len(got) > 15 || strings.Trim(got, "0123456789") == "" || strings.Contains(got, ".") || got[0] == '-' {
				t.Errorf("%s: host name %q", name, got)
			}

			key := name + string(uid)
			if name == "win-abc12" { // a name that fits stays
				key = name
			}

			if other, ok := seen[got]; ok && other != key {
				t.Errorf("%s and %s have the host name %q", other, key, got)
			}

			seen[got] = key
		}
	}

	if _, ok := seen["win-abc12"]; !ok {
		t.Errorf("a name that fits was changed: %v", seen)
	}
}

func TestLibvirtTemplates(t *testing.T) {
	t.Parallel()

	full := false

	for name, tc := range map[string]struct {
		source v1alpha1.LibvirtTemplate
		ref    hypervisor.TemplateRef
		linked bool
	}{
		"volume": {v1alpha1.LibvirtTemplate{Volume: "a.qcow2"}, hypervisor.TemplateRef{Kind: hypervisor.TemplateStorageVolume, Name: "a.qcow2"}, true},
		"domain": {
			v1alpha1.LibvirtTemplate{Domain: "a", LinkedClone: &full}, hypervisor.TemplateRef{Kind: hypervisor.TemplateDomain, Name: "a"}, false,
		},
		"tags": {
			v1alpha1.LibvirtTemplate{Tags: []string{"a", "b"}}, hypervisor.TemplateRef{Kind: hypervisor.TemplateTaggedDomain, Name: "a,b"}, true,
		},
	} {
		template := &v1alpha1.HypervisorMachineTemplate{}
		template.Spec.Template.Libvirt = &tc.source
		template.Spec.Network = &v1alpha1.MachineNetwork{Bridge: "br0"}

		if ref := vmspec.NewTemplateRef(template); ref != tc.ref {
			t.Errorf("%s: reference %+v, want %+v", name, ref, tc.ref)
		}

		template.Spec.Resources.NestedVirtualization = true

		if shape := vmspec.NewShape(template); shape.Linked != tc.linked || shape.Bridge != "br0" || !shape.Nested {
			t.Errorf("%s: shape %+v", name, shape)
		}

		cluster := &v1alpha1.HypervisorCluster{Spec: v1alpha1.HypervisorClusterSpec{Provider: v1alpha1.ProviderLibvirt}}
		if err := vmspec.CheckProvider(template, cluster); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Each setting of a template for Proxmox VE reaches the hypervisor, and a linked clone is the default.
func TestProxmoxTemplates(t *testing.T) {
	t.Parallel()

	id, full, vlan := int32(9000), false, int32(42)
	template := newTemplate(func(s *v1alpha1.HypervisorMachineTemplateSpec) {
		s.Template.Proxmox = &v1alpha1.ProxmoxTemplate{TemplateID: &id}
		s.Resources.Disk = new(resource.MustParse("50Gi"))
		s.Network = &v1alpha1.MachineNetwork{Bridge: "vmbr1", VLAN: &vlan}
	})
	want := hypervisor.Shape{
		CPU: 2, Memory: 2 << 30, Disk: 50 << 30, Linked: true, Bridge: "vmbr1", VLAN: 42, CloudInitSource: hypervisor.SourceNoCloud,
	}

	if ref := vmspec.NewTemplateRef(template); ref != (hypervisor.TemplateRef{ID: 9000}) {
		t.Errorf("reference %+v", ref)
	}

	if diff := cmp.Diff(want, vmspec.NewShape(template)); diff != "" {
		t.Errorf("shape (-want +got):\n%s", diff)
	}

	template.Spec.Template.Proxmox.LinkedClone, template.Spec.Template.Proxmox.Storage = &full, "ceph"
	want.Linked, want.Storage = false, "ceph"

	if diff := cmp.Diff(want, vmspec.NewShape(template)); diff != "" {
		t.Errorf("shape of a full clone (-want +got):\n%s", diff)
	}
}

// Machines are cloned from the template that is in the status, and the template is found by its tags.
func TestTemplateRefByTags(t *testing.T) {
	t.Parallel()

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.Template.Proxmox = &v1alpha1.ProxmoxTemplate{TemplateTags: []string{"a", "b"}, Newest: true}

	selector := hypervisor.TemplateRef{Tags: "a,b", Newest: true}
	if ref := vmspec.NewSourceRef(template); ref != selector {
		t.Errorf("before it is resolved: %+v", ref)
	}

	template.Status.Sources = []v1alpha1.ResolvedTemplate{{ID: "9001", Name: "runner-05"}, {ID: "9002", Name: "runner-05"}}

	if ref := vmspec.NewTemplateRef(template); ref != selector {
		t.Errorf("to resolve: %+v", ref)
	}

	if ref := vmspec.NewSourceRef(template); ref != (hypervisor.TemplateRef{Tags: "a,b", Name: "runner-05"}) {
		t.Errorf("of machines: %+v", ref)
	}

	template.Spec.Template.Proxmox = &v1alpha1.ProxmoxTemplate{TemplateName: "runner"}
	if ref := vmspec.NewSourceRef(template); ref != (hypervisor.TemplateRef{Name: "runner"}) {
		t.Errorf("by name: %+v", ref)
	}
}

func TestExternalTemplates(t *testing.T) {
	t.Parallel()

	full := false
	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.Template.External = &v1alpha1.ExternalTemplate{Name: "ubuntu", Storage: "fast"}

	if ref := vmspec.NewTemplateRef(template); ref != (hypervisor.TemplateRef{Name: "ubuntu"}) {
		t.Errorf("reference %+v", ref)
	}

	if shape := vmspec.NewShape(template); !shape.Linked || shape.Storage != "fast" || shape.CloudInitSource != hypervisor.SourceNoCloud {
		t.Errorf("shape %+v", shape)
	}

	template.Spec.Template.External.LinkedClone = &full
	if vmspec.NewShape(template).Linked {
		t.Error("want a full clone")
	}

	cluster := &v1alpha1.HypervisorCluster{Spec: v1alpha1.HypervisorClusterSpec{Provider: v1alpha1.ProviderExternal}}
	if err := vmspec.CheckProvider(template, cluster); err != nil {
		t.Error(err)
	}

	cluster.Spec.Provider = v1alpha1.ProviderLibvirt
	if vmspec.CheckProvider(template, cluster) == nil {
		t.Error("want an error for a template of another provider")
	}
}

// A template's devices have a number and a type, also if they are not set.
func TestDevices(t *testing.T) {
	t.Parallel()

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.Resources.Devices = []v1alpha1.MachineDevice{
		{Name: "qat"}, {Name: "nvidia.com/GA102GL_A10", Count: 2, Type: v1alpha1.DeviceGPU}, {Name: "nic", Type: v1alpha1.DevicePCI},
	}
	want := []hypervisor.Device{{Name: "qat", Count: 1}, {Name: "nvidia.com/GA102GL_A10", Count: 2, GPU: true}, {Name: "nic", Count: 1}}

	if diff := cmp.Diff(want, vmspec.NewShape(template).Devices); diff != "" {
		t.Error(diff)
	}
}
