// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

// What is kept of claims, of what has them fail and of where they are registered, ends with
// them.
func TestWhatIsKeptOfClaimsEnds(t *testing.T) { //nolint:paralleltest // it looks at the heap
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	clk := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	claims := &Reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).Build(), Clock: clk}

	heap.Ends(t, "claims", func(number int) {
		claim := &v1alpha1.MachineClaim{}
		claim.Namespace, claim.Name, claim.UID = "ns", fmt.Sprintf("c%d", number), types.UID(strconv.Itoa(number))
		name := client.ObjectKeyFromObject(claim)

		for range openAfter {
			claims.causes.failed(fmt.Sprintf("scope %d", number), name, clk.Now(), "does not answer")
		}

		claims.causes.note(name, tries{message: "does not answer"})
		claims.retired.add(claim)
		claims.deregistered.add(claim)
		claims.listings.wait(fmt.Sprintf("scope %d", number), clk.Now(), clk.Now())

		if _, err := claims.Reconcile(t.Context(), reconcile.Request{NamespacedName: name}); err != nil {
			t.Fatal(err)
		}

		clk.SetTime(clk.Now().Add(forgetAfter))
	})
}
