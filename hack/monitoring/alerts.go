// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "slices"

// Severities: a critical alert is worth waking somebody, a warning a look within the day, and
// info explains others.
const (
	critical = "critical"
	warning  = "warning"
	info     = "info"
)

// alert is one rule. docs/runbooks/NAME.md says what to do.
type alert struct {
	name, severity, lasts string
	expr                  string
	// summary is one line; description names the object and what was seen.
	summary, description string
}

// alerts are all of them.
func alerts() []alert {
	return slices.Concat(jobAlerts(), machineAlerts(), otherAlerts(), areaAlerts())
}

func jobAlerts() []alert {
	return []alert{
		{
			"HyperFleetJobsWaitTooLong", warning, "5m",
			`hyperfleet_jobs_longest_wait_seconds > 1800`,
			"A job has waited for more than half an hour.",
			`A job of pool "{{ $labels.pool }}" in {{ $labels.namespace }} has waited for {{ $value | humanizeDuration }}.`,
		},
		{
			"HyperFleetJobsWithoutPool", warning, "15m",
			`sum by (namespace) (hyperfleet_jobs_waiting{pool=""}) > 0`,
			"Jobs wait that no pool takes.",
			`{{ $value }} jobs in {{ $labels.namespace }} have labels that no RunnerPool has.`,
		},
		{
			"HyperFleetPoolAtMaximum", info, "30m",
			`hyperfleet_pool_jobs_queued > 0 and hyperfleet_pool_machines_desired >= hyperfleet_pool_machines_max`,
			"A pool has as many machines as it may, and jobs wait.",
			`{{ $value }} jobs wait for pool {{ $labels.pool }} in {{ $labels.namespace }}, which has all machines that it may have.`,
		},
		{
			"HyperFleetPoolPaused", warning, "1h",
			`hyperfleet_pool_jobs_queued > 0 and hyperfleet_pool_paused == 1`,
			"Jobs wait for a pool that is paused.",
			`{{ $value }} jobs wait for pool {{ $labels.pool }} in {{ $labels.namespace }}, which is paused.`,
		},
		{
			"HyperFleetWebhooksRefused", warning, "10m",
			`sum by (platform, result) (rate(hyperfleet_webhooks_total{result!~"accepted|ignored"}[10m])) > 0.05`,
			"Webhooks are refused.",
			`Webhooks of {{ $labels.platform }} are refused: {{ $labels.result }}.`,
		},
	}
}

func machineAlerts() []alert {
	const well = `JobDone|Deleted|NoJob|JobGone|IdleTimeout|MaxLifetime`

	return []alert{
		{
			"HyperFleetPoolMachinesFailing", critical, "5m",
			`hyperfleet_pool_failures_in_a_row >= 3`,
			"The machines of a pool fail one after the other.",
			`{{ $value }} machines of pool {{ $labels.pool }} in {{ $labels.namespace }} have failed in a row.`,
		},
		{
			"HyperFleetMachinesEndBadly", warning, "15m",
			`sum by (namespace, pool) (rate(hyperfleet_machine_ended_total{reason!~"` + well + `"}[1h]))` +
				` / sum by (namespace, pool) (rate(hyperfleet_machine_ended_total[1h])) > 0.1` +
				` and sum by (namespace, pool) (increase(hyperfleet_machine_ended_total[1h])) >= 10`,
			"More than a tenth of a pool's machines end otherwise than with their job.",
			`{{ $value | humanizePercentage }} of the machines of pool "{{ $labels.pool }}" ` +
				`in {{ $labels.namespace }} ended badly within an hour.`,
		},
		{
			"HyperFleetMachinesStartSlowly", warning, "30m",
			`histogram_quantile(0.9, sum by (namespace, pool, le) ` +
				`(rate(hyperfleet_machine_phase_duration_seconds_bucket{phase=~"provisioned|bootstrapped"}[30m]))) > 300`,
			"Machines take more than five minutes to be made, or to start.",
			`A tenth of the machines of pool "{{ $labels.pool }}" in {{ $labels.namespace }} ` +
				`take longer than {{ $value | humanizeDuration }}.`,
		},
		{
			"HyperFleetOrphansHeld", warning, "5m",
			`hyperfleet_orphans_held > 0`,
			"Machines without a claim are held for a person to look at.",
			`{{ $value }} machines on cluster {{ $labels.cluster }} bear the operator's mark and have no claim.`,
		},
		{
			"HyperFleetOrphansRemoved", info, "0m",
			`sum by (side) (increase(hyperfleet_orphans_removed_total[1h])) > 0`,
			"Something was left behind, and was cleaned up.",
			`{{ $value | humanize }} things of kind {{ $labels.side }} belonged to no claim and were removed within an hour.`,
		},
		{
			"HyperFleetCredentialMisuse", critical, "0m",
			`sum by (outcome) (increase(hyperfleet_credential_requests_total` +
				`{outcome=~"wrong_code|wrong_svid|wrong_proof|used|not_offered"}[15m]))` +
				` > 0 or sum by (outcome) (increase(hyperfleet_devid_requests_total` +
				`{outcome=~"wrong_code|used|not_offered|invalid|shared_tpm"}[15m])) > 0`,
			"Somebody asks for a machine's credential who should not.",
			`Requests for machines' credentials with outcome {{ $labels.outcome }}: machines in good order make none.`,
		},
	}
}

func otherAlerts() []alert {
	return []alert{
		{
			"HyperFleetOperatorDown", critical, "5m",
			`absent(hyperfleet_build_info{program="hyperfleet-operator"})`,
			"No operator is to be seen.",
			`Prometheus gets no metrics of any HyperFleet operator: jobs get no machines, and machines are not removed.`,
		},
		{
			"HyperFleetClusterNotReady", critical, "10m",
			`hyperfleet_object_ready{kind="HypervisorCluster"} == 0`,
			"A hypervisor can't be used.",
			`HypervisorCluster {{ $labels.name }} is not ready: no machine is made or removed there.`,
		},
		{
			"HyperFleetObjectNotReady", warning, "30m",
			`hyperfleet_object_ready{kind!~"HypervisorCluster|LinuxMachine|ScalewayAppleSiliconMachine"} == 0`,
			"An object is not ready.",
			`{{ $labels.kind }} {{ $labels.name }} in "{{ $labels.namespace }}" is not ready.`,
		},
		{
			"HyperFleetNodeOffline", warning, "15m",
			`hyperfleet_node_online == 0`,
			"A node of a hypervisor does not answer.",
			`Node {{ $labels.node }} of cluster {{ $labels.cluster }} does not answer.`,
		},
		{
			"HyperFleetNodeSetAside", warning, "30m",
			`hyperfleet_node_set_aside == 1`,
			"A node is not used, because what was tried on it failed.",
			`Node {{ $labels.node }} of cluster {{ $labels.cluster }} has been set aside, whole or in part, for half an hour.`,
		},
		{
			"HyperFleetHypervisorFull", warning, "30m",
			`sum by (cluster) (hyperfleet_node_available{resource="memory"})` +
				` / sum by (cluster) (hyperfleet_node_capacity{resource="memory"}) < 0.05`,
			"A hypervisor has next to no memory left.",
			`Cluster {{ $labels.cluster }} has {{ $value | humanizePercentage }} of its memory left.`,
		},
		{
			"HyperFleetRateLimitLow", warning, "5m",
			`hyperfleet_external_rate_limit_remaining_calls / hyperfleet_external_rate_limit_calls < 0.1`,
			"A CI platform will soon refuse calls.",
			`{{ $labels.system }} allows {{ $value | humanizePercentage }} of its calls ({{ $labels.resource }}) ` +
				`until its limit is reset.`,
		},
		{
			"HyperFleetExternalCallsFail", warning, "15m",
			`sum by (system) (rate(hyperfleet_external_call_duration_seconds_count{code=~"5xx|timeout|error"}[10m]))` +
				` / sum by (system) (rate(hyperfleet_external_call_duration_seconds_count[10m])) > 0.2`,
			"Calls to another system fail.",
			`{{ $value | humanizePercentage }} of the calls to {{ $labels.system }} fail.`,
		},
	}
}

// areaAlerts are about what lies beside runners and hypervisors.
func areaAlerts() []alert {
	return []alert{
		{
			"HyperFleetAddressesExhausted", warning, "10m",
			`hyperfleet_ippool_waiting > 0`,
			"Machines wait for an address.",
			`{{ $value }} machines wait for an address of pool {{ $labels.pool }} on {{ $labels.network }}.`,
		},
		{
			"HyperFleetLogsNotStored", warning, "15m",
			`sum(increase(hyperfleet_runner_log_writes_total{outcome=~"failed|given_up"}[30m])) > 0` +
				` unless sum(increase(hyperfleet_runner_log_writes_total{outcome="stored"}[30m])) > 0`,
			"The object store takes no logs.",
			`{{ $value | printf "%.0f" }} writes of runners' logs failed within half an hour, and none succeeded.`,
		},
		{
			"HyperFleetHostsUnreachable", warning, "15m",
			`hyperfleet_host_fleet_hosts{state="unreachable"} > 0`,
			"Hosts can't be reached.",
			`{{ $value }} hosts of fleet {{ $labels.fleet }} in {{ $labels.namespace }} can't be reached.`,
		},
		{
			"HyperFleetHostsFailed", warning, "5m",
			`hyperfleet_host_fleet_hosts{state="failed"} > 0`,
			"Hosts have failed for good.",
			`{{ $value }} hosts of fleet {{ $labels.fleet }} in {{ $labels.namespace }} have failed and are left alone.`,
		},
		{
			"HyperFleetBridgeFailed", warning, "10m",
			`hyperfleet_bridge_bridges{phase="Failed"} > 0`,
			"A bridge has failed.",
			`{{ $value }} DPFHCPBridges are in phase Failed.`,
		},
	}
}
