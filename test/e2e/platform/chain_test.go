// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"net/http"
	"testing"
)

// One cluster with a pool, from the first request to nothing: with adapters that follow the
// API, and with RabbitMQ.
func TestOneCluster(t *testing.T) {
	for name, rabbit := range map[string]bool{"feed": false, "rabbitmq": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setup{rabbit: rabbit, pace: quick()})
			w.start(w.platform()...)

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
func quick() []string { return []string{"MAX_AGE_NOT_RECONCILED=2s", "MAX_AGE_RECONCILED=15s"} }
