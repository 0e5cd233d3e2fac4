// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/guestapi"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

// Machines that asked and went leave nothing behind: three for each of ten thousand, as what is
// kept of one is little.
func TestLimitsEndWithTheirMachines(t *testing.T) { //nolint:paralleltest // it looks at the heap
	limits, now := &guestapi.Limits{}, time.Unix(1e9, 0)

	heap.Ends(t, "limits", func(number int) {
		for i := range 3 {
			now = now.Add(5 * time.Second)

			if refused := limits.Genuine(types.UID(fmt.Sprintf("uid-%d-%d", number, i)), now); refused != nil {
				t.Fatalf("machine %d: %+v", number, refused)
			}
		}
	})
}

// anyClaim has a claim of each name, whose UID is that.
type anyClaim struct{ client.Client }

func (anyClaim) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	into.SetNamespace(key.Namespace)
	into.SetName(key.Name)
	into.SetUID(types.UID(key.Name))

	return nil
}

// Reports of machines that nobody looks at any more, and their limits, go by themselves.
func TestReportsOfMachinesThatAreGoneEnd(t *testing.T) { //nolint:paralleltest // it looks at the heap
	o, clk := newReportOffice(t, v1alpha1.BootstrapInfo{}), clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	o.open()
	o.handler.Client, o.handler.Clock = anyClaim{}, clk

	heap.Ends(t, "reports", func(number int) {
		clk.SetTime(clk.Now().Add(time.Second))

		claim := claimOf("ci", fmt.Sprintf("linux-%d", number))
		claim.UID = types.UID(claim.Name)

		code := o.sendAs(claim, guest.Report{Phase: guest.PhaseStarted, Message: strings.Repeat("m", 256)})
		if code != http.StatusNoContent || len(o.woken) == 0 {
			t.Fatalf("answered %d, and %d passes were asked for", code, len(o.woken))
		}

		for len(o.woken) > 0 {
			<-o.woken
		}
	})
}
