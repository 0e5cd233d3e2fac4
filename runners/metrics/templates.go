// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// newRunnerAgeDesc returns the description of the metric about old runners.
func newRunnerAgeDesc() *prometheus.Desc {
	return newDesc("runner_newer_release_age_seconds",
		"Time since the first release of the runner was found that is newer than the one in the machines of the template, and 0 "+
			"if they run the newest.",
		"namespace", "template")
}

// collectRunnerAges sends the age of the first release that machines do not run yet, for the templates whose machines have
// reported a release.
func collectRunnerAges(
	ch chan<- prometheus.Metric, desc *prometheus.Desc, templates []v1alpha1.HypervisorMachineTemplate, now time.Time,
) {
	for i := range templates {
		template := &templates[i]

		release := template.Status.Runner
		if release == nil || release.MachineVersion == "" {
			continue
		}

		age := 0.0
		if release.IsOutdated() {
			age = max(now.Sub(release.Since.Time).Seconds(), 0)
		}

		sendGauge(ch, desc, age, template.Namespace, template.Name)
	}
}
