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
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// withAddress are the claims that have an address, with what they have.
func withAddress(f *fleet.Fleet) map[string]string {
	f.T.Helper()

	var list v1alpha1.MachineClaimList
	if err := f.Client.List(f.T.Context(), &list, client.InNamespace(f.Namespace)); err != nil {
		f.T.Fatal(err)
	}

	out := map[string]string{}

	for i := range list.Items {
		if info := list.Items[i].Status.NetworkInfo; info != nil && len(info.Addresses) > 0 {
			out[list.Items[i].Name] = strings.Join(info.Addresses, " ")
		}
	}

	return out
}

// standby waits until as many machines are on standby as the RunnerPool says.
func standby(f *fleet.Fleet, want int32) {
	f.T.Helper()
	f.Eventually(fmt.Sprintf("%d machines on standby", want), func() (bool, string) {
		pool := f.NewPool(0)
		if err := f.Client.Get(f.T.Context(), client.ObjectKeyFromObject(pool), pool); err != nil {
			return false, err.Error()
		}

		return pool.Status.StandbyReplicas == want, fmt.Sprintf("%d of %d, %v", pool.Status.StandbyReplicas, want, withAddress(f))
	})
}

// scalePool changes how many machines a RunnerPool holds ready.
func scalePool(f *fleet.Fleet, scaling v1alpha1.Scaling) {
	f.T.Helper()

	pool := f.NewPool(0)

	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := f.Client.Get(f.T.Context(), client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}

		pool.Spec.Scaling = scaling

		return f.Client.Update(f.T.Context(), pool)
	})
	if err != nil {
		f.T.Fatal(err)
	}
}

// Machines on standby have their addresses from the time they are made, over restarts of the
// operator, and start with them; they are free when the machines are gone.
func TestMachinesOnStandbyHoldTheirAddresses(t *testing.T) {
	t.Parallel()

	booted := make(chan pve.GuestVM, 8)
	model := fleet.Model()
	model.Guest.Script = func(vm pve.GuestVM) {
		booted <- vm

		fleet.Guest(t)(vm)
	}

	f := fleet.New(t, env, fleet.Options{Model: model})
	f.Networking = true
	watchAddresses(t, f)

	pool := f.NewPool(6)
	pool.Spec.Scaling.Warm = &v1alpha1.Warm{Stopped: 2}

	f.CreateCluster(f.NewCluster())
	f.Create(pooled(f, rangeOf("10.9.0.10-10.9.0.11", "fd00:9::10-fd00:9::11")))
	f.Create(pool)
	f.Start()
	standby(f, 2)

	before := withAddress(f)
	if got := slices.Sorted(maps.Values(before)); !slices.Equal(got, []string{"10.9.0.10/24 fd00:9::10/64", "10.9.0.11/24 fd00:9::11/64"}) {
		t.Fatalf("on standby there are %v", before)
	}

	waits := f.NewClaim("waits")
	f.Create(waits)
	f.EventuallyCondition(waits, v1alpha1.ConditionAddressAllocated, metav1.ConditionFalse, "PoolExhausted")

	f.Stop()
	f.Start()
	standby(f, 2)

	if after := withAddress(f); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("on standby there were %v, and after a restart %v", before, after)
	}

	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Count: 1})

	vm := next(f, booted)
	if has := before[vm.Name]; has == "" || !contains(vm.Drive["network-config"], strings.Fields(has)...) {
		t.Errorf("%s, which was on standby with %v, started with\n%s", vm.Name, before, vm.Drive["network-config"])
	}

	f.EventuallyDone(1)

	// What it had is the waiting claim's, and not that of the machine that is to take its place
	// on standby: who came first is served first.
	f.EventuallyCondition(waits, v1alpha1.ConditionAddressAllocated, metav1.ConditionTrue, "Allocated")

	if got := addresses(f, waits); strings.Join(got, " ") != before[vm.Name] {
		t.Errorf("the claim that waited has %v, and %s had %s", got, vm.Name, before[vm.Name])
	}

	// Nothing is wanted any more: the addresses of those on standby are free.
	scalePool(f, v1alpha1.Scaling{MaxReplicas: 6, ScaleDownDelay: &metav1.Duration{}})
	standby(f, 0)

	last := f.NewClaim("last")
	f.Create(last)
	f.EventuallyCondition(last, v1alpha1.ConditionAddressAllocated, metav1.ConditionTrue, "Allocated")
}

// next is the machine that boots next.
func next(f *fleet.Fleet, booted <-chan pve.GuestVM) pve.GuestVM {
	f.T.Helper()

	var vm pve.GuestVM

	f.Eventually("a machine that boots", func() (bool, string) {
		select {
		case vm = <-booted:
			return true, ""
		default:
			return false, "none"
		}
	})

	return vm
}

func contains(text []byte, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(string(text), p) })
}

// A template's own network data lack the interface: it is not ready and says so, and no
// machine is made. A claim keeps the address that it was given meanwhile, and its machine
// finds it at the interface once the data are fixed.
func TestOwnNetworkData(t *testing.T) {
	t.Parallel()

	booted := make(chan pve.GuestVM, 2)
	model := fleet.Model()
	model.Guest.Script = func(vm pve.GuestVM) {
		booted <- vm

		<-vm.Context.Done()
	}

	f := fleet.New(t, env, fleet.Options{Model: model})
	f.Networking = true

	template := pooled(f, rangeOf("10.9.0.10-10.9.0.11"))
	template.Spec.Network.Mode, template.Spec.Network.Interface = v1alpha1.NetworkModeCloudInit, "ens19"
	template.Spec.CloudInit = &v1alpha1.CloudInit{NetworkData: "# ours\nversion: 2\nethernets:\n  ens18: {dhcp4: true}\n"}

	claim := f.NewClaim("own")

	f.CreateCluster(f.NewCluster())
	f.Create(template)
	f.Create(claim)
	f.Start()

	said := f.EventuallyCondition(template, "Ready", metav1.ConditionFalse, "NetworkDataInvalid")
	for _, part := range []string{"cloudInit.networkData", `"ens19"`, "ens18", "network.interface"} {
		if !strings.Contains(said, part) {
			t.Errorf("the template's message lacks %q: %s", part, said)
		}
	}

	f.EventuallyCondition(claim, v1alpha1.ConditionAddressAllocated, metav1.ConditionTrue, "Allocated")

	given := addresses(f, claim)
	if claim.Status.VMRef != nil || len(given) != 1 {
		t.Errorf("the claim has %v, and VM %v", given, claim.Status.VMRef)
	}

	fixed := template.DeepCopy()
	fixed.Spec.CloudInit.NetworkData += "  ens19: {mtu: 9000}\n"

	if err := f.Client.Patch(t.Context(), fixed, client.MergeFrom(template)); err != nil {
		t.Fatal(err)
	}

	vm := next(f, booted)
	if !contains(vm.Drive["network-config"], "# ours", "ens18: {dhcp4: true}", "ens19: {mtu: 9000, addresses: ["+given[0]+"]}") {
		t.Errorf("the machine started with\n%s", vm.Drive["network-config"])
	}

	if now := addresses(f, claim); !slices.Equal(now, given) {
		t.Errorf("the claim had %v and has %v", given, now)
	}
}
