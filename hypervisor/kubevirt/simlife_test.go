// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	virtv1 "kubevirt.io/api/core/v1"

	simkubevirt "github.com/hyperfleet/hyperfleet/sim/kubevirt"
)

func TestLife(t *testing.T) {
	t.Parallel()

	w := newSimFixture(t, simkubevirt.Options{})
	w.create(w.newVM("a", virtv1.RunStrategyHalted))
	w.eventuallyStatus("a", virtv1.VirtualMachineStatusStopped)

	if w.getVMI("a") != nil {
		t.Error("a halted machine has an instance")
	}

	w.setStrategy("a", virtv1.RunStrategyAlways)
	w.eventuallyStatus("a", virtv1.VirtualMachineStatusRunning)

	vmi := w.getVMI("a")
	if vmi.Status.NodeName == "" || len(vmi.Status.Interfaces) != 1 || vmi.Status.Interfaces[0].IP == "" {
		t.Errorf("the instance is incomplete: %+v", vmi.Status)
	}

	finalizers := []string{virtv1.VirtualMachineInstanceFinalizer, virtv1.VirtualMachineControllerFinalizer}
	if diff := cmp.Diff(finalizers, vmi.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}

	w.setStrategy("a", virtv1.RunStrategyHalted)
	w.eventuallyStatus("a", virtv1.VirtualMachineStatusStopped)
	w.setStrategy("a", virtv1.RunStrategyAlways)
	w.eventuallyStatus("a", virtv1.VirtualMachineStatusRunning)

	if again := w.getVMI("a"); again.UID == vmi.UID {
		t.Error("a machine that was stopped and started again has the same instance")
	}

	mustSucceed(t, env.Client.Delete(t.Context(), w.getVM("a")))
	w.eventually("the machine is deleted", func() bool { return w.getVM("a") == nil && w.getVMI("a") == nil })
}

// The run strategy decides whether KubeVirt starts a machine again after its guest powers off or crashes, or
// its instance is lost.
func TestRunStrategies(t *testing.T) {
	t.Parallel()

	cases := []struct {
		strategy     virtv1.VirtualMachineRunStrategy
		off, crashed int // number of starts afterwards
		lost         int
	}{
		{virtv1.RunStrategyAlways, 2, 2, 2},
		{virtv1.RunStrategyRerunOnFailure, 1, 2, 1},
		{virtv1.RunStrategyOnce, 1, 1, 2},
		{virtv1.RunStrategyManual, 1, 1, 1},
	}
	for _, c := range cases {
		t.Run(string(c.strategy), func(t *testing.T) {
			t.Parallel()

			w := newSimFixture(t, simkubevirt.Options{})
			ends := map[string]struct {
				end    func(string)
				starts int
			}{
				"off":     {func(n string) { mustSucceed(t, w.PowerOff(t.Context(), w.objectKey(n))) }, c.off},
				"crashed": {func(n string) { mustSucceed(t, w.Crash(t.Context(), w.objectKey(n))) }, c.crashed},
				"lost":    {func(n string) { mustSucceed(t, w.ForceDeleteInstance(t.Context(), w.objectKey(n))) }, c.lost},
			}

			for name, e := range ends {
				vm := w.newVM(name, virtv1.RunStrategyOnce)
				w.create(vm)
				w.eventuallyStatus(name, virtv1.VirtualMachineStatusRunning)
				w.setStrategy(name, c.strategy)
				w.eventually("KubeVirt has observed the strategy", func() bool { return w.getVM(name).Status.RunStrategy == c.strategy })
				e.end(name)

				if e.starts == 2 {
					w.eventually(name+": the machine is started again", func() bool { return w.StartCount(vm.UID) == 2 })

					continue
				}

				w.eventuallyStatus(name, virtv1.VirtualMachineStatusStopped)

				if starts := w.StartCount(vm.UID); starts != 1 {
					t.Errorf("%s: the machine was started %d times", name, starts)
				}
			}
		})
	}
}

func mustSucceed(t *testing.T, err error) {
	t.Helper()

	if err != nil {
		t.Fatal(err)
	}
}

// The subresources start and stop work for a machine whose run strategy permits them.
func TestStartAndStop(t *testing.T) {
	t.Parallel()

	w := newSimFixture(t, simkubevirt.Options{})
	vm := w.newVM("a", virtv1.RunStrategyManual)
	w.create(vm)
	w.eventuallyStatus("a", virtv1.VirtualMachineStatusStopped)

	mustSucceed(t, w.Start(t.Context(), w.objectKey("a")))
	w.eventuallyStatus("a", virtv1.VirtualMachineStatusRunning)
	mustSucceed(t, w.Restart(t.Context(), w.objectKey("a")))
	w.eventually("the machine is started again", func() bool { return w.StartCount(vm.UID) == 2 })
	w.eventuallyStatus("a", virtv1.VirtualMachineStatusRunning)
	w.eventually("no state change is requested", func() bool { return len(w.getVM("a").Status.StateChangeRequests) == 0 })
	mustSucceed(t, w.Stop(t.Context(), w.objectKey("a")))
	w.eventuallyStatus("a", virtv1.VirtualMachineStatusStopped)

	if err := w.Stop(t.Context(), w.objectKey("a")); err == nil {
		t.Error("a machine that does not run was stopped")
	}
}

// A guest reads its cloud-init Secret, runs its work, and powers off.
func TestGuest(t *testing.T) {
	t.Parallel()

	read := make(chan map[string][]byte, 1)
	w := newSimFixture(t, simkubevirt.Options{Guest: func(g simkubevirt.Guest) {
		g.Log("hello from %s", g.Name)
		read <- g.Drive
	}})

	vm := w.newVM("a", virtv1.RunStrategyOnce)
	spec := &vm.Spec.Template.Spec
	spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, virtv1.Disk{Name: "init"})
	spec.Volumes = append(spec.Volumes, virtv1.Volume{Name: "init", VolumeSource: virtv1.VolumeSource{
		Secret: &virtv1.SecretVolumeSource{SecretName: "init", VolumeLabel: "cidata"},
	}})
	w.create(vm)

	w.eventually("the pod waits for the Secret", func() bool {
		vmi := w.getVMI("a")

		return vmi != nil && vmi.Status.Phase == virtv1.Scheduling
	})

	data := map[string][]byte{"user-data": []byte("#cloud-config\n"), "meta-data": []byte("instance-id: a\n")}
	w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "init"}, Data: data})

	if diff := cmp.Diff(data, <-read); diff != "" {
		t.Errorf("cloud-init Secret (-want +got):\n%s", diff)
	}

	w.eventuallyStatus("a", virtv1.VirtualMachineStatusStopped)

	if got := w.Console(w.objectKey("a")); got != "hello from a\n" {
		t.Errorf("console %q", got)
	}
}

// A live migration changes only the node of the instance.
func TestMigration(t *testing.T) {
	t.Parallel()

	w := newSimFixture(t, simkubevirt.Options{Delays: simkubevirt.Delays{Migrate: 5 * time.Millisecond}})
	w.create(w.newVM("a", virtv1.RunStrategyAlways))
	w.eventuallyStatus("a", virtv1.VirtualMachineStatusRunning)

	before := w.getVMI("a")
	migration := &virtv1.VirtualMachineInstanceMigration{}
	migration.Namespace, migration.Name, migration.Spec.VMIName = w.namespace, "m", "a"
	w.create(migration)

	w.eventually("the migration has succeeded", func() bool {
		return getObject(w, "m", &virtv1.VirtualMachineInstanceMigration{}).Status.Phase == virtv1.MigrationSucceeded
	})

	after := w.getVMI("a")
	if after.UID != before.UID || after.Status.NodeName == before.Status.NodeName {
		t.Errorf("want the same instance on another node, got %s on %s before and %s on %s after", before.UID, before.Status.NodeName, after.UID, after.Status.NodeName)
	}

	if diff := cmp.Diff(before.Status.Interfaces, after.Status.Interfaces); diff != "" {
		t.Errorf("interfaces have changed (-before +after):\n%s", diff)
	}
}

// The guest's agent reports the addresses in its network data.
func TestAddresses(t *testing.T) {
	t.Parallel()

	const openstack = `{"links": [{"id": "l", "name": "eno101", "type": "phy"}], "services": [], "networks": [
		{"id": "a", "link": "l", "type": "ipv4", "ip_address": "192.0.2.7", "netmask": "255.255.255.0"},
		{"id": "b", "link": "l", "type": "ipv6", "ip_address": "2001:db8::7/64", "netmask": "ffff:ffff:ffff:ffff::"}]}`

	const netplan = "network:\n  version: 2\n  ethernets:\n    eno101:\n      addresses: [192.0.2.7/24, '2001:db8::7/64']\n"

	cases := map[string]func(string) virtv1.VolumeSource{
		"config drive": func(secret string) virtv1.VolumeSource {
			return virtv1.VolumeSource{CloudInitConfigDrive: &virtv1.CloudInitConfigDriveSource{
				UserData: "#cloud-config\n", NetworkData: openstack,
			}}
		},
		"no cloud": func(string) virtv1.VolumeSource {
			return virtv1.VolumeSource{CloudInitNoCloud: &virtv1.CloudInitNoCloudSource{NetworkData: netplan}}
		},
	}

	w := newSimFixture(t, simkubevirt.Options{})

	for name, source := range cases {
		name := "vm-" + name[:2]
		vm := w.newVM(name, virtv1.RunStrategyAlways)
		spec := &vm.Spec.Template.Spec
		spec.Networks = []virtv1.Network{{Name: "lan", NetworkSource: virtv1.NetworkSource{
			Multus: &virtv1.MultusNetwork{NetworkName: "lan"},
		}}}
		spec.Domain.Devices.Interfaces = []virtv1.Interface{{
			Name: "lan", ACPIIndex: 101, InterfaceBindingMethod: virtv1.InterfaceBindingMethod{Bridge: &virtv1.InterfaceBridge{}},
		}}
		spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, virtv1.Disk{Name: "init"})
		spec.Volumes = append(spec.Volumes, virtv1.Volume{Name: "init", VolumeSource: source(name)})
		w.create(vm)
		w.eventuallyStatus(name, virtv1.VirtualMachineStatusRunning)

		got := w.getVMI(name).Status.Interfaces[0]
		if diff := cmp.Diff([]string{"192.0.2.7", "2001:db8::7"}, got.IPs); diff != "" || got.InterfaceName != "eno101" {
			t.Errorf("%s: interface %s (-want +got):\n%s", name, got.InterfaceName, diff)
		}
	}
}
