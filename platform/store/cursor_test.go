// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"math"
	"testing"
)

func TestCursorsRoundTrip(t *testing.T) {
	t.Parallel()

	for _, want := range []cursor{{}, {token: 1, seq: 1}, {token: math.MaxUint32, seq: math.MaxInt64}} {
		text := want.encode()
		if got, err := parseCursor(text); err != nil || got != want || len(text) > 64 {
			t.Errorf("%+v encoded as %s was decoded as %+v, error %v", want, text, got, err)
		}
	}
}

func FuzzParseCursor(f *testing.F) {
	f.Add("AQEB")
	f.Add(cursor{token: 77, seq: 1 << 40}.encode())
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseCursor(text)

		switch {
		case err != nil && !errors.Is(err, ErrCursorMalformed):
			t.Errorf("%q: error %v", text, err)
		case err == nil && (got.token < 0 || got.seq < 0):
			t.Errorf("%q was decoded as %+v", text, got)
		}
	})
}
