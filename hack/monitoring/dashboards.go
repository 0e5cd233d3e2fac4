// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// Units as Grafana names them.
const (
	seconds = "s"
	short   = "short"
	percent = "percentunit"
	amount  = "bytes"
	perSec  = "reqps"
)

// Kinds of panels.
const (
	timeseries = "timeseries"
	stat       = "stat"
)

// query is one line of a panel.
type query struct{ expr, legend string }

// panel is one picture, half a dashboard wide.
type panel struct {
	title, kind, unit string
	stacked           bool
	queries           []query
}

// variable is a choice above the panels.
type variable struct{ name, query string }

// dashboard is one page of panels.
type dashboard struct {
	uid, title string
	variables  []variable
	panels     []panel
}

func lines(title, unit string, queries ...query) panel {
	return panel{title: title, kind: timeseries, unit: unit, queries: queries}
}

func stacked(title, unit string, queries ...query) panel {
	return panel{title: title, kind: timeseries, unit: unit, stacked: true, queries: queries}
}

func number(title, unit, expr string) panel {
	return panel{title: title, kind: stat, unit: unit, queries: []query{{expr, ""}}}
}

func quantile(q float64, metric, by, where string) string {
	return fmt.Sprintf(`histogram_quantile(%g, sum by (le%s) (rate(%s_bucket{%s}[$__rate_interval])))`, q, by, metric, where)
}

// dashboards are all of them.
func dashboards() []dashboard {
	return []dashboard{overview(), pool(), cluster(), platform(), hosts()}
}

func overview() dashboard {
	return dashboard{uid: "hyperfleet-overview", title: "HyperFleet / Overview", panels: []panel{
		number("Jobs that wait", short, `sum(hyperfleet_jobs_waiting)`),
		number("Jobs that run", short, `sum(hyperfleet_pool_jobs_running)`),
		number("Machines", short, `sum(hyperfleet_machines)`),
		number("Jobs done in an hour", short, `sum(increase(hyperfleet_job_finished_total[1h]))`),
		stacked("What jobs wait for", short, query{`sum by (reason) (hyperfleet_jobs_waiting)`, "{{reason}}"}),
		lines("How long jobs waited", seconds,
			query{quantile(0.5, "hyperfleet_job_queue_duration_seconds", "", ""), "half"},
			query{quantile(0.95, "hyperfleet_job_queue_duration_seconds", "", ""), "95%"}),
		stacked("Machines by phase", short, query{`sum by (phase) (hyperfleet_machines)`, "{{phase}}"}),
		stacked(
			"Ends of machines",
			perSec,
			query{`sum by (reason) (rate(hyperfleet_machine_ended_total[$__rate_interval]))`, "{{reason}}"},
		),
		lines("How long a machine's phases took (95%)", seconds,
			query{quantile(0.95, "hyperfleet_machine_phase_duration_seconds", ", phase", `phase!="job"`), "{{phase}}"}),
		lines(
			"Objects that are not ready",
			short,
			query{`sum by (kind) (hyperfleet_objects{ready!="True",kind!~"RunnerJob|MachineClaim"})`, "{{kind}}"},
		),
	}}
}

func pool() dashboard {
	const where = `namespace="$namespace",pool="$pool"`

	return dashboard{
		uid: "hyperfleet-pool", title: "HyperFleet / Pool",
		variables: []variable{
			{"namespace", `label_values(hyperfleet_pool_machines_desired, namespace)`},
			{"pool", `label_values(hyperfleet_pool_machines_desired{namespace="$namespace"}, pool)`},
		},
		panels: []panel{
			number("Jobs that wait", short, `hyperfleet_pool_jobs_queued{`+where+`}`),
			number("Jobs that run", short, `hyperfleet_pool_jobs_running{`+where+`}`),
			number("Longest wait now", seconds, `hyperfleet_jobs_longest_wait_seconds{`+where+`}`),
			number("Failures in a row", short, `hyperfleet_pool_failures_in_a_row{`+where+`}`),
			stacked("Machines", short, query{`hyperfleet_pool_machines{` + where + `}`, "{{state}}"}),
			lines("Machines wanted, and bounds", short,
				query{`hyperfleet_pool_machines_desired{` + where + `}`, "wanted"},
				query{`hyperfleet_pool_machines_min{` + where + `}`, "minimum"},
				query{`hyperfleet_pool_machines_max{` + where + `}`, "maximum"}),
			lines("How long jobs waited", seconds,
				query{quantile(0.5, "hyperfleet_job_queue_duration_seconds", "", where), "half"},
				query{quantile(0.95, "hyperfleet_job_queue_duration_seconds", "", where), "95%"}),
			lines("How long jobs ran", seconds,
				query{quantile(0.5, "hyperfleet_job_run_duration_seconds", "", where), "half"},
				query{quantile(0.95, "hyperfleet_job_run_duration_seconds", "", where), "95%"}),
			lines("How long machines took (95%)", seconds,
				query{quantile(0.95, "hyperfleet_machine_phase_duration_seconds", ", phase", where+`,phase!="job"`), "{{phase}}"}),
			stacked("Ends of machines", perSec,
				query{`sum by (reason) (rate(hyperfleet_machine_ended_total{` + where + `}[$__rate_interval]))`, "{{reason}}"}),
			stacked("What jobs wait for", short, query{`sum by (reason) (hyperfleet_jobs_waiting{` + where + `})`, "{{reason}}"}),
			stacked("Conclusions of jobs", perSec,
				query{`sum by (conclusion) (rate(hyperfleet_job_finished_total{` + where + `}[$__rate_interval]))`, "{{conclusion}}"}),
		},
	}
}

func cluster() dashboard {
	taken := func(resource string) string {
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
			number("Machines", short, `hyperfleet_cluster_machines{cluster="$cluster"}`),
			number("Nodes online", short, `sum(hyperfleet_node_online{cluster="$cluster"})`),
			number("Nodes set aside", short, `sum(hyperfleet_node_set_aside{cluster="$cluster"})`),
			number("Machines without a claim", short, `hyperfleet_orphans_held{cluster="$cluster"}`),
			lines("Cores taken", percent, query{taken("cpu"), "{{node}}"}),
			lines("Memory taken", percent, query{taken("memory"), "{{node}}"}),
			lines("Storage left", amount, query{`hyperfleet_node_available{cluster="$cluster",resource="storage"}`, "{{node}}"}),
			lines("Nodes set aside", short, query{`hyperfleet_node_set_aside{cluster="$cluster"}`, "{{node}}"}),
		},
	}
}

func platform() dashboard {
	const calls = "hyperfleet_external_call_duration_seconds"

	return dashboard{
		uid: "hyperfleet-platform", title: "HyperFleet / Other systems",
		variables: []variable{{"system", `label_values(` + calls + `_count, system)`}},
		panels: []panel{
			lines("Calls that are left", short, query{`hyperfleet_external_rate_limit_remaining_calls`, "{{system}} {{resource}}"}),
			stacked(
				"Webhooks",
				perSec,
				query{`sum by (platform, result) (rate(hyperfleet_webhooks_total[$__rate_interval]))`, "{{platform}} {{result}}"},
			),
			stacked(
				"Calls",
				perSec,
				query{`sum by (operation) (rate(` + calls + `_count{system="$system"}[$__rate_interval]))`, "{{operation}}"},
			),
			stacked(
				"Calls that fail",
				perSec,
				query{
					`sum by (operation, code) (rate(` + calls + `_count{system="$system",code!~"2xx|3xx|ok"}[$__rate_interval]))`,
					"{{operation}} {{code}}",
				},
			),
			lines(
				"How long calls took (95%)",
				seconds,
				query{quantile(0.95, calls, ", operation", `system="$system"`), "{{operation}}"},
			),
			lines(
				"How long webhooks took (95%)",
				seconds,
				query{quantile(0.95, "hyperfleet_webhook_duration_seconds", ", platform", ""), "{{platform}}"},
			),
			stacked(
				"Jobs without news",
				perSec,
				query{`sum by (platform, result) (rate(hyperfleet_job_repairs_total[$__rate_interval]))`, "{{platform}} {{result}}"},
			),
			stacked(
				"Sources of jobs",
				perSec,
				query{
					`sum by (platform, source, result) (rate(hyperfleet_job_sources_total[$__rate_interval]))`,
					"{{platform}} {{source}} {{result}}",
				},
			),
		},
	}
}

func hosts() dashboard {
	return dashboard{
		uid: "hyperfleet-hosts", title: "HyperFleet / Hosts, addresses and bridges",
		panels: []panel{
			lines("Hosts", short, query{`hyperfleet_host_fleet_hosts`, "{{namespace}}/{{fleet}} {{state}}"}),
			lines(
				"How long pushes took (95%)",
				seconds,
				query{quantile(0.95, "hyperfleet_host_push_duration_seconds", ", kind, what", ""), "{{kind}} {{what}}"},
			),
			stacked(
				"Ends of pushes",
				perSec,
				query{
					`sum by (what, outcome) (rate(hyperfleet_host_push_duration_seconds_count[$__rate_interval]))`,
					"{{what}} {{outcome}}",
				},
			),
			lines("Addresses left", short, query{`hyperfleet_ippool_free`, "{{network}} {{pool}} {{family}}"}),
			lines("Machines that wait for an address", short, query{`hyperfleet_ippool_waiting`, "{{network}} {{pool}}"}),
			lines("Bridges", short, query{`hyperfleet_bridge_bridges`, "{{phase}}"}),
			stacked(
				"Workers' certificates",
				perSec,
				query{`sum by (result, reason) (rate(hyperfleet_bridge_csr_decisions_total[$__rate_interval]))`, "{{result}} {{reason}}"},
			),
		},
	}
}
