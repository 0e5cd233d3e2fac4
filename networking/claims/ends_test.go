// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/claims"
	"github.com/hyperfleet/hyperfleet/networking/pools"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

// Of a template that is gone nothing is left.
func TestTemplatesThatAreGoneLeaveNothing(t *testing.T) { //nolint:paralleltest // it looks at the heap
	registry := claims.NewRegistry(pools.New())
	cluster := &v1alpha1.HypervisorCluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}}

	heap.Ends(t, "templates", func(number int) {
		template := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("t%d", number)}}
		template.Spec.Network = &v1alpha1.MachineNetwork{
			Mode: v1alpha1.NetworkModeStatic, Bridge: fmt.Sprintf("vmbr%d", number),
			Static: &v1alpha1.StaticNetwork{Pool: &v1alpha1.AddressPool{
				Addresses: []v1alpha1.AddressRange{"10.0.0.10-10.0.0.99"}, PrefixLengthV4: 24,
			}},
		}
		registry.Set(template, cluster, nil)
		registry.Remove(client.ObjectKeyFromObject(template))
	})
}
