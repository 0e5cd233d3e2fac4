// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

func rangeOf(addresses ...v1alpha1.AddressRange) v1alpha1.AddressPool {
	pool := v1alpha1.AddressPool{Addresses: addresses, PrefixLengthV4: 24}

	if slices.ContainsFunc(addresses, func(r v1alpha1.AddressRange) bool { return strings.Contains(string(r), ":") }) {
		pool.PrefixLengthV6 = 64
	}

	return pool
}

// changePool edits a template's pool.
func changePool(f *fleet.Fleet, template *v1alpha1.HypervisorMachineTemplate, pool v1alpha1.AddressPool) {
	f.T.Helper()

	patched := template.DeepCopy()
	patched.Spec.Network.Static.Pool = &pool

	if err := f.Client.Patch(f.T.Context(), patched, client.MergeFrom(template)); err != nil {
		f.T.Fatal(err)
	}

	*template = *patched
}

// The operator ends again and again between the allocation of addresses and the end of
// their machines: no address has two machines, and all jobs are done.
func TestRestarts(t *testing.T) {
	t.Parallel()

	const claims, room = 6, 2

	f := newFleet(t)
	f.CreateCluster(f.NewCluster())
	f.Create(pooled(f, rangeOf("10.9.0.10-10.9.0.11")))

	for i := range claims {
		f.Create(f.NewClaim(fmt.Sprintf("c%02d", i)))
	}

	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Count: claims})

	for round := range 3 {
		f.Start()
		f.Eventually("some having an address, or all being done", func() (bool, string) {
			with, _ := count(f)

			return with > 0 && f.VMsMade() >= round || f.JobsDone() == claims, fmt.Sprintf("%d have one", with)
		})
		f.Stop()
	}

	f.Start()
	f.EventuallyDone(claims)
	f.EventuallyClean()
}

// A pool that grows serves those who wait; claims keep what they have when it moves, and
// what they have is not given a second time.
func TestPoolsChange(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	template := pooled(f, rangeOf("10.9.0.10/32", "fd00:9::10/128"))
	first, second, third := f.NewClaim("first"), f.NewClaim("second"), f.NewClaim("third")

	f.CreateCluster(f.NewCluster())
	f.Create(template)
	f.Start()
	f.Create(first)
	f.EventuallyCondition(first, v1alpha1.ConditionAddressAllocated, metav1.ConditionTrue, "Allocated")

	if got := addresses(f, first); !slices.Equal(got, []string{"10.9.0.10/24", "fd00:9::10/64"}) {
		t.Errorf("first has %v", got)
	}

	f.Create(second)

	message := f.EventuallyCondition(second, "Ready", metav1.ConditionFalse, "PoolExhausted")
	if !strings.Contains(message, "machines/10.9.0.10/32") || second.Status.VMRef != nil {
		t.Errorf("the second is told %q, and has VM %v", message, second.Status.VMRef)
	}

	if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(template), template); err != nil {
		t.Fatal(err)
	}

	changePool(f, template, rangeOf("10.9.0.10-10.9.0.11", "fd00:9::10-fd00:9::11"))
	f.EventuallyCondition(second, v1alpha1.ConditionAddressAllocated, metav1.ConditionTrue, "Allocated")

	if got := addresses(f, second); len(got) != 2 || got[0] != "10.9.0.11/24" {
		t.Errorf("second has %v", got)
	}

	// IPv4 alone from now on, at what the first one has: that is not available.
	changePool(f, template, rangeOf("10.9.0.10/32"))
	f.Create(third)
	f.EventuallyCondition(third, v1alpha1.ConditionAddressAllocated, metav1.ConditionFalse, "PoolExhausted")

	if err := f.Client.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}

	f.EventuallyCondition(third, v1alpha1.ConditionAddressAllocated, metav1.ConditionTrue, "Allocated")

	if got := addresses(f, third); !slices.Equal(got, []string{"10.9.0.10/24"}) {
		t.Errorf("third has %v", got)
	}
}

// Two templates share the same pool; other pools that overlap are refused with words that
// name the template, until one of them is changed. A pool with fewer addresses than its
// RunnerPools' machines is told of.
func TestTemplatesAndTheirPools(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	one := pooled(f, rangeOf("10.9.0.10-10.9.0.19"))
	two := pooled(f, rangeOf("10.9.0.10-10.9.0.19"))
	two.Name = "two"

	f.CreateCluster(f.NewCluster())
	f.Create(one)
	f.Create(two)
	f.Create(f.NewPool(11))
	f.Start()

	for _, template := range []*v1alpha1.HypervisorMachineTemplate{one, two} {
		f.EventuallyCondition(template, v1alpha1.ConditionAddressPoolReady, metav1.ConditionTrue, "Ready")

		message := f.EventuallyCondition(template, v1alpha1.ConditionAddressesFewerThanMachines, metav1.ConditionTrue, "TooFewAddresses")
		if !strings.Contains(message, "suffice for 10 machines") || !strings.Contains(message, "may have 11") {
			t.Errorf("%s says %q", template.Name, message)
		}
	}

	changePool(f, two, rangeOf("10.9.0.19-10.9.0.29"))

	message := f.EventuallyCondition(two, v1alpha1.ConditionAddressPoolReady, metav1.ConditionFalse, "PoolsOverlap")
	if !strings.Contains(message, f.Namespace+"/"+one.Name) || !strings.Contains(message, "10.9.0.19") {
		t.Errorf("the overlap says %q", message)
	}

	claim := f.NewClaim("waits")
	claim.Spec.TemplateRef.Name = two.Name
	f.Create(claim)
	f.EventuallyCondition(claim, "Ready", metav1.ConditionFalse, "PoolsOverlap")

	changePool(f, one, rangeOf("10.9.0.10-10.9.0.18"))
	f.EventuallyCondition(claim, v1alpha1.ConditionAddressAllocated, metav1.ConditionTrue, "Allocated")

	// A valid grammar, and no usable pool: the prefix does not hold the range.
	changePool(f, one, v1alpha1.AddressPool{Addresses: []v1alpha1.AddressRange{"10.9.0.10-10.9.3.18"}, PrefixLengthV4: 30})
	f.EventuallyCondition(one, v1alpha1.ConditionAddressPoolReady, metav1.ConditionFalse, "PoolInvalid")
}

// A machine finds the addresses of both families on its cloud-init ISO, with the way out of each,
// and is not made before they are on record.
func TestISOHasBothFamilies(t *testing.T) {
	t.Parallel()

	found := make(chan string, 1)
	model := fleet.Model()
	model.Guest.Script = func(vm pve.GuestVM) {
		found <- string(vm.Drive["network-config"])

		<-vm.Context.Done()
	}

	f := fleet.New(t, env, fleet.Options{Model: model})
	f.Networking = true

	pool := rangeOf("10.9.0.10/32", "fd00:9::10/128")
	pool.Gateway = []v1alpha1.IPAddress{"10.9.0.1", "fd00:9::1"}
	pool.Nameservers = []v1alpha1.IPAddress{"10.9.0.2"}

	claim := f.NewClaim("dual")

	f.CreateCluster(f.NewCluster())
	f.Create(pooled(f, pool))
	f.Create(claim)
	f.Start()
	f.EventuallyCondition(claim, v1alpha1.ConditionProvisioned, metav1.ConditionTrue, "")

	if got := addresses(f, claim); !slices.Equal(got, []string{"10.9.0.10/24", "fd00:9::10/64"}) {
		t.Errorf("the claim has %v", got)
	}

	if want := f.Cluster + ":vmbr0"; claim.Status.NetworkInfo.AddressNetwork != want || claim.Status.NetworkInfo.Hostname != "dual" {
		t.Errorf("network info is %+v, want network %s", claim.Status.NetworkInfo, want)
	}

	text := <-found
	for _, want := range []string{"10.9.0.10/24", "fd00:9::10/64", "via: 10.9.0.1", "via: fd00:9::1", "10.9.0.2", "dhcp4: false"} {
		if !strings.Contains(text, want) {
			t.Errorf("the cloud-init ISO has no %q:\n%s", want, text)
		}
	}
}
