// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// TestBadPools checks that an invalid address pool is reported in the template's condition, that a machine keeps
// its address while the pool is invalid, and that no other machine gets that address after the pool is fixed.
func TestBadPools(t *testing.T) {
	t.Parallel()

	f := newAddressFleet(t, fleet.Options{})
	good := newAddressPool("10.9.0.10-10.9.0.19")
	template := newPooledTemplate(f, good)

	keeps := f.NewClaim("keeps")
	createAndStart(f, template, keeps)
	f.EventuallyCondition(keeps, v1alpha1.ConditionAddressAllocated, metav1.ConditionTrue, "Allocated")

	has := getAddresses(f, keeps)

	for _, row := range []struct {
		why  string
		bad  func(*v1alpha1.AddressPool)
		want string
	}{
		{
			"reversed range", func(p *v1alpha1.AddressPool) { p.Addresses = []v1alpha1.AddressRange{"10.9.0.19-10.9.0.10"} },
			"addresses[0]",
		},
		{
			"exclusion outside", func(p *v1alpha1.AddressPool) { p.ExcludedAddresses = []v1alpha1.AddressRange{"10.8.0.0/24"} },
			"excludedAddresses[0]",
		},
		{
			"no address left", func(p *v1alpha1.AddressPool) { p.ExcludedAddresses = []v1alpha1.AddressRange{"10.9.0.0/24"} },
			"no IPv4 address left",
		},
		{
			"gateway in no subnet", func(p *v1alpha1.AddressPool) { p.Gateway = []v1alpha1.IPAddress{"172.16.0.1"} },
			"gateway",
		},
		{
			"no prefix length", func(p *v1alpha1.AddressPool) { p.PrefixLengthV4 = 0 },
			"prefix length",
		},
	} {
		pool := *good.DeepCopy()
		row.bad(&pool)
		updateAddressPool(f, template, pool)

		f.Eventually(row.why+" being reported", func() (bool, string) {
			message := f.EventuallyCondition(template, v1alpha1.ConditionAddressPoolReady, metav1.ConditionFalse, "PoolInvalid")

			return strings.Contains(message, row.want), message
		})

		if got := getAddresses(f, keeps); !slices.Equal(got, has) {
			t.Errorf("%s: the addresses of the machine changed from %v to %v", row.why, has, got)
		}
	}

	waits := f.NewClaim("waits")
	f.Create(waits)
	f.EventuallyCondition(waits, "Ready", metav1.ConditionFalse, "PoolInvalid")
	updateAddressPool(f, template, good)
	f.EventuallyCondition(waits, v1alpha1.ConditionAddressAllocated, metav1.ConditionTrue, "Allocated")

	if got := getAddresses(f, waits); slices.Equal(got, has) || !slices.Equal(getAddresses(f, keeps), has) {
		t.Errorf("the first machine had %v; the second machine has %v", has, got)
	}
}
