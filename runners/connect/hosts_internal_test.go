// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Each setting of a libvirt host reaches the provider.
func TestSettingsOfLibvirtHosts(t *testing.T) {
	t.Parallel()

	full := v1alpha1.LibvirtHost{
		Name: "host-1", URI: "qemu+ssh://ci@host-1/system", SSHHostKey: "SHA256:key", StoragePool: "runners", Network: "default",
		Bridge: "br0", MaxCPU: 32, MaxMemory: new(resource.MustParse("56Gi")), MaxStoragePercent: 80,
		Devices: []v1alpha1.LibvirtDevice{
			{Name: "gpu", Addresses: []string{"0000:01:00.0", "0000:02:00.0"}}, {Name: "nic", Addresses: []string{"0000:03:00.0"}},
		},
	}
	want := hypervisor.Host{
		Name: "host-1", URI: "qemu+ssh://ci@host-1/system", SSHHostKey: "SHA256:key", StoragePool: "runners", Network: "default",
		Bridge: "br0", MaxCPU: 32, MaxMemory: 56 << 30, MaxStoragePercent: 80,
		Devices: map[string][]string{"gpu": {"0000:01:00.0", "0000:02:00.0"}, "nic": {"0000:03:00.0"}},
	}

	for _, value := range []reflect.Value{reflect.ValueOf(full), reflect.ValueOf(want)} {
		for i := range value.NumField() {
			if value.Field(i).IsZero() {
				t.Errorf("this test does not set %s.%s", value.Type(), value.Type().Field(i).Name)
			}
		}
	}

	cluster := &v1alpha1.HypervisorCluster{}
	cluster.Name = "libvirt"
	cluster.Spec.Libvirt = &v1alpha1.LibvirtCluster{
		DomainType: "kvm", Hosts: []v1alpha1.LibvirtHost{full, {Name: "host-2", URI: "qemu+unix:///system"}},
	}

	config, err := newClusterConfig(cluster, clusterSecrets{SSHPrivateKey: "key"})
	if err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff([]hypervisor.Host{want, {Name: "host-2", URI: "qemu+unix:///system"}}, config.Hosts); diff != "" {
		t.Errorf("the hosts of the provider (-want +got):\n%s", diff)
	}

	if config.DomainType != "kvm" || string(config.SSHPrivateKey) != "key" {
		t.Errorf("the provider gets domain type %q and SSH key %q", config.DomainType, config.SSHPrivateKey)
	}
}
