// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestTroubles: each counts for a minute after it was last met, or until it is over.
func TestTroubles(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var known troubles

		is := func(when, want string) {
			t.Helper()

			got := ""
			if err := known.err(); err != nil {
				got = err.Error()
			}

			if got != want {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}

		known.note("publish", errors.New("denied"))
		known.note("publish", errors.New("lost"))
		known.note("consume", errors.New("gone"))
		is("at once", "gone\nlost")

		time.Sleep(troubleKept / 2)
		known.note("consume", errors.New("gone"))
		time.Sleep(troubleKept/2 + time.Second)
		is("a minute later", "gone")

		known.note("consume", nil)
		is("when all is over", "")
	})
}
