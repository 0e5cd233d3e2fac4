// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// newFleet is a fleet with the networking area, whose addresses are watched.
func newFleet(t *testing.T) *fleet.Fleet {
	t.Helper()

	f := fleet.New(t, env, fleet.Options{})
	f.Networking = true
	watchAddresses(t, f)

	return f
}

// pooled is the fleet's template with a pool.
func pooled(f *fleet.Fleet, pool v1alpha1.AddressPool) *v1alpha1.HypervisorMachineTemplate {
	template := f.NewTemplate()
	template.Spec.Network = &v1alpha1.MachineNetwork{
		Mode: v1alpha1.NetworkModeStatic, Static: &v1alpha1.StaticNetwork{Pool: &pool},
	}

	return template
}

// watchAddresses fails the test when a claim gets an address on record while another claim
// that is there has it, be its machine made or not.
func watchAddresses(t *testing.T, f *fleet.Fleet) {
	t.Helper()

	watcher, err := client.NewWithWatch(env.Config, client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	stream, err := watcher.Watch(t.Context(), &v1alpha1.MachineClaimList{}, client.InNamespace(f.Namespace))
	if err != nil {
		t.Fatal(err)
	}

	done, holders := make(chan struct{}), map[string]string{}

	go func() {
		defer close(done)

		for event := range stream.ResultChan() {
			if claim, ok := event.Object.(*v1alpha1.MachineClaim); ok {
				note(t, holders, claim, event.Type == watch.Deleted)
			}
		}
	}()

	t.Cleanup(func() {
		stream.Stop()
		<-done
	})
}

func note(t *testing.T, holders map[string]string, claim *v1alpha1.MachineClaim, gone bool) {
	t.Helper()

	for address, holder := range holders {
		if holder == claim.Name {
			delete(holders, address)
		}
	}

	if gone || claim.Status.NetworkInfo == nil {
		return
	}

	for _, address := range claim.Status.NetworkInfo.Addresses {
		if other := holders[address]; other != "" {
			t.Errorf("%s was given to %s while %s had it", address, claim.Name, other)
		}

		holders[address] = claim.Name
	}
}

// addresses are those on record for a claim.
func addresses(f *fleet.Fleet, claim *v1alpha1.MachineClaim) []string {
	f.T.Helper()

	if err := f.Client.Get(f.T.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
		f.T.Fatal(err)
	}

	if claim.Status.NetworkInfo == nil {
		return nil
	}

	return claim.Status.NetworkInfo.Addresses
}

// More claims than addresses: all of them run in the end, never two with one address, and
// who waits says why.
func TestMoreClaimsThanAddresses(t *testing.T) {
	t.Parallel()
	moreClaims(t, 6, 2)
}

func TestSoakMoreClaimsThanAddresses(t *testing.T) {
	property.Soak(t)
	t.Parallel()
	moreClaims(t, 50, 20)
}

func moreClaims(t *testing.T, claims, room int) {
	t.Helper()

	f := newFleet(t)
	f.CreateCluster(f.NewCluster())
	f.Create(pooled(f, v1alpha1.AddressPool{
		Addresses: []v1alpha1.AddressRange{v1alpha1.AddressRange(fmt.Sprintf("10.9.0.10-10.9.0.%d", 9+room))}, PrefixLengthV4: 24,
		Gateway: []v1alpha1.IPAddress{"10.9.0.1"}, Nameservers: []v1alpha1.IPAddress{"10.9.0.2"},
	}))
	f.Start()

	template := f.NewTemplate()
	f.EventuallyReady(template)
	f.EventuallyCondition(template, v1alpha1.ConditionAddressPoolReady, metav1.ConditionTrue, "Ready")

	for i := range claims {
		f.Create(f.NewClaim(fmt.Sprintf("c%02d", i)))
	}

	f.Eventually("claims that wait for an address, the others with one", func() (bool, string) {
		with, waiting := count(f)

		return with == room && waiting == claims-room, fmt.Sprintf("%d have one, %d wait", with, waiting)
	})

	if made := f.VMsMade(); made > room {
		t.Errorf("%d machines were made with %d addresses", made, room)
	}

	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Count: claims})
	f.EventuallyDone(claims)
	f.EventuallyClean()
}

// count is how many claims have an address, and how many say that there is none for them.
func count(f *fleet.Fleet) (with, waiting int) {
	f.T.Helper()

	var list v1alpha1.MachineClaimList
	if err := f.Client.List(f.T.Context(), &list, client.InNamespace(f.Namespace)); err != nil {
		f.T.Fatal(err)
	}

	for i := range list.Items {
		claim := &list.Items[i]
		if claim.Status.NetworkInfo != nil && len(claim.Status.NetworkInfo.Addresses) > 0 {
			with++
		}

		if slices.ContainsFunc(claim.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == "Ready" && c.Reason == "PoolExhausted" && strings.Contains(c.Message, "add addresses")
		}) {
			waiting++
		}
	}

	return with, waiting
}
