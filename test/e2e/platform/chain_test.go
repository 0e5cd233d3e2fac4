// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"net/http"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

// One cluster with a pool, from the first request to nothing, on each broker.
func TestOneCluster(t *testing.T) {
	for _, broker := range []string{platform.BrokerNATS, platform.BrokerRabbitMQ} {
		t.Run(broker, func(t *testing.T) {
			w := newWorld(t, setup{broker: broker, sentinel: quick()})
			w.start(progAPI, progSentinel, progPoolsSentinel, progClusters, progPools)

			id := w.create("/clusters", resource{Name: "home", Spec: map[string]any{"tier": "gold"}})
			pool := w.create("/clusters/"+id+"/nodepools", resource{Name: "workers", Spec: map[string]any{"replicas": 3}})
			w.settled("cluster and pool are reconciled")

			w.send(http.MethodDelete, "/clusters/"+id, nil)
			w.eventually("both are gone", func() string {
				if w.gone(id) && w.gone(pool) {
					return ""
				}

				return "the API still has them"
			})
		})
	}
}

// quick are cadences for people in a hurry.
func quick() []string {
	return []string{
		"HYPERFLEET_POLL_INTERVAL=500ms", "HYPERFLEET_MAX_AGE_NOT_RECONCILED=2s", "HYPERFLEET_MAX_AGE_RECONCILED=15s",
	}
}
