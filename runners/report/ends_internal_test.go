// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/runners/guestapi"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

// Reports of machines that nobody looks at any more, and their limits, go by themselves.
func TestReportsOfMachinesThatAreGoneEnd(t *testing.T) { //nolint:paralleltest // it looks at the heap
	now := time.Unix(1e9, 0)
	inbox := &Inbox{Wake: func(types.NamespacedName, bool) {}}
	inbox.setOpen(true)

	var limits guestapi.Limits

	heap.Ends(t, "reports", func(number int) {
		uid := types.UID(strconv.Itoa(number))
		now = now.Add(time.Second)

		inbox.put(types.NamespacedName{Name: string(uid)}, uid, note{message: string(make([]byte, 256)), at: metav1.NewMicroTime(now)})
		limits.Genuine(uid, now)
	})
}
