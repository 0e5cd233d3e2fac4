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

// newAddressPool returns a pool with the ranges.
func newAddressPool(addresses ...v1alpha1.AddressRange) v1alpha1.AddressPool {
	pool := v1alpha1.AddressPool{Addresses: addresses, PrefixLengthV4: 24}

	if slices.ContainsFunc(addresses, func(r v1alpha1.AddressRange) bool { return strings.Contains(string(r), ":") }) {
		pool.PrefixLengthV6 = 64
	}

	return pool
}

// updateAddressPool updates a template's pool.
func updateAddressPool(f *fleet.Fleet, template *v1alpha1.HypervisorMachineTemplate, pool v1alpha1.AddressPool) {
	f.T.Helper()
	updateObject(f, template, func() { template.Spec.Network.Static.Pool = &pool })
}

// TestTemplatesAndTheirPools checks that two templates can share a pool, that another pool that overlaps is
// rejected with a message that names the template until one of them is changed, and that a pool with fewer
// addresses than machines is reported.
func TestTemplatesAndTheirPools(t *testing.T) {
	t.Parallel()

	f := newAddressFleet(t, fleet.Options{})
	one := newPooledTemplate(f, newAddressPool("10.9.0.10-10.9.0.19"))
	two := newPooledTemplate(f, newAddressPool("10.9.0.10-10.9.0.19"))
	two.Name = "two"

	createAndStart(f, one, two, f.NewPool(11))

	for _, template := range []*v1alpha1.HypervisorMachineTemplate{one, two} {
		f.EventuallyCondition(template, v1alpha1.ConditionAddressPoolReady, metav1.ConditionTrue, "Ready")

		checkContains(t, f.EventuallyCondition(template, v1alpha1.ConditionAddressesFewerThanMachines, metav1.ConditionTrue, "TooFewAddresses"),
			"addresses for 10 machines", "can have 11")
	}

	updateAddressPool(f, two, newAddressPool("10.9.0.19-10.9.0.29"))
	checkContains(t, f.EventuallyCondition(two, v1alpha1.ConditionAddressPoolReady, metav1.ConditionFalse, "PoolsOverlap"),
		f.Namespace+"/"+one.Name, "10.9.0.19")

	claim := f.NewClaim("waits")
	claim.Spec.TemplateRef.Name = two.Name
	f.Create(claim)
	f.EventuallyCondition(claim, "Ready", metav1.ConditionFalse, "PoolsOverlap")

	updateAddressPool(f, one, newAddressPool("10.9.0.10-10.9.0.18"))
	f.EventuallyCondition(claim, v1alpha1.ConditionAddressAllocated, metav1.ConditionTrue, "Allocated")

	// The syntax is valid, but the range does not fit into the prefix.
	updateAddressPool(f, one, v1alpha1.AddressPool{Addresses: []v1alpha1.AddressRange{"10.9.0.10-10.9.3.18"}, PrefixLengthV4: 30})
	f.EventuallyCondition(one, v1alpha1.ConditionAddressPoolReady, metav1.ConditionFalse, "PoolInvalid")
}
