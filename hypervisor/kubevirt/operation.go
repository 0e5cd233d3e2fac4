// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"net/http"
	"strings"
)

// OperationName returns the name of a call for metrics. It consists of the method and the path without
// the names of objects and namespaces, for example
// "PATCH /apis/kubevirt.io/v1/virtualmachines/{name}". The method of a watch is WATCH.
func OperationName(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")

	// /api/v1/… and /apis/{group}/{version}/…
	prefix := 2
	if parts[0] == "apis" {
		prefix = 3
	}

	if len(parts) <= prefix {
		return r.Method + " /" + strings.Join(parts, "/")
	}

	rest := parts[prefix:]
	if rest[0] == "namespaces" && len(rest) > 2 {
		rest = rest[2:]
	}

	if len(rest) > 1 {
		rest = append([]string{rest[0], "{name}"}, rest[2:]...)
	}

	method := r.Method
	if r.URL.Query().Get("watch") != "" {
		method = "WATCH"
	}

	return method + " /" + strings.Join(append(parts[:prefix:prefix], rest...), "/")
}
