// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"context"
	"fmt"
	"net/http"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// A program starts a cluster of three nodes, makes the next call fail, and reads what the cluster recorded.
func Example() {
	cluster, err := pve.New(pve.DefaultModel())
	if err != nil {
		fmt.Println(err)

		return
	}

	defer func() { _ = cluster.Close() }()

	if err := cluster.Start(pve.ListenOptions{}); err != nil {
		fmt.Println(err)

		return
	}

	cluster.AddFault(pve.Fault{Kind: pve.FaultError, Path: "/version", Status: 503, Reason: "Service Unavailable", Count: 1})

	client := cluster.HTTPClient()
	defer client.CloseIdleConnections()

	for range 2 {
		request, err := http.NewRequestWithContext(
			context.Background(), http.MethodGet, cluster.URL()+"/api2/json/version", http.NoBody)
		if err != nil {
			fmt.Println(err)

			return
		}

		request.Header.Set("Authorization", "PVEAPIToken="+pve.DefaultTokenID+"="+pve.DefaultSecret)

		response, err := client.Do(request)
		if err != nil {
			fmt.Println(err)

			return
		}

		_ = response.Body.Close()
	}

	for _, call := range cluster.Calls() {
		fmt.Println(call.Method, call.Path, call.Status, call.Reason)
	}
	// Output:
	// GET /version 503 Service Unavailable
	// GET /version 200
}
