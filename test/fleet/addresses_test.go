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
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// newFleet is a fleet with the networking area, whose addresses are watched.
func newFleet(t *testing.T, opts fleet.Options) *fleet.Fleet {
	t.Helper()

	f := quick(t, opts)
	f.Networking = true
	f.WatchAddresses()

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

// addressesOf are those on record for a claim.
func addressesOf(f *fleet.Fleet, claim *v1alpha1.MachineClaim) []string {
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
	moreClaims(t, 5, 2)
}

func TestSoakMoreClaimsThanAddresses(t *testing.T) {
	property.Soak(t)
	t.Parallel()
	moreClaims(t, 50, 20)
}

func moreClaims(t *testing.T, claims, room int) {
	t.Helper()

	f := newFleet(t, fleet.Options{})
	begin(f, pooled(f, rangeOf(v1alpha1.AddressRange(fmt.Sprintf("10.9.0.10-10.9.0.%d", 9+room)))))

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

	if made := f.CountClones(); made > room {
		t.Errorf("%d machines were made with %d addresses", made, room)
	}

	queue(f, claims)
	f.EventuallyJobsDone(claims)
	f.EventuallyClean()
}

// count is how many claims have an address, and how many say that there is none for them.
func count(f *fleet.Fleet) (with, waiting int) {
	f.T.Helper()

	for _, claim := range claims(f) {
		if slices.ContainsFunc(claim.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == "Ready" && c.Reason == "PoolExhausted" && strings.Contains(c.Message, "add addresses")
		}) {
			waiting++
		}
	}

	return len(withAddress(f)), waiting
}
