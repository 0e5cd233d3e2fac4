// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/test/alerts"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// platformOutage is something that goes wrong around the programs, and the metrics of each program that it moves.
type platformOutage struct {
	name    string
	begin   func(s *outageSite)
	metrics map[string][]string
	// end ends the outage.
	end func(s *outageSite)
}

// outageSite is an installation whose cluster was reconciled once.
type outageSite struct {
	*installation

	t     *testing.T
	admin *pgx.Conn
	id    string
}

// TestOutages checks that an outage moves each metric of the platform's programs.
func TestOutages(t *testing.T) { //nolint:tparallel // one outage after the other
	t.Parallel()

	in := newInstallation(t)
	s := &outageSite{installation: in, t: t}

	config, err := os.ReadFile(filepath.Join(in.dir, "api.yaml"))
	must.Do(t, err)
	in.write("api.yaml", string(config)+"stuck_after: 1s\n")
	in.write("broker.yaml", "broker: {type: rabbitmq, max_deliveries: 2, min_backoff: 2s, rabbitmq: {url_file: rabbitmq-url}}\n")
	in.startAll()
	s.id = in.create("healthy")

	admin, err := pgx.Connect(t.Context(), in.database)
	must.Do(t, err)

	defer admin.Close(context.Background())

	s.admin = admin

	for _, tc := range platformOutages() {
		t.Run(tc.name, func(t *testing.T) {
			part := *s
			part.t = t
			histories := map[string]*alerts.History{}

			for program := range tc.metrics {
				histories[program] = alerts.NewHistory(t, "http://"+in.metrics[program]+"/metrics")
			}

			tc.begin(&part)

			for program, metrics := range tc.metrics {
				histories[program].WaitUntilFiring(alerts.Once, nil, metrics)
			}

			if tc.end != nil {
				tc.end(&part)
			}
		})
	}
}

func platformOutages() []platformOutage {
	return []platformOutage{
		{
			name: "a table of the database is locked",
			begin: func(s *outageSite) {
				s.execute("begin")
				s.execute("lock table resources in access exclusive mode")

				go func() { _, _ = call(s.t.Context(), http.MethodGet, s.api+"/api/hyperfleet/v1/clusters", "") }()
			},
			metrics: map[string][]string{"api": {"hyperfleet_api_requests_in_flight"}},
			end:     func(s *outageSite) { s.execute("rollback") },
		},
		{
			name: "an adapter cannot report",
			begin: func(s *outageSite) {
				s.setReadOnly("on")
				sendEvent(s.t, s.installation, "clusters", s.id)
			},
			metrics: map[string][]string{
				"adapter": {
					"hyperfleet_adapter_events_processed_total", "hyperfleet_adapter_errors_total", "hyperfleet_adapter_event_processing_duration_seconds",
					"hyperfleet_broker_messages_consumed_total", "hyperfleet_broker_message_duration_seconds", "hyperfleet_broker_errors_total",
					"hyperfleet_broker_messages_held", "hyperfleet_external_call_duration_seconds",
				},
				"api":      {"hyperfleet_api_requests_total", "hyperfleet_api_request_duration_seconds"},
				"sentinel": {"hyperfleet_sentinel_api_errors_total", "hyperfleet_sentinel_leader"},
			},
		},
		{
			name:    "an adapter still cannot report",
			begin:   func(*outageSite) {},
			metrics: map[string][]string{"adapter": {"hyperfleet_broker_dead_letters_total"}},
			end:     func(s *outageSite) { s.setReadOnly("off") },
		},
		{
			name: "the adapter is lost",
			begin: func(s *outageSite) {
				process := s.processes["adapter"]
				delete(s.processes, "adapter")
				must.Do(s.t, process.Kill())
				s.post("unreconciled")
			},
			metrics: map[string][]string{
				"adapter": {"hyperfleet_adapter_up", "hyperfleet_adapter_build_info"},
				"api": {
					"hyperfleet_api_reconciliation_requests_total", "hyperfleet_api_reconciliation_started_total",
					"hyperfleet_api_resource_pending_reconciliation",
					"hyperfleet_api_resource_pending_reconciliation_stuck", "hyperfleet_api_resource_pending_reconciliation_stuck_duration_seconds",
				},
				"sentinel": {
					"hyperfleet_sentinel_events_published_total", "hyperfleet_sentinel_known_resources", "hyperfleet_sentinel_resources_skipped_total",
					"hyperfleet_sentinel_poll_duration_seconds", "hyperfleet_sentinel_last_successful_poll_timestamp_seconds",
					"hyperfleet_broker_messages_published_total",
				},
			},
		},
		{
			name: "the broker is blocked by an alarm",
			begin: func(s *outageSite) {
				s.broker.SetAlarm(s.t, true)
				s.post("unsent")
			},
			metrics: map[string][]string{"sentinel": {"hyperfleet_sentinel_pending_resources"}},
			end:     func(s *outageSite) { s.broker.SetAlarm(s.t, false) },
		},
		{
			name: "the broker is lost",
			begin: func(s *outageSite) {
				s.broker.Kill(s.t)
				s.post("lost")
			},
			metrics: map[string][]string{"sentinel": {"hyperfleet_sentinel_broker_errors_total", "hyperfleet_broker_errors_total"}},
			end:     func(s *outageSite) { s.broker.Restart(s.t) },
		},
	}
}

func (s *outageSite) execute(statement string) {
	s.t.Helper()

	_, err := s.admin.Exec(s.t.Context(), statement)
	must.Do(s.t, err)
}

// setReadOnly makes the database read-only for new connections, and ends the others, as a failover does.
func (s *outageSite) setReadOnly(value string) {
	s.t.Helper()

	parsed, err := url.Parse(s.database)
	must.Do(s.t, err)

	name := parsed.Path[1:]
	s.execute("set default_transaction_read_only = off")
	s.execute("alter database " + name + " set default_transaction_read_only = " + value)
	s.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
}

// post creates a cluster that nothing reconciles.
func (s *outageSite) post(name string) {
	s.t.Helper()

	_, err := call(s.t.Context(), http.MethodPost, s.api+"/api/hyperfleet/v1/clusters", `{"name": "`+name+`", "spec": {}, "labels": {"tier": "gold"}}`)
	must.Do(s.t, err)
}
