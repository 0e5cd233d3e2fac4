// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// listAddresses returns the addresses of each claim that has addresses, by the name of the claim.
func listAddresses(f *fleet.Fleet) map[string]string {
	f.T.Helper()

	out := map[string]string{}

	for _, claim := range listClaims(f) {
		if info := claim.Status.NetworkInfo; info != nil && len(info.Addresses) > 0 {
			out[claim.Name] = strings.Join(info.Addresses, " ")
		}
	}

	return out
}

// waitForStandby waits until the status of the RunnerPool has this number of machines on standby.
func waitForStandby(f *fleet.Fleet, want int32) {
	f.T.Helper()
	eventuallyPool(f, fmt.Sprintf("%d machines on standby", want), func(s v1alpha1.RunnerPoolStatus) bool {
		return s.StandbyReplicas == want
	})
}

// TestMachinesOnStandbyHoldTheirAddresses checks that machines on standby have addresses from their creation, keep
// them when the operator restarts, start with them, and free them when they are deleted.
func TestMachinesOnStandbyHoldTheirAddresses(t *testing.T) {
	t.Parallel()

	booted := make(chan pve.GuestVM, 8)
	f := newAddressFleet(t, fleet.Options{Guest: func(vm pve.GuestVM, run func(pve.GuestVM)) {
		booted <- vm

		run(vm)
	}})
	pool := f.NewPool(6)
	pool.Spec.Scaling.Warm = &v1alpha1.Warm{Stopped: 2}

	addresses := newAddressPool("10.9.0.10-10.9.0.11", "fd00:9::10-fd00:9::11")
	addresses.Gateway = []v1alpha1.IPAddress{"10.9.0.1", "fd00:9::1"}
	addresses.Nameservers = []v1alpha1.IPAddress{"10.9.0.2"}

	createAndStart(f, newPooledTemplate(f, addresses), pool)
	waitForStandby(f, 2)

	before := listAddresses(f)
	if got := slices.Sorted(maps.Values(before)); !slices.Equal(got, []string{"10.9.0.10/24 fd00:9::10/64", "10.9.0.11/24 fd00:9::11/64"}) {
		t.Fatalf("machines on standby have %v", before)
	}

	waits := f.NewClaim("waits")
	f.Create(waits)
	f.EventuallyCondition(waits, v1alpha1.ConditionAddressAllocated, metav1.ConditionFalse, "PoolExhausted")

	f.Stop()
	f.Start()
	waitForStandby(f, 2)

	if after := listAddresses(f); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("machines on standby had %v, and have %v after a restart", before, after)
	}

	queueJobs(f, 1)

	vm := <-booted
	if before[vm.Name] == "" {
		t.Errorf("%s was not on standby: %v", vm.Name, before)
	}

	checkContains(t, string(vm.Drive["network-config"]), append(strings.Fields(before[vm.Name]),
		"via: 10.9.0.1", "via: fd00:9::1", "10.9.0.2", "dhcp4: false")...)
	f.EventuallyJobsDone(1)

	// The freed address is allocated to the waiting claim, and not to the replacement on standby, because the
	// claim is older.
	f.EventuallyCondition(waits, v1alpha1.ConditionAddressAllocated, metav1.ConditionTrue, "Allocated")

	if got := getAddresses(f, waits); strings.Join(got, " ") != before[vm.Name] {
		t.Errorf("the claim that waited has %v, want the addresses of %s: %s", got, vm.Name, before[vm.Name])
	}

	// Without replicas in the pool, the addresses of the machines on standby are free.
	updateObject(f, pool, func() { pool.Spec.Scaling = v1alpha1.Scaling{MaxReplicas: 6, ScaleDownDelay: &metav1.Duration{}} })
	waitForStandby(f, 0)

	last := f.NewClaim("last")
	f.Create(last)
	f.EventuallyCondition(last, v1alpha1.ConditionAddressAllocated, metav1.ConditionTrue, "Allocated")
}

// TestOwnNetworkData checks that a template is not ready, and no machine is created, while the template's own
// network data lack the interface. A claim keeps the address that was allocated to it, and its machine gets this
// address after the network data are fixed.
func TestOwnNetworkData(t *testing.T) {
	t.Parallel()

	booted := make(chan pve.GuestVM, 2)
	f := newAddressFleet(t, fleet.Options{Guest: func(vm pve.GuestVM, _ func(pve.GuestVM)) {
		booted <- vm

		<-vm.Context.Done()
	}})
	template := newPooledTemplate(f, newAddressPool("10.9.0.10-10.9.0.11"))
	template.Spec.Network.Mode, template.Spec.Network.Interface = v1alpha1.NetworkModeCloudInit, "ens19"
	template.Spec.CloudInit = &v1alpha1.CloudInit{NetworkData: "# ours\nversion: 2\nethernets:\n  ens18: {dhcp4: true}\n"}

	claim := f.NewClaim("own")

	createAndStart(f, template, claim)
	checkContains(t, f.EventuallyCondition(template, "Ready", metav1.ConditionFalse, "NetworkDataInvalid"),
		"cloudInit.networkData", `"ens19"`, "ens18", "network.interface")
	f.EventuallyCondition(claim, v1alpha1.ConditionAddressAllocated, metav1.ConditionTrue, "Allocated")

	given := getAddresses(f, claim)
	if claim.Status.VMRef != nil || len(given) != 1 {
		t.Errorf("the claim has addresses %v and VM %v, want one address and no VM", given, claim.Status.VMRef)
	}

	updateObject(f, template, func() { template.Spec.CloudInit.NetworkData += "  ens19: {mtu: 9000}\n" })

	vm := <-booted
	checkContains(t, string(vm.Drive["network-config"]), "# ours", "ens18: {dhcp4: true}", "ens19: {mtu: 9000, addresses: ["+given[0]+"]}")

	f.EventuallyCondition(claim, v1alpha1.ConditionProvisioned, metav1.ConditionTrue, "")

	if info := claim.Status.NetworkInfo; !slices.Equal(info.Addresses, given) || info.AddressNetwork != f.Cluster+":vmbr0" || info.Hostname != "own" {
		t.Errorf("the claim had %v, and has %+v", given, info)
	}
}
