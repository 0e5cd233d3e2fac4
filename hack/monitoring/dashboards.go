// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// Units of Grafana.
const (
	seconds  = "s"
	short    = "short"
	percent  = "percentunit"
	byteSize = "bytes"
	perSec   = "reqps"
)

// Panel types of Grafana.
const (
	timeseries = "timeseries"
	stat       = "stat"
)

// query is a query of a panel, with the legend of its series.
type query struct{ expr, legend string }

// panel is a panel of a dashboard. kind is timeseries or stat.
type panel struct {
	title, kind, unit string
	isStacked         bool
	queries           []query
}

// variable is a dashboard variable whose values come from a query.
type variable struct{ name, query string }

// dashboard is a Grafana dashboard.
type dashboard struct {
	uid, title string
	variables  []variable
	panels     []panel
}

func linePanel(title, unit string, queries ...query) panel {
	return panel{title: title, kind: timeseries, unit: unit, queries: queries}
}

func stackedPanel(title, unit string, queries ...query) panel {
	return panel{title: title, kind: timeseries, unit: unit, isStacked: true, queries: queries}
}

func statPanel(title, unit, expr string) panel {
	return panel{title: title, kind: stat, unit: unit, queries: []query{{expr, ""}}}
}

// quantile returns an expression for a quantile of a histogram. labels starts with a comma unless it is
// empty.
func quantile(q float64, metric, labels, selector string) string {
	const format = `histogram_quantile(%g, sum by (le%s) (rate(%s_bucket{%s}[$__rate_interval])))`

	return fmt.Sprintf(format, q, labels, metric, selector)
}

// dashboards returns all dashboards.
func dashboards() []dashboard {
	return []dashboard{overviewDashboard(), poolDashboard(), clusterDashboard(), platformDashboard(), hostsDashboard()}
}

func overviewDashboard() dashboard {
	return dashboard{uid: "hyperfleet-overview", title: "HyperFleet / Overview", panels: []panel{
		statPanel("Waiting jobs", short, `sum(hyperfleet_jobs_waiting)`),
		statPanel("Running jobs", short, `sum(hyperfleet_pool_jobs_running)`),
		statPanel("Machines", short, `sum(hyperfleet_machines)`),
		statPanel("Jobs finished in the last hour", short, `sum(increase(hyperfleet_job_finished_total[1h]))`),
		stackedPanel("Waiting jobs by reason", short,
			query{`sum by (reason) (hyperfleet_jobs_waiting)`, "{{reason}}"}),
		linePanel("Job queue duration", seconds,
			query{quantile(0.5, "hyperfleet_job_queue_duration_seconds", "", ""), "50%"},
			query{quantile(0.95, "hyperfleet_job_queue_duration_seconds", "", ""), "95%"}),
		stackedPanel("Machines by phase", short, query{`sum by (phase) (hyperfleet_machines)`, "{{phase}}"}),
		stackedPanel(
			"Ended machines by reason",
			perSec,
			query{`sum by (reason) (rate(hyperfleet_machine_ended_total[$__rate_interval]))`, "{{reason}}"},
		),
		linePanel("Duration of machine phases (95%)", seconds,
			query{quantile(0.95, "hyperfleet_machine_phase_duration_seconds", ", phase", `phase!="job"`), "{{phase}}"}),
		linePanel(
			"Objects that are not Ready",
			short,
			query{`sum by (kind) (hyperfleet_objects{ready!="True",kind!~"RunnerJob|MachineClaim"})`, "{{kind}}"},
		),
	}}
}

func poolDashboard() dashboard {
	const selector = `namespace="$namespace",pool="$pool"`

	return dashboard{
		uid: "hyperfleet-pool", title: "HyperFleet / Pool",
		variables: []variable{
			{"namespace", `label_values(hyperfleet_pool_machines_desired, namespace)`},
			{"pool", `label_values(hyperfleet_pool_machines_desired{namespace="$namespace"}, pool)`},
		},
		panels: []panel{
			statPanel("Waiting jobs", short, `hyperfleet_pool_jobs_queued{`+selector+`}`),
			statPanel("Running jobs", short, `hyperfleet_pool_jobs_running{`+selector+`}`),
			statPanel("Longest current wait", seconds, `hyperfleet_jobs_oldest_queued_age_seconds{`+selector+`}`),
			statPanel("Consecutive failures", short, `hyperfleet_pool_consecutive_failures{`+selector+`}`),
			stackedPanel("Machines", short, query{`hyperfleet_pool_machines{` + selector + `}`, "{{state}}"}),
			linePanel("Desired machines and limits", short,
				query{`hyperfleet_pool_machines_desired{` + selector + `}`, "desired"},
				query{`hyperfleet_pool_machines_min{` + selector + `}`, "minimum"},
				query{`hyperfleet_pool_machines_max{` + selector + `}`, "maximum"}),
			linePanel("Job queue duration", seconds,
				query{quantile(0.5, "hyperfleet_job_queue_duration_seconds", "", selector), "50%"},
				query{quantile(0.95, "hyperfleet_job_queue_duration_seconds", "", selector), "95%"}),
			linePanel("Job run duration", seconds,
				query{quantile(0.5, "hyperfleet_job_run_duration_seconds", "", selector), "50%"},
				query{quantile(0.95, "hyperfleet_job_run_duration_seconds", "", selector), "95%"}),
			linePanel("Duration of machine phases (95%)", seconds,
				query{quantile(0.95, "hyperfleet_machine_phase_duration_seconds", ", phase", selector+`,phase!="job"`), "{{phase}}"}),
			stackedPanel("Ended machines by reason", perSec,
				query{`sum by (reason) (rate(hyperfleet_machine_ended_total{` + selector + `}[$__rate_interval]))`, "{{reason}}"}),
			stackedPanel("Waiting jobs by reason", short,
				query{`sum by (reason) (hyperfleet_jobs_waiting{` + selector + `})`, "{{reason}}"}),
			stackedPanel("Finished jobs by conclusion", perSec,
				query{`sum by (conclusion) (rate(hyperfleet_job_finished_total{` + selector + `}[$__rate_interval]))`, "{{conclusion}}"}),
		},
	}
}

func clusterDashboard() dashboard {
	usedShare := func(resource string) string {
		return fmt.Sprintf(
			`1 - hyperfleet_node_available{cluster="$cluster",resource=%q} / hyperfleet_node_capacity{cluster="$cluster",resource=%q}`,
			resource,
			resource,
		)
	}

	return dashboard{
		uid: "hyperfleet-cluster", title: "HyperFleet / Hypervisor",
		variables: []variable{{"cluster", `label_values(hyperfleet_cluster_machines, cluster)`}},
		panels: []panel{
			statPanel("Machines", short, `hyperfleet_cluster_machines{cluster="$cluster"}`),
			statPanel("Nodes online", short, `sum(hyperfleet_node_online{cluster="$cluster"})`),
			statPanel("Excluded nodes", short, `sum(hyperfleet_node_excluded{cluster="$cluster"})`),
			statPanel("Held orphans", short, `hyperfleet_orphans_held{cluster="$cluster"}`),
			linePanel("Used CPU cores", percent, query{usedShare("cpu"), "{{node}}"}),
			linePanel("Used memory", percent, query{usedShare("memory"), "{{node}}"}),
			linePanel("Free storage", byteSize, query{`hyperfleet_node_available{cluster="$cluster",resource="storage"}`, "{{node}}"}),
			linePanel("Excluded nodes", short, query{`hyperfleet_node_excluded{cluster="$cluster"}`, "{{node}}"}),
		},
	}
}

func platformDashboard() dashboard {
	const calls = "hyperfleet_external_call_duration_seconds"

	return dashboard{
		uid: "hyperfleet-platform", title: "HyperFleet / Other systems",
		variables: []variable{{"system", `label_values(` + calls + `_count, system)`}},
		panels: []panel{
			linePanel("Remaining calls until the rate limit", short,
				query{`hyperfleet_external_rate_limit_remaining_calls`, "{{system}} {{resource}}"}),
			stackedPanel(
				"Webhooks",
				perSec,
				query{`sum by (platform, result) (rate(hyperfleet_webhooks_total[$__rate_interval]))`, "{{platform}} {{result}}"},
			),
			stackedPanel(
				"Calls",
				perSec,
				query{`sum by (operation) (rate(` + calls + `_count{system="$system"}[$__rate_interval]))`, "{{operation}}"},
			),
			stackedPanel(
				"Failed calls",
				perSec,
				query{
					`sum by (operation, code) (rate(` + calls + `_count{system="$system",code!~"2xx|3xx|ok"}[$__rate_interval]))`,
					"{{operation}} {{code}}",
				},
			),
			linePanel(
				"Call duration (95%)",
				seconds,
				query{quantile(0.95, calls, ", operation", `system="$system"`), "{{operation}}"},
			),
			linePanel(
				"Webhook duration (95%)",
				seconds,
				query{quantile(0.95, "hyperfleet_webhook_duration_seconds", ", platform", ""), "{{platform}}"},
			),
			stackedPanel(
				"Jobs whose state was polled",
				perSec,
				query{`sum by (platform, result) (rate(hyperfleet_job_state_checks_total[$__rate_interval]))`, "{{platform}} {{result}}"},
			),
			stackedPanel(
				"Calls to job sources",
				perSec,
				query{
					`sum by (platform, source, result) (rate(hyperfleet_job_sources_total[$__rate_interval]))`,
					"{{platform}} {{source}} {{result}}",
				},
			),
		},
	}
}

func hostsDashboard() dashboard {
	return dashboard{
		uid: "hyperfleet-hosts", title: "HyperFleet / Hosts, addresses and bridges",
		panels: []panel{
			linePanel("Hosts", short, query{`hyperfleet_host_fleet_hosts`, "{{namespace}}/{{fleet}} {{state}}"}),
			linePanel(
				"Push duration (95%)",
				seconds,
				query{quantile(0.95, "hyperfleet_host_push_duration_seconds", ", kind, operation", ""), "{{kind}} {{operation}}"},
			),
			stackedPanel(
				"Pushes by outcome",
				perSec,
				query{
					`sum by (operation, outcome) (rate(hyperfleet_host_push_duration_seconds_count[$__rate_interval]))`,
					"{{operation}} {{outcome}}",
				},
			),
			linePanel("Free addresses", short, query{`hyperfleet_ippool_free`, "{{network}} {{pool}} {{family}}"}),
			linePanel("Machines waiting for an address", short, query{`hyperfleet_ippool_waiting`, "{{network}} {{pool}}"}),
			linePanel("Bridges", short, query{`hyperfleet_bridge_bridges`, "{{phase}}"}),
			stackedPanel(
				"CSR decisions for worker nodes",
				perSec,
				query{`sum by (result, reason) (rate(hyperfleet_bridge_csr_decisions_total[$__rate_interval]))`, "{{result}} {{reason}}"},
			),
		},
	}
}
