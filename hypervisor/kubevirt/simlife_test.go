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

	w := newWorld(t, simkubevirt.Options{})
	w.create(w.machine("a", virtv1.RunStrategyHalted))
	w.status("a", virtv1.VirtualMachineStatusStopped)

	if w.vmi("a") != nil {
		t.Error("a halted machine has an instance")
	}

	w.strategy("a", virtv1.RunStrategyAlways)
	w.status("a", virtv1.VirtualMachineStatusRunning)

	vmi := w.vmi("a")
	if vmi.Status.NodeName == "" || len(vmi.Status.Interfaces) != 1 || vmi.Status.Interfaces[0].IP == "" {
		t.Errorf("the instance is incomplete: %+v", vmi.Status)
	}

	finalizers := []string{virtv1.VirtualMachineInstanceFinalizer, virtv1.VirtualMachineControllerFinalizer}
	if diff := cmp.Diff(finalizers, vmi.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}

	w.strategy("a", virtv1.RunStrategyHalted)
	w.status("a", virtv1.VirtualMachineStatusStopped)
	w.strategy("a", virtv1.RunStrategyAlways)
	w.status("a", virtv1.VirtualMachineStatusRunning)

	if again := w.vmi("a"); again.UID == vmi.UID {
		t.Error("a machine that was stopped runs on as the same instance")
	}

	check(t, env.Client.Delete(t.Context(), w.vm("a")))
	w.eventually("the machine is gone", func() bool { return w.vm("a") == nil && w.vmi("a") == nil })
}

// What a run strategy does when the guest powers off, crashes, or its instance is lost.
func TestRunStrategies(t *testing.T) {
	t.Parallel()

	cases := []struct {
		strategy     virtv1.VirtualMachineRunStrategy
		off, crashed int // starts after it
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

			w := newWorld(t, simkubevirt.Options{})
			ends := map[string]struct {
				end    func(string)
				starts int
			}{
				"off":     {func(n string) { check(t, w.PowerOff(t.Context(), w.key(n))) }, c.off},
				"crashed": {func(n string) { check(t, w.Crash(t.Context(), w.key(n))) }, c.crashed},
				"lost":    {func(n string) { check(t, w.LoseInstance(t.Context(), w.key(n))) }, c.lost},
			}

			for name, e := range ends {
				vm := w.machine(name, virtv1.RunStrategyOnce)
				w.create(vm)
				w.status(name, virtv1.VirtualMachineStatusRunning)
				w.strategy(name, c.strategy)
				w.eventually("the strategy is seen", func() bool { return w.vm(name).Status.RunStrategy == c.strategy })
				e.end(name)

				if e.starts == 2 {
					w.eventually(name+": it is started again", func() bool { return w.Starts(vm.UID) == 2 })

					continue
				}

				w.status(name, virtv1.VirtualMachineStatusStopped)

				if starts := w.Starts(vm.UID); starts != 1 {
					t.Errorf("%s: it was started %d times", name, starts)
				}
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()

	if err != nil {
		t.Fatal(err)
	}
}

// The subresources start and stop work on a machine whose strategy leaves it to them.
func TestStartAndStop(t *testing.T) {
	t.Parallel()

	w := newWorld(t, simkubevirt.Options{})
	vm := w.machine("a", virtv1.RunStrategyManual)
	w.create(vm)
	w.status("a", virtv1.VirtualMachineStatusStopped)

	check(t, w.Start(t.Context(), w.key("a")))
	w.status("a", virtv1.VirtualMachineStatusRunning)
	check(t, w.Restart(t.Context(), w.key("a")))
	w.eventually("it is started again", func() bool { return w.Starts(vm.UID) == 2 })
	w.status("a", virtv1.VirtualMachineStatusRunning)
	w.eventually("nothing is asked any more", func() bool { return len(w.vm("a").Status.StateChangeRequests) == 0 })
	check(t, w.Stop(t.Context(), w.key("a")))
	w.status("a", virtv1.VirtualMachineStatusStopped)

	if err := w.Stop(t.Context(), w.key("a")); err == nil {
		t.Error("a machine that does not run was stopped")
	}
}

// A guest reads its cloud-init Secret, works, and powers off.
func TestGuest(t *testing.T) {
	t.Parallel()

	read := make(chan map[string][]byte, 1)
	w := newWorld(t, simkubevirt.Options{Guest: func(g simkubevirt.Guest) {
		g.Log("hello from %s", g.Name)
		read <- g.Drive
	}})

	vm := w.machine("a", virtv1.RunStrategyOnce)
	spec := &vm.Spec.Template.Spec
	spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, virtv1.Disk{Name: "init"})
	spec.Volumes = append(spec.Volumes, virtv1.Volume{Name: "init", VolumeSource: virtv1.VolumeSource{
		Secret: &virtv1.SecretVolumeSource{SecretName: "init", VolumeLabel: "cidata"},
	}})
	w.create(vm)

	w.eventually("its pod waits for the secret", func() bool {
		vmi := w.vmi("a")

		return vmi != nil && vmi.Status.Phase == virtv1.Scheduling
	})

	data := map[string][]byte{"user-data": []byte("#cloud-config\n"), "meta-data": []byte("instance-id: a\n")}
	w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "init"}, Data: data})

	if diff := cmp.Diff(data, <-read); diff != "" {
		t.Errorf("cloud-init Secret (-want +got):\n%s", diff)
	}

	w.status("a", virtv1.VirtualMachineStatusStopped)

	if got := w.Console(w.key("a")); got != "hello from a\n" {
		t.Errorf("console %q", got)
	}
}

// A live migration moves the instance and changes nothing else of it.
func TestMigration(t *testing.T) {
	t.Parallel()

	w := newWorld(t, simkubevirt.Options{Delays: simkubevirt.Delays{Migrate: 5 * time.Millisecond}})
	w.create(w.machine("a", virtv1.RunStrategyAlways))
	w.status("a", virtv1.VirtualMachineStatusRunning)

	before := w.vmi("a")
	migration := &virtv1.VirtualMachineInstanceMigration{}
	migration.Namespace, migration.Name, migration.Spec.VMIName = w.namespace, "m", "a"
	w.create(migration)

	w.eventually("it has moved", func() bool {
		return found(w, "m", &virtv1.VirtualMachineInstanceMigration{}).Status.Phase == virtv1.MigrationSucceeded
	})

	after := w.vmi("a")
	if after.UID != before.UID || after.Status.NodeName == before.Status.NodeName {
		t.Errorf("from %s on %s to %s on %s", before.UID, before.Status.NodeName, after.UID, after.Status.NodeName)
	}

	if diff := cmp.Diff(before.Status.Interfaces, after.Status.Interfaces); diff != "" {
		t.Errorf("interfaces have changed (-before +after):\n%s", diff)
	}
}

// The guest's agent reports the addresses that its network data gives.
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

	w := newWorld(t, simkubevirt.Options{})

	for name, source := range cases {
		name := "vm-" + name[:2]
		vm := w.machine(name, virtv1.RunStrategyAlways)
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
		w.status(name, virtv1.VirtualMachineStatusRunning)

		got := w.vmi(name).Status.Interfaces[0]
		if diff := cmp.Diff([]string{"192.0.2.7", "2001:db8::7"}, got.IPs); diff != "" || got.InterfaceName != "eno101" {
			t.Errorf("%s: interface %s (-want +got):\n%s", name, got.InterfaceName, diff)
		}
	}
}
