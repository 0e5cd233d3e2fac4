// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "slices"

// Severities of alerts. A critical alert needs immediate action, also at night. A warning needs a check on
// the same day. An info alert helps to explain other alerts.
const (
	critical = "critical"
	warning  = "warning"
	info     = "info"
)

// alert is an alerting rule. docs/runbooks/NAME.md is its runbook.
type alert struct {
	name, severity, forDuration string
	expr                        string
	// summary is one sentence. description names the object and the measured value.
	summary, description string
}

// formerMetrics returns the renamed metrics: the former name and the current one. Recording rules provide the
// former metrics for one release.
func formerMetrics() [][2]string {
	return [][2]string{
		{"hyperfleet_job_repairs_total", "hyperfleet_job_state_checks_total"},
		{"hyperfleet_jobs_longest_wait_seconds", "hyperfleet_jobs_oldest_queued_age_seconds"},
		{"hyperfleet_node_set_aside", "hyperfleet_node_excluded"},
		{"hyperfleet_pool_failures_in_a_row", "hyperfleet_pool_consecutive_failures"},
	}
}

// formerAlerts returns the former name of each renamed alert. The alert has it as the label formerly.
func formerAlerts() map[string]string {
	return map[string]string{
		"HyperFleetMachineFailureRateHigh": "HyperFleetMachinesEndBadly",
		"HyperFleetNodeExcluded":           "HyperFleetNodeSetAside",
		"HyperFleetWebhooksRejected":       "HyperFleetWebhooksRefused",
	}
}

// alerts returns all alerts.
func alerts() []alert {
	return slices.Concat(jobAlerts(), machineAlerts(), otherAlerts(), areaAlerts())
}

func jobAlerts() []alert {
	return []alert{
		{
			"HyperFleetJobsWaitTooLong", warning, "5m",
			`hyperfleet_jobs_oldest_queued_age_seconds > 1800`,
			"A job has waited for more than 30 minutes.",
			`A job of pool "{{ $labels.pool }}" in {{ $labels.namespace }} has waited for {{ $value | humanizeDuration }}.`,
		},
		{
			"HyperFleetJobsWithoutPool", warning, "15m",
			`sum by (namespace) (hyperfleet_jobs_waiting{pool=""}) > 0`,
			"Jobs wait because no pool matches their labels.",
			`{{ $value }} jobs in {{ $labels.namespace }} have labels that no RunnerPool has.`,
		},
		{
			"HyperFleetPoolAtMaximum", info, "30m",
			`hyperfleet_pool_jobs_queued > 0 and hyperfleet_pool_machines_desired >= hyperfleet_pool_machines_max`,
			"Jobs wait because a pool has reached its maximum number of machines.",
			`{{ $value }} jobs wait for pool {{ $labels.pool }} in {{ $labels.namespace }}, ` +
				`which has reached its maximum number of machines.`,
		},
		{
			"HyperFleetPoolPaused", warning, "1h",
			`hyperfleet_pool_jobs_queued > 0 and hyperfleet_pool_paused == 1`,
			"Jobs wait for a paused pool.",
			`{{ $value }} jobs wait for pool {{ $labels.pool }} in {{ $labels.namespace }}, which is paused.`,
		},
		{
			"HyperFleetWebhooksRejected", warning, "10m",
			`sum by (platform, result) (rate(hyperfleet_webhooks_total{result!~"accepted|ignored"}[10m])) > 0.05`,
			"The operator rejects webhooks.",
			`The operator rejects webhooks from {{ $labels.platform }} with result {{ $labels.result }}.`,
		},
	}
}

func machineAlerts() []alert {
	const normalReasons = `JobDone|Deleted|NoJob|JobGone|IdleTimeout|MaxLifetime`

	return []alert{
		{
			"HyperFleetPoolMachinesFailing", critical, "5m",
			`hyperfleet_pool_consecutive_failures >= 3`,
			"Consecutive machines of a pool have failed.",
			`{{ $value }} consecutive machines of pool {{ $labels.pool }} in {{ $labels.namespace }} have failed.`,
		},
		{
			"HyperFleetMachineFailureRateHigh", warning, "15m",
			`sum by (namespace, pool) (rate(hyperfleet_machine_ended_total{reason!~"` + normalReasons + `"}[1h]))` +
				` / sum by (namespace, pool) (rate(hyperfleet_machine_ended_total[1h])) > 0.1` +
				` and sum by (namespace, pool) (increase(hyperfleet_machine_ended_total[1h])) >= 10`,
			"More than 10% of a pool's machines end with a failure.",
			`{{ $value | humanizePercentage }} of the machines of pool "{{ $labels.pool }}" ` +
				`in {{ $labels.namespace }} ended with a failure in the last hour.`,
		},
		{
			"HyperFleetMachinesStartSlowly", warning, "30m",
			`histogram_quantile(0.9, sum by (namespace, pool, le) ` +
				`(rate(hyperfleet_machine_phase_duration_seconds_bucket{phase=~"provisioned|bootstrapped"}[30m]))) > 300`,
			"Machines take more than five minutes to be provisioned or to start.",
			`10% of the machines of pool "{{ $labels.pool }}" in {{ $labels.namespace }} ` +
				`take longer than {{ $value | humanizeDuration }} to be provisioned or to start.`,
		},
		{
			"HyperFleetRunnerOutdated", warning, "1h",
			`hyperfleet_runner_newer_release_age_seconds > 20 * 86400`,
			"GitHub will soon send no jobs to the runners of a template, because they are too old.",
			`A newer release of the runner than that of template {{ $labels.template }} in {{ $labels.namespace }} ` +
				`was found {{ $value | humanizeDuration }} ago. After 30 days GitHub sends no jobs to the old one.`,
		},
		{
			"HyperFleetOrphansHeld", warning, "5m",
			`hyperfleet_orphans_held > 0`,
			"The operator holds machines without a claim for manual inspection.",
			`{{ $value }} machines on cluster {{ $labels.cluster }} have the operator's ownership record but no claim.`,
		},
		{
			"HyperFleetOrphansRemoved", info, "0m",
			`sum by (type, side) (increase(hyperfleet_orphans_removed_total[1h])) > 0`,
			"The operator has deleted orphans.",
			`The operator has deleted {{ $value | humanize }} orphans of type {{ $labels.type }} in the last hour.`,
		},
		{
			"HyperFleetCredentialMisuse", critical, "0m",
			`sum by (outcome) (increase(hyperfleet_credential_requests_total` +
				`{outcome=~"wrong_code|wrong_svid|wrong_proof|used|not_offered"}[15m]))` +
				` > 0 or sum by (outcome) (increase(hyperfleet_devid_requests_total` +
				`{outcome=~"wrong_code|used|not_offered|invalid|shared_tpm"}[15m])) > 0`,
			"An unauthorized client has requested a machine's credential.",
			`The operator has received credential requests with outcome {{ $labels.outcome }}. ` +
				`Machines that work correctly send no such requests.`,
		},
	}
}

func otherAlerts() []alert {
	return []alert{
		{
			"HyperFleetOperatorDown", critical, "5m",
			`absent(hyperfleet_build_info{program="hyperfleet-operator"})`,
			"No operator is running, or Prometheus cannot scrape it.",
			`Prometheus has no metrics of a HyperFleet operator. If no operator runs, jobs get no machines, ` +
				`and machines are not deleted.`,
		},
		{
			"HyperFleetClusterNotReady", critical, "10m",
			`hyperfleet_object_ready{kind="HypervisorCluster"} == 0`,
			"A hypervisor cluster is not Ready.",
			`HypervisorCluster {{ $labels.name }} is not Ready. The operator cannot create or delete machines on it.`,
		},
		{
			"HyperFleetObjectNotReady", warning, "30m",
			`hyperfleet_object_ready{kind!~"HypervisorCluster|LinuxMachine|ScalewayAppleSiliconMachine"} == 0`,
			"An object is not Ready.",
			`{{ $labels.kind }} {{ $labels.name }} in "{{ $labels.namespace }}" is not Ready.`,
		},
		{
			"HyperFleetNodeOffline", warning, "15m",
			`hyperfleet_node_online == 0`,
			"A node of a hypervisor cluster is offline.",
			`Node {{ $labels.node }} of cluster {{ $labels.cluster }} is offline.`,
		},
		{
			"HyperFleetNodeExcluded", warning, "30m",
			`hyperfleet_node_excluded == 1`,
			"A node is excluded because operations on it keep failing.",
			`Node {{ $labels.node }} of cluster {{ $labels.cluster }}, or a part of it, has been excluded for 30 minutes.`,
		},
		{
			"HyperFleetHypervisorFull", warning, "30m",
			`sum by (cluster) (hyperfleet_node_available{resource="memory"})` +
				` / sum by (cluster) (hyperfleet_node_capacity{resource="memory"}) < 0.05`,
			"A hypervisor cluster has less than 5% free memory.",
			`Cluster {{ $labels.cluster }} has {{ $value | humanizePercentage }} free memory.`,
		},
		{
			"HyperFleetRateLimitLow", warning, "5m",
			`hyperfleet_external_rate_limit_remaining_calls / hyperfleet_external_rate_limit_calls < 0.1`,
			"The rate limit of a CI platform is almost reached.",
			`{{ $value | humanizePercentage }} of the rate limit {{ $labels.resource }} of {{ $labels.system }} ` +
				`remain until its reset.`,
		},
		{
			"HyperFleetExternalCallsFail", warning, "15m",
			`sum by (system) (rate(hyperfleet_external_call_duration_seconds_count{code=~"5xx|timeout|error"}[10m]))` +
				` / sum by (system) (rate(hyperfleet_external_call_duration_seconds_count[10m])) > 0.2`,
			"Calls to an external system fail.",
			`{{ $value | humanizePercentage }} of the calls to {{ $labels.system }} fail.`,
		},
	}
}

// areaAlerts returns the alerts for addresses, logs, hosts and bridges.
func areaAlerts() []alert {
	return []alert{
		{
			"HyperFleetAddressesExhausted", warning, "10m",
			`hyperfleet_ippool_waiting > 0`,
			"Machines wait for an address because an address pool is exhausted.",
			`{{ $value }} machines wait for an address of pool {{ $labels.pool }} on {{ $labels.network }}.`,
		},
		{
			"HyperFleetLogsNotStored", warning, "15m",
			`sum(increase(hyperfleet_runner_log_writes_total{outcome=~"failed|given_up"}[30m])) > 0` +
				` unless sum(increase(hyperfleet_runner_log_writes_total{outcome="stored"}[30m])) > 0`,
			"Writes of runner logs to the object store fail.",
			`{{ $value | printf "%.0f" }} writes of runner logs failed in the last 30 minutes, and none succeeded.`,
		},
		{
			"HyperFleetHostsUnreachable", warning, "15m",
			`hyperfleet_host_fleet_hosts{state="unreachable"} > 0`,
			"Hosts are unreachable.",
			`{{ $value }} hosts of fleet {{ $labels.fleet }} in {{ $labels.namespace }} are unreachable.`,
		},
		{
			"HyperFleetHostsFailed", warning, "5m",
			`hyperfleet_host_fleet_hosts{state="failed"} > 0`,
			"Hosts have a terminal error.",
			`{{ $value }} hosts of fleet {{ $labels.fleet }} in {{ $labels.namespace }} have a terminal error. ` +
				`The operator no longer reconciles them.`,
		},
		{
			"HyperFleetBridgeFailed", warning, "10m",
			`hyperfleet_bridge_bridges{phase="Failed"} > 0`,
			"A bridge has failed.",
			`{{ $value }} DPFHCPBridges are in phase Failed.`,
		},
	}
}
