// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/kubevirt"
)

// newNodePool returns a pool with static addresses of both families.
func newNodePool(name string, replicas int32, v4, v6 infrav1.AddressRange) *infrav1.KubevirtNodePool {
	attach := false

	return &infrav1.KubevirtNodePool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: infrav1.KubevirtNodePoolSpec{
			Replicas: replicas, AttachDefaultNetwork: &attach,
			AdditionalNetworks: []infrav1.KubevirtNetwork{{Name: "machines"}},
			BootstrapNetworkConfig: &infrav1.KubevirtBootstrapNetworkConfig{
				Network:        "my-nad-1-network",
				Addresses:      []infrav1.AddressRange{v4, v6},
				Gateway:        []infrav1.IPAddress{"192.168.0.1", "fd00::1"},
				Nameservers:    []infrav1.IPAddress{"192.168.0.2"},
				PrefixLengthV4: 16, PrefixLengthV6: 64,
			},
			RootVolume: infrav1.KubevirtRootVolume{
				DiskImage: infrav1.KubevirtDiskImage{ContainerDiskImage: "quay.io/containerdisks/fedora:42"},
			},
			Compute: &infrav1.KubevirtCompute{Cores: 1, Memory: resource.MustParse("1Gi")},
		},
	}
}

// TestHundredMachines checks the life of a hundred machines with all changes of their address pool.
func TestHundredMachines(t *testing.T) {
	w := newFixture(t, kubevirt.Delays{Schedule: 5 * time.Millisecond, Boot: 20 * time.Millisecond, Stop: 20 * time.Millisecond})

	const machines, short = 100, 90

	w.logf("90 addresses for 100 machines, and the operator is killed while they come up")
	w.create(newNodePool("workers", machines, "192.168.0.10-192.168.0.99", "fd00::10-fd00::69"))
	w.eventually("some machines run", func() bool { return w.countReady() > machines/4 })
	w.kill()
	w.listAddresses()
	w.start()

	w.eventually("one machine runs for each address", func() bool { return w.countReady() == short })
	w.eventually("the status of the pool reports it", func() bool {
		status := w.getPool("workers").Status

		return w.conditionStatus("workers", infrav1.ConditionIPPoolExhausted) == metav1.ConditionTrue &&
			status.Addresses.Waiting == machines-short && status.Addresses.Free == 0 && status.Replicas == machines
	})
	w.checkExhausted(machines - short)

	w.logf("more addresses")
	w.updatePool("workers", func(spec *infrav1.KubevirtNodePoolSpec) {
		spec.BootstrapNetworkConfig.Addresses = append(spec.BootstrapNetworkConfig.Addresses, "192.168.1.0/24", "fd00::100-fd00::1ff")
	})
	w.eventually("all machines run", func() bool { return w.countReady() == machines })
	w.eventually("the pool is not exhausted", func() bool {
		return w.conditionStatus("workers", infrav1.ConditionIPPoolExhausted) == metav1.ConditionFalse &&
			w.conditionStatus("workers", "Ready") == metav1.ConditionTrue &&
			w.readMetric("kubevirt_ippool_exhausted", `cluster="workers"`) == 0
	})

	for _, want := range []string{
		" is the leader\n", "RBAC roles of networking: all match this version of hyperfleet\n", "\n0 problems, 0 warnings\n",
	} {
		if output := w.runDoctor(); !strings.Contains(output, want) {
			t.Errorf("hyperfleet doctor does not print %q:\n%s", want, output)
		}
	}

	w.checkAddressesAreKept()
	w.checkReuse()
	w.checkDHCP()

	w.logf("deletion")

	w.must(env.Client.Delete(t.Context(), w.getPool("workers")))

	w.eventually("all objects are deleted", func() bool { return len(w.listMachines()) == 0 && w.describeLeftovers() == "" })
}

// checkExhausted checks that log, metric, event and doctor report a pool without free addresses.
func (w *fixture) checkExhausted(waiting int) {
	w.t.Helper()

	if !strings.Contains(w.readLog(), "No available IPs in pool for interface eno101") {
		w.t.Error("the log does not report the exhausted pool")
	}

	w.eventually("the metric reports the exhausted pool", func() bool {
		return w.readMetric("kubevirt_ippool_exhausted", `cluster="workers"`) == 1
	})
	w.eventually("an event reports the exhausted pool", func() bool { return w.hasEvent("PoolExhausted") })

	if output := w.runDoctor(); !strings.Contains(output, "KubevirtNodePool "+w.namespace+"/workers: "+infrav1.ConditionIPPoolExhausted) {
		w.t.Errorf("hyperfleet doctor does not report the exhausted pool:\n%s", output)
	}

	pending := 0

	for _, m := range w.listMachines() {
		if m.Status.Phase == infrav1.KubevirtMachinePending {
			pending++
		}
	}

	if pending != waiting {
		w.t.Errorf("%d machines are Pending, want %d", pending, waiting)
	}
}

// checkAddressesAreKept stops, starts, restarts and migrates a machine, deletes the VirtualMachine of another one,
// and checks that both keep their addresses.
func (w *fixture) checkAddressesAreKept() {
	w.t.Helper()
	w.logf("stop, start, restart, live migration")

	before := w.listAddresses()
	one, two := "", ""

	for name := range before {
		if one == "" {
			one = name
		} else if two == "" {
			two = name
		}
	}

	key := types.NamespacedName{Namespace: w.namespace, Name: one}
	w.must(w.virt.Stop(w.t.Context(), key))
	w.eventually("the machine is stopped", func() bool {
		return w.listMachines()[one].Status.Phase == infrav1.KubevirtMachineStopped
	})

	// No other machine may get its addresses meanwhile, even if the operator is killed.
	w.updatePool("workers", func(spec *infrav1.KubevirtNodePoolSpec) { spec.Replicas += 2 })
	w.kill()
	w.start()
	w.eventually("two more machines run", func() bool { return w.countReady() == 101 })

	w.must(w.virt.Start(w.t.Context(), key))
	w.eventually("the machine runs again", func() bool { return w.listMachines()[one].Status.Ready })
	w.must(w.virt.Restart(w.t.Context(), key))
	w.migrate(two)

	vm := &virtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: one}}
	w.must(env.Client.Delete(w.t.Context(), vm))
	w.eventually("the deleted VirtualMachine is recreated", func() bool {
		found := &virtv1.VirtualMachine{}
		err := env.Client.Get(w.t.Context(), key, found)

		return err == nil && found.DeletionTimestamp == nil && w.listMachines()[one].Status.Ready && w.countReady() == 102
	})

	after := w.listAddresses()
	for name, addresses := range before {
		if diff := cmp.Diff(addresses, after[name]); diff != "" {
			w.t.Errorf("machine %s has other addresses (-before +after):\n%s", name, diff)
		}
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	if diff := cmp.Diff(before[one], w.booted[one]); diff != "" {
		w.t.Errorf("machine %s booted with other addresses (-before +after):\n%s", one, diff)
	}
}

func (w *fixture) must(err error) {
	w.t.Helper()

	if err != nil {
		w.t.Fatal(err)
	}
}

// migrate moves a running machine to another node.
func (w *fixture) migrate(name string) {
	w.t.Helper()

	node := w.listMachines()[name].Status.NodeName
	migration := &virtv1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Name: "move"}}
	migration.Spec.VMIName = name
	w.create(migration)
	w.eventually("the status has the other node", func() bool {
		now := w.listMachines()[name].Status

		return now.NodeName != node && now.NodeName != "" && now.Ready
	})
}

// checkReuse scales the pool down and up, and checks that the lowest free address is allocated first.
func (w *fixture) checkReuse() {
	w.t.Helper()
	w.logf("scale down, kill in between, scale up")

	w.updatePool("workers", func(spec *infrav1.KubevirtNodePoolSpec) { spec.Replicas = 60 })
	w.eventually("some machines are deleted", func() bool { return len(w.listMachines()) < 95 })
	w.kill()
	w.start()
	w.eventually("60 machines are left", func() bool { return len(w.listMachines()) == 60 && w.countReady() == 60 })

	taken := map[string]bool{}
	for _, addresses := range w.listAddresses() {
		taken[addresses[0]] = true
	}

	free := ""
	for i := 10; free == ""; i++ {
		if a := fmt.Sprintf("192.168.0.%d/16", i); !taken[a] {
			free = a
		}
	}

	before := w.listAddresses()

	w.updatePool("workers", func(spec *infrav1.KubevirtNodePoolSpec) { spec.Replicas = 61 })
	w.eventually("61 machines run", func() bool { return w.countReady() == 61 })

	for name, addresses := range w.listAddresses() {
		if before[name] == nil && addresses[0] != free {
			w.t.Errorf("a new machine got %s, want the lowest free address %s", addresses[0], free)
		}
	}

	w.updatePool("workers", func(spec *infrav1.KubevirtNodePoolSpec) { spec.Replicas = 100 })
	w.eventually("100 machines run", func() bool { return w.countReady() == 100 })
	w.listAddresses()
}

// checkDHCP removes the addresses from the pool, and checks that existing machines keep theirs, and that new ones
// use DHCP.
func (w *fixture) checkDHCP() {
	w.t.Helper()
	w.logf("without static addresses")

	before := w.listAddresses()

	w.updatePool("workers", func(spec *infrav1.KubevirtNodePoolSpec) {
		spec.BootstrapNetworkConfig, spec.Replicas = nil, 103
	})
	w.eventually("103 machines run", func() bool { return w.countReady() == 103 })

	after := w.listAddresses()
	if diff := cmp.Diff(before, after); diff != "" {
		w.t.Errorf("addresses changed (-before +after):\n%s", diff)
	}

	dhcp := 0

	for _, m := range w.listMachines() {
		if m.Spec.BootstrapNetworkConfig == nil {
			dhcp++
		}
	}

	if dhcp != 3 {
		w.t.Errorf("%d machines use DHCP, want 3", dhcp)
	}
}

// describeLeftovers describes the objects that are left, except machines.
func (w *fixture) describeLeftovers() string {
	for what, list := range map[string]client.ObjectList{
		"node pools": &infrav1.KubevirtNodePoolList{}, "templates": &infrav1.KubevirtMachineTemplateList{},
		"virtual machines": &virtv1.VirtualMachineList{}, "instances": &virtv1.VirtualMachineInstanceList{},
		"secrets": &corev1.SecretList{},
	} {
		if err := env.Client.List(w.t.Context(), list, client.InNamespace(w.namespace)); err != nil {
			w.t.Fatal(err)
		}

		if n := apimeta.LenList(list); n > 0 {
			return fmt.Sprintf("%d %s", n, what)
		}
	}

	return ""
}
