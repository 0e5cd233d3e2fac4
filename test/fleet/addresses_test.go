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

// newAddressFleet returns a fleet with the networking area, and checks the addresses of its claims.
func newAddressFleet(t *testing.T, opts fleet.Options) *fleet.Fleet {
	t.Helper()

	f := newFastFleet(t, opts)
	f.Networking = true
	f.WatchAddresses()

	return f
}

// newPooledTemplate returns the fleet's template with an address pool.
func newPooledTemplate(f *fleet.Fleet, pool v1alpha1.AddressPool) *v1alpha1.HypervisorMachineTemplate {
	template := f.NewTemplate()
	template.Spec.Network = &v1alpha1.MachineNetwork{
		Mode: v1alpha1.NetworkModeStatic, Static: &v1alpha1.StaticNetwork{Pool: &pool},
	}

	return template
}

// getAddresses returns the addresses in a claim's status.
func getAddresses(f *fleet.Fleet, claim *v1alpha1.MachineClaim) []string {
	f.T.Helper()

	if err := f.Client.Get(f.T.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
		f.T.Fatal(err)
	}

	if claim.Status.NetworkInfo == nil {
		return nil
	}

	return claim.Status.NetworkInfo.Addresses
}

// TestMoreClaimsThanAddresses checks that all claims of a pool with too few addresses run in the end, that no two
// machines have the same address, and that waiting claims report why they wait.
func TestMoreClaimsThanAddresses(t *testing.T) {
	t.Parallel()
	runMoreClaims(t, 5, 2)
}

func TestSoakMoreClaimsThanAddresses(t *testing.T) {
	property.Soak(t)
	t.Parallel()
	runMoreClaims(t, 50, 20)
}

func runMoreClaims(t *testing.T, claims, room int) {
	t.Helper()

	f := newAddressFleet(t, fleet.Options{})
	createAndStart(f, newPooledTemplate(f, newAddressPool(v1alpha1.AddressRange(fmt.Sprintf("10.9.0.10-10.9.0.%d", 9+room)))))

	template := f.NewTemplate()
	f.EventuallyReady(template)
	f.EventuallyCondition(template, v1alpha1.ConditionAddressPoolReady, metav1.ConditionTrue, "Ready")

	for i := range claims {
		f.Create(f.NewClaim(fmt.Sprintf("c%02d", i)))
	}

	f.Eventually("some claims having an address, and the others waiting", func() (bool, string) {
		with, waiting := countClaims(f)

		return with == room && waiting == claims-room, fmt.Sprintf("%d have an address, %d wait", with, waiting)
	})

	if made := f.CountClones(); made > room {
		t.Errorf("%d machines were created with %d addresses", made, room)
	}

	queueJobs(f, claims)
	f.EventuallyJobsDone(claims)
	f.EventuallyClean()
}

// countClaims returns the number of claims that have an address, and of claims that report an exhausted pool.
func countClaims(f *fleet.Fleet) (with, waiting int) {
	f.T.Helper()

	for _, claim := range listClaims(f) {
		if slices.ContainsFunc(claim.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == "Ready" && c.Reason == "PoolExhausted" && strings.Contains(c.Message, "add addresses")
		}) {
			waiting++
		}
	}

	return len(listAddresses(f)), waiting
}
