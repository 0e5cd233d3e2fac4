// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestTroubles: what passes counts for a minute, all else until it is over.
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

		known.note("publish", errors.New("denied"), true)
		known.note("publish", errors.New("lost"), true)
		known.note("consume", errors.New("gone"), false)
		is("at once", "gone\nlost")

		time.Sleep(troubleKept + time.Second)
		is("a minute later", "gone")

		known.note("publish", errors.New("lost"), true)
		is("again", "gone\nlost")
		known.anew()
		is("with a new connection", "gone")
		known.over("consume")
		is("when all is over", "")
	})
}
