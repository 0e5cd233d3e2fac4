// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/test/alerts"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// TestSlowStartRaisesAlert checks that the alert about slow machines fires if each VM boots for seven minutes.
func TestSlowStartRaisesAlert(t *testing.T) {
	t.Parallel()

	const speed = 60

	model := fleet.Model()
	model.Delays.Boot = 7 * time.Minute

	f := newFastFleet(t, fleet.Options{Model: model, Clock: conformance.FastClock(t, speed)})
	createAndStart(f, f.NewTemplate(), f.NewPool(1))
	f.EventuallyReady(f.NewPool(0))

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		promhttp.HandlerFor(f.Registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	}))
	defer server.Close()

	history := alerts.NewHistory(t, server.URL)
	queueJobs(f, 1)
	history.WaitUntilFiring(alerts.Continues, []string{"HyperFleetMachinesStartSlowly"},
		[]string{"hyperfleet_machine_phase_duration_seconds"})
	f.EventuallyClean()
}
