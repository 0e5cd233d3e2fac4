// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package property_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/kit/property"
)

// logRecorder records the log of a test.
type logRecorder struct {
	testing.TB

	text strings.Builder
}

func (h *logRecorder) Helper() {}

func (h *logRecorder) Log(args ...any) { fmt.Fprintln(&h.text, args...) }

func TestFailureIsLogged(t *testing.T) {
	t.Parallel()

	h := &logRecorder{TB: t}
	properties := gopter.NewProperties(gopter.DefaultTestParameters())
	properties.Property("numbers are small", prop.ForAll(func(n int) string {
		if n > 99 {
			return "it is large"
		}

		return ""
	}, gen.IntRange(0, 1000)))

	if properties.Run(property.NewReporter(h)) {
		t.Fatal("the property holds")
	}

	for _, want := range []string{"numbers are small", "Falsified", "passed tests. it is large", "ARG_0: 100"} {
		if !strings.Contains(h.text.String(), want) {
			t.Errorf("%q is missing:\n%s", want, h.text.String())
		}
	}
}
