// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/pools"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

// Whatever becomes of a pool, nothing of it is left when it is gone: neither of those that
// were refused, nor of their networks, nor of those who asked in vain.
func TestPoolsThatAreGoneLeaveNothing(t *testing.T) { //nolint:paralleltest // it looks at the heap
	b := pools.New()

	heap.Ends(t, "pools", func(number int) {
		network, name := fmt.Sprintf("n%d", number), fmt.Sprintf("p%d", number)
		moved := network + "-moved"
		wake := func() {}

		set(t, b, pool(t, network, name, "10.0.0.10-10.0.0.11"))

		var overlap *alloc.OverlapError
		if err := b.SetPool(pool(t, network, "late", "10.0.0.11-10.0.0.12"), wake); !errors.As(err, &overlap) {
			t.Fatalf("a pool that overlaps: %v", err)
		}

		set(t, b, pool(t, moved, "late", "10.0.0.11-10.0.0.12"))

		for _, owner := range []string{"a", "b", "c"} {
			_, _ = b.Acquire(pools.Request{Network: network, Pool: name, Owner: owner, Wake: wake})
			_, _ = b.Acquire(pools.Request{Network: network + "-none", Pool: name, Owner: "none " + owner})
		}

		for _, owner := range []string{"a", "b", "c"} {
			b.Release(owner)
		}

		b.RemovePool(name)
		b.RemovePool("late")
	})
}
