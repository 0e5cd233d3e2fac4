// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	virtv1 "kubevirt.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
)

// newNodePool returns a pool with static addresses of both families.
func newNodePool(change func(*v1alpha1.KubevirtNodePool)) *v1alpha1.KubevirtNodePool {
	attach := false
	pool := &v1alpha1.KubevirtNodePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "workers"},
		Spec: v1alpha1.KubevirtNodePoolSpec{
			Replicas: 3, AttachDefaultNetwork: &attach,
			AdditionalNetworks: []v1alpha1.KubevirtNetwork{{Name: "machines"}},
			BootstrapNetworkConfig: &v1alpha1.KubevirtBootstrapNetworkConfig{
				Addresses:         []v1alpha1.AddressRange{"192.168.1.10-192.168.1.50", "fd00::10-fd00::50"},
				ExcludedAddresses: []v1alpha1.AddressRange{"192.168.1.10/32"},
				Nameservers:       []v1alpha1.IPAddress{"192.168.1.2"},
				Gateway:           []v1alpha1.IPAddress{"192.168.1.1", "fd00::1"},
				PrefixLengthV4:    24, PrefixLengthV6: 64,
			},
			RootVolume: v1alpha1.KubevirtRootVolume{
				DiskImage: v1alpha1.KubevirtDiskImage{ContainerDiskImage: "quay.io/containerdisks/fedora:42"},
			},
			Compute: &v1alpha1.KubevirtCompute{Cores: 2, Memory: resource.MustParse("8Gi"), QosClass: "Burstable"},
		},
	}

	if change != nil {
		change(pool)
	}

	return pool
}

// newMachine returns a machine of the pool.
func newMachine(t testing.TB, pool *v1alpha1.KubevirtNodePool) *v1alpha1.KubevirtMachine {
	t.Helper()

	spec, err := kubevirt.NewMachineSpec(pool)
	if err != nil {
		t.Fatal(err)
	}

	return &v1alpha1.KubevirtMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ci", Name: "workers-x7k2p", UID: "3b0c",
			Labels: map[string]string{v1alpha1.LabelNodePool: "workers", v1alpha1.LabelCluster: "workers"},
		},
		Spec: spec,
	}
}

// decodeVirtualMachine decodes the VirtualMachine strictly into KubeVirt's own type.
func decodeVirtualMachine(t testing.TB, machine *v1alpha1.KubevirtMachine, format netdata.Format) *virtv1.VirtualMachine {
	t.Helper()

	object, err := kubevirt.NewVirtualMachine(machine, "network", format)
	if err != nil {
		t.Fatal(err)
	}

	var vm virtv1.VirtualMachine
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, &vm, true); err != nil {
		t.Fatal(err)
	}

	return &vm
}

func requireEqual(t testing.TB, what string, got, want any) {
	t.Helper()

	comparers := cmp.Options{
		cmp.Comparer(func(x, y netip.Prefix) bool { return x == y }),
		cmp.Comparer(func(x, y netip.Addr) bool { return x == y }),
	}

	if diff := cmp.Diff(want, got, comparers); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestVirtualMachineWithStaticAddresses(t *testing.T) {
	t.Parallel()

	machine := newMachine(t, newNodePool(nil))
	vm := decodeVirtualMachine(t, machine, netdata.FormatOpenStack)
	spec := vm.Spec.Template.Spec

	mac, err := kubevirt.MACAddress(machine)
	if err != nil {
		t.Fatal(err)
	}

	if len(spec.Domain.Devices.Interfaces) != 1 || len(spec.Networks) != 1 {
		t.Fatalf("%d interfaces, %d networks", len(spec.Domain.Devices.Interfaces), len(spec.Networks))
	}

	nic := spec.Domain.Devices.Interfaces[0]
	requireEqual(t, "name", nic.Name, "iface1_ci-machines")
	requireEqual(t, "acpiIndex", nic.ACPIIndex, 101)
	requireEqual(t, "MAC", nic.MacAddress, mac)
	requireEqual(t, "network", spec.Networks[0].Multus.NetworkName, "ci/machines")
	requireEqual(t, "drive", spec.Volumes[1].CloudInitConfigDrive.NetworkDataSecretRef.Name, "network")
	requireEqual(t, "memory", spec.Domain.Memory.Guest.String(), "8Gi")
	requireEqual(t, "owner", vm.OwnerReferences[0].UID, machine.UID)
	requireEqual(t, "label of the instance", vm.Spec.Template.ObjectMeta.Labels[v1alpha1.LabelMachine], machine.Name)
	requireEqual(t, "label of the pool", vm.Labels[v1alpha1.LabelNodePool], "workers")
	requireEqual(t, "eviction", *spec.EvictionStrategy, virtv1.EvictionStrategyLiveMigrateIfPossible)

	config := machine.Spec.BootstrapNetworkConfig
	requireEqual(t, "network of the addresses", config.NetworkName, nic.Name)
	requireEqual(t, "addresses", config.Subnets, []v1alpha1.AddressRange{"192.168.1.10-192.168.1.50", "fd00::10-fd00::50"})
	requireEqual(t, "excluded addresses", config.ExcludedAddresses, []v1alpha1.AddressRange{"192.168.1.10/32"})

	if network, err := kubevirt.NetworkKey(machine); err != nil || network != "ci/machines" {
		t.Errorf("network %q, error %v", network, err)
	}
}

// This test renders the network data of the example in the documentation, with addresses.
func TestNetworkData(t *testing.T) {
	t.Parallel()

	machine := newMachine(t, newNodePool(func(p *v1alpha1.KubevirtNodePool) {
		p.Spec.BootstrapNetworkConfig.Nameservers = []v1alpha1.IPAddress{"192.168.1.2", "fd00::2"}
	}))

	mac, err := kubevirt.MACAddress(machine)
	if err != nil {
		t.Fatal(err)
	}

	data, format, err := kubevirt.RenderNetworkData(machine, mac, []netip.Prefix{
		netip.MustParsePrefix("192.168.1.11/24"), netip.MustParsePrefix("fd00::10/64"),
	})
	if err != nil || format != netdata.FormatOpenStack {
		t.Fatalf("format %s, error %v", format, err)
	}

	network, _, err := netdata.Parse(data)
	if err != nil {
		t.Fatal(err)
	}

	requireEqual(t, "network", network, &netdata.Network{
		Links: []netdata.Link{{
			ID: "eno101", Name: "eno101", MAC: mac,
			Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.1.11/24"), netip.MustParsePrefix("fd00::10/64")},
			Routes: []netdata.Route{
				netdata.DefaultRoute(netip.MustParseAddr("192.168.1.1")), netdata.DefaultRoute(netip.MustParseAddr("fd00::1")),
			},
		}},
		DNS: netdata.DNS{Servers: []netip.Addr{netip.MustParseAddr("192.168.1.2"), netip.MustParseAddr("fd00::2")}},
	})
}

// A user's own network data keeps its settings, and gets the machine's addresses.
func TestNetworkDataOfUsers(t *testing.T) {
	t.Parallel()

	address := netip.MustParsePrefix("192.168.1.11/24")

	for _, tc := range []struct {
		why, data string
		format    netdata.Format
	}{
		{"OpenStack's format in JSON", `{"links": [{"id": "eno101", "type": "phy", "mtu": 1400}]}`, netdata.FormatOpenStack},
		{"OpenStack's format in YAML", "links:\n- {id: eno101, type: phy, mtu: 1400}\n", netdata.FormatOpenStack},
		{"version 2 in JSON", `{"version": 2, "ethernets": {"eno101": {"mtu": 1400}}}`, netdata.FormatV2},
		{"version 2 in YAML", "version: 2\nethernets:\n  eno101: {mtu: 1400}\n", netdata.FormatV2},
	} {
		t.Run(tc.why, func(t *testing.T) {
			t.Parallel()

			machine := newMachine(t, newNodePool(func(p *v1alpha1.KubevirtNodePool) {
				p.Spec.BootstrapNetworkConfig.NetworkData = tc.data
			}))

			data, format, err := kubevirt.RenderNetworkData(machine, "02:00:00:00:00:07", []netip.Prefix{address})
			if err != nil || format != tc.format {
				t.Fatalf("format %s, error %v", format, err)
			}

			network, _, err := netdata.Parse(data)
			if err != nil {
				t.Fatal(err)
			}

			requireEqual(t, "links", len(network.Links), 1)
			requireEqual(t, "MTU", network.Links[0].MTU, 1400)
			requireEqual(t, "addresses", network.Links[0].Addresses, []netip.Prefix{address})
			requireEqual(t, "routes", len(network.Links[0].Routes), 0)
		})
	}
}

func TestVirtualMachineWithDHCP(t *testing.T) {
	t.Parallel()

	machine := newMachine(t, newNodePool(func(p *v1alpha1.KubevirtNodePool) {
		p.Spec.BootstrapNetworkConfig, p.Spec.AttachDefaultNetwork = nil, nil
		p.Spec.RootVolume.Persistent = &v1alpha1.KubevirtPersistentVolume{
			Size: resource.MustParse("50Gi"), StorageClass: "fast", AccessModes: []string{"ReadWriteMany"}, VolumeMode: "Block",
		}
		p.Spec.UserDataSecretRef = &v1alpha1.LocalObjectReference{Name: "user-data"}
		p.Spec.NodeSelector = map[string]string{"zone": "a"}
		p.Spec.Compute = &v1alpha1.KubevirtCompute{
			Cores: 4, Memory: resource.MustParse("16Gi"), Hugepages: "1Gi", QosClass: "Guaranteed",
		}
	}))

	if machine.Spec.BootstrapNetworkConfig != nil {
		t.Error("a machine of a pool without addresses has addresses")
	}

	vm := decodeVirtualMachine(t, machine, "")
	spec := vm.Spec.Template.Spec

	requireEqual(t, "networks", len(spec.Networks), 2)
	requireEqual(t, "acpiIndex", spec.Domain.Devices.Interfaces[1].ACPIIndex, 0)
	requireEqual(t, "data volume", vm.Spec.DataVolumeTemplates[0].Name, "workers-x7k2p-root")
	requireEqual(t, "its volume", spec.Volumes[0].DataVolume.Name, "workers-x7k2p-root")
	requireEqual(t, "storage class", *vm.Spec.DataVolumeTemplates[0].Spec.Storage.StorageClassName, "fast")
	requireEqual(t, "user data", spec.Volumes[1].CloudInitConfigDrive.UserDataSecretRef.Name, "user-data")

	if data := spec.Volumes[1].CloudInitConfigDrive.NetworkDataSecretRef; data != nil || spec.Domain.Devices.Interfaces[1].MacAddress != "" {
		t.Errorf("network data %v, MAC address %q", data, spec.Domain.Devices.Interfaces[1].MacAddress)
	}

	requireEqual(t, "pages", spec.Domain.Memory.Hugepages.PageSize, "1Gi")
	requireEqual(t, "limits", spec.Domain.Resources.Limits.Cpu().String(), "4")
	requireEqual(t, "node", spec.NodeSelector["zone"], "a")
}

func TestUserDataAndNetworkDataShareADrive(t *testing.T) {
	t.Parallel()

	machine := newMachine(t, newNodePool(func(p *v1alpha1.KubevirtNodePool) {
		p.Spec.UserDataSecretRef = &v1alpha1.LocalObjectReference{Name: "user-data"}
	}))

	drive := decodeVirtualMachine(t, machine, netdata.FormatOpenStack).Spec.Template.Spec.Volumes[1].CloudInitConfigDrive
	requireEqual(t, "user data", drive.UserDataSecretRef.Name, "user-data")
	requireEqual(t, "network data", drive.NetworkDataSecretRef.Name, "network")

	if _, err := kubevirt.NewVirtualMachine(machine, "network", netdata.FormatV2); err == nil || !strings.Contains(err.Error(), "cloudInitNoCloud") {
		t.Errorf("network data of another format than the drive: %v", err)
	}
}

// Each machine has its own Secret with user data.
func TestUserDataPerMachine(t *testing.T) {
	t.Parallel()

	machine := newMachine(t, newNodePool(func(p *v1alpha1.KubevirtNodePool) {
		p.Spec.UserDataSecretRef = &v1alpha1.LocalObjectReference{Name: "user-data"}
		p.Spec.UserDataSecrets = v1alpha1.UserDataPerMachine
	}))

	drive := decodeVirtualMachine(t, machine, netdata.FormatOpenStack).Spec.Template.Spec.Volumes[1].CloudInitConfigDrive
	requireEqual(t, "user data", drive.UserDataSecretRef.Name, "user-data-workers-x7k2p")
	requireEqual(t, "network data", drive.NetworkDataSecretRef.Name, "network")

	long := newMachine(t, newNodePool(func(p *v1alpha1.KubevirtNodePool) {
		p.Spec.UserDataSecretRef = &v1alpha1.LocalObjectReference{Name: strings.Repeat("a", 245)}
		p.Spec.UserDataSecrets = v1alpha1.UserDataPerMachine
	}))
	if _, err := kubevirt.NewVirtualMachine(long, "network", netdata.FormatOpenStack); err == nil || !strings.Contains(err.Error(), "253 characters") {
		t.Errorf("a name that no Secret can have: %v", err)
	}
}

func TestNetworkNames(t *testing.T) {
	t.Parallel()

	two := []v1alpha1.KubevirtNetwork{{Name: "machines"}, {Name: "other/storage.fast"}}

	for _, tc := range []struct {
		why      string
		networks []v1alpha1.KubevirtNetwork
		network  string
		want     string
		err      string
	}{
		{"the first by default", two, "", "iface1_ci-machines ci/machines", ""},
		{"by the name that HyperShift generates", two, "iface2_other-storage-fast", "iface2_other-storage-fast other/storage.fast", ""},
		{"the only one by any name", two[:1], "my-nad-1-network", "my-nad-1-network ci/machines", ""},
		{"one of two by another name", two, "my-nad-1-network", "", "not one of iface1_ci-machines, iface2_other-storage-fast"},
		{"no networks", nil, "", "", "additionalNetworks is empty"},
	} {
		t.Run(tc.why, func(t *testing.T) {
			t.Parallel()

			got, err := kubevirt.BootstrapNetwork(newNodePool(func(p *v1alpha1.KubevirtNodePool) {
				p.Spec.AdditionalNetworks, p.Spec.BootstrapNetworkConfig.Network = tc.networks, tc.network
			}))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("want %q in: %v", tc.err, err)
				}

				return
			}

			if err != nil || got.Name+" "+got.Definition != tc.want {
				t.Errorf("got %+v, error %v", got, err)
			}
		})
	}
}

func TestBadNetworkData(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct{ why, data, want string }{
		{"neither JSON nor YAML", "{links: [", "validate bootstrapNetworkConfig.networkData"},
		{"a list", "[1, 2]", "validate bootstrapNetworkConfig.networkData"},
		{"another interface", `{"links": [{"id": "eth0", "type": "phy"}], "networks": [], "services": []}`, "no such interface"},
		{"another machine's MAC", `{"links": [{"id": "eno101", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:01"}]}`, "leave the key out"},
	} {
		t.Run(tc.why, func(t *testing.T) {
			t.Parallel()

			_, err := kubevirt.NewMachineSpec(newNodePool(func(p *v1alpha1.KubevirtNodePool) {
				p.Spec.BootstrapNetworkConfig.NetworkData = tc.data
			}))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("want %q in: %v", tc.want, err)
			}
		})
	}
}

func TestBadTemplates(t *testing.T) {
	t.Parallel()

	good := newMachine(t, newNodePool(nil))

	for _, tc := range []struct{ why, template, want string }{
		{"no object", `[]`, "it is not an object"},
		{"null", `null`, "it is not an object"},
		{"missing interface", `{"spec": {}}`, "find interface"},
		{"lists of numbers", `{"spec": {"template": {"spec": {"networks": [1], "volumes": 7}}}}`, "find interface"},
	} {
		t.Run(tc.why, func(t *testing.T) {
			t.Parallel()

			machine := good.DeepCopy()
			machine.Spec.VirtualMachineTemplate = runtime.RawExtension{Raw: []byte(tc.template)}

			if _, err := kubevirt.NewVirtualMachine(machine, "network", netdata.FormatOpenStack); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("want %q in: %v", tc.want, err)
			}

			if _, err := kubevirt.NetworkKey(machine); err == nil {
				t.Error("the VirtualMachine has a network")
			}
		})
	}
}

// For any JSON in a template, the result is an object or an error. The object never has a name, a namespace
// or an owner from the template.
func FuzzVirtualMachine(f *testing.F) {
	machine := newMachine(f, newNodePool(nil))
	f.Add(machine.Spec.VirtualMachineTemplate.Raw)
	f.Add([]byte(`{"metadata": {"name": "x", "namespace": "kube-system", "ownerReferences": [], "labels": {"a": 1}}}`))
	f.Add([]byte(`{"spec": {"dataVolumeTemplates": [{}], "template": {"spec": {"domain": {"devices": {"interfaces": [{"name": "iface1_ci-machines"}]}}}}}}`))
	f.Add([]byte(`{"spec": {"template": []}}`))

	f.Fuzz(func(t *testing.T, raw []byte) {
		if !json.Valid(raw) {
			return // the API server rejects these
		}

		fuzzed := machine.DeepCopy()
		fuzzed.Spec.VirtualMachineTemplate.Raw = raw

		vm, err := kubevirt.NewVirtualMachine(fuzzed, "network", netdata.FormatOpenStack)
		if err != nil {
			return
		}

		if vm.GetName() != fuzzed.Name || vm.GetNamespace() != fuzzed.Namespace || !metav1.IsControlledBy(vm, fuzzed) {
			t.Errorf("%s/%s is not the name of the machine", vm.GetNamespace(), vm.GetName())
		}

		if kubevirt.NetworkDataSecret(vm) != "network" {
			t.Error("the VirtualMachine has no network data")
		}
	})
}

// The machines of a pool are spread over nodes if possible.
func TestMachinesAreSpread(t *testing.T) {
	t.Parallel()

	vm := decodeVirtualMachine(t, newMachine(t, newNodePool(nil)), netdata.FormatOpenStack)

	spread := vm.Spec.Template.Spec.TopologySpreadConstraints
	if len(spread) != 1 || spread[0].WhenUnsatisfiable != "ScheduleAnyway" || spread[0].TopologyKey != "kubernetes.io/hostname" {
		t.Fatalf("spread by %+v", spread)
	}

	// Without the label, the spread constraint counts no machines.
	if key := v1alpha1.LabelNodePool; spread[0].LabelSelector.MatchLabels[key] != vm.Spec.Template.ObjectMeta.Labels[key] {
		t.Errorf("selector %v, and the machine has the labels %v", spread[0].LabelSelector.MatchLabels, vm.Spec.Template.ObjectMeta.Labels)
	}
}
