// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

// TestLargeTree deletes a cluster of 200 node pools in one transaction.
func TestLargeTree(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	cluster := a.create("/clusters", "large", nil)

	for i := range 200 {
		a.create("/clusters/"+cluster.Id+"/nodepools", fmt.Sprintf("p%d", i), nil)
	}

	gone := a.do("DELETE", "/clusters/"+cluster.Id, nil)
	for tries := 0; gone.status == 503 && tries < 5; tries++ {
		// A server whose machine is busy gives up in time, and says to try again.
		gone = a.do("DELETE", "/clusters/"+cluster.Id, nil)
	}

	as[openapi.Resource](t, gone, 202)

	if got := as[openapi.ResourceList](t, a.do("GET", "/nodepools?search=deleted_time%3E%272020-01-01T00:00:00Z%27", nil), 200); got.Total != 200 {
		t.Errorf("%d are being deleted", got.Total)
	}
}
