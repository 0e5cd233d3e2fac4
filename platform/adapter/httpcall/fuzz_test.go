// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package httpcall

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/adapter"
)

// FuzzResolve inserts arbitrary values of an event into a path. The request must stay at the fleet API,
// below the path of the task file.
func FuzzResolve(f *testing.F) {
	for _, value := range []string{
		"a", "..", "../leases/x", "%2e%2e/x", "%252e", "a?b=c", "a#b", "//host/x", "@host", "\\\\host", "a/../../..", "\x00", "%", "a b", "ä",
		"x/%2E%2E/%2e%2e/%2e%2e/etc",
	} {
		f.Add(value)
	}

	client, err := New(Options{API: adapter.HyperFleetAPI{BaseURL: "http://fleet.example:8000", Version: "v1"}})
	if err != nil {
		f.Fatal(err)
	}

	f.Fuzz(func(t *testing.T, value string) {
		target, err := client.resolve("clusters/" + value)
		if err != nil {
			return
		}

		if target.Scheme != "http" || target.Host != "fleet.example:8000" || target.User != nil ||
			!strings.HasPrefix(target.Path, "/api/hyperfleet/v1/clusters") {
			t.Errorf("%q resolves to %s", value, target)
		}
	})
}
