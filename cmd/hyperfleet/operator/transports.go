// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"net/http"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// transports put the calls to other systems into the metrics.
type transports struct{ calls *metrics.Calls }

func newTransports(registerer prometheus.Registerer) (*transports, error) {
	calls, err := metrics.NewCalls(registerer, nil)
	if err != nil {
		return nil, fmt.Errorf("set up metrics of external calls: %w", err)
	}

	return &transports{calls: calls}, nil
}

// wrap gives what wraps a system's HTTP transport.
func (t *transports) wrap(system string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return t.calls.Transport(system, operation, next)
	}
}

// variable matches the parts of a path that name objects: ids, task ids, volumes, and
// what follows the words that introduce a name.
var variable = regexp.MustCompile(`/(nodes|qemu|tasks|storage|content|repos|orgs|enterprises|runners|jobs|installations|users)/([^/]+)(/([^/]+))?`) //nolint:gochecknoglobals // a constant

// operation names a call by its method and its path without the names of objects.
func operation(r *http.Request) string {
	path := variable.ReplaceAllStringFunc(r.URL.Path, func(match string) string {
		parts := variable.FindStringSubmatch(match)
		if parts[1] == "repos" {
			return "/repos/{owner}/{repo}"
		}

		if parts[3] == "" {
			return "/" + parts[1] + "/{}"
		}

		return "/" + parts[1] + "/{}" + parts[3]
	})

	return r.Method + " " + path
}
