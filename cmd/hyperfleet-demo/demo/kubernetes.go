// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/rest"
)

// kubeWrites has the number of writes that the API server has accepted, and the number of writes that it
// has rejected with a conflict. The keys have the resource and the subresource or verb, for example
// "machineclaims status".
type kubeWrites struct {
	accepted  map[string]int
	conflicts map[string]int
}

// maxMetrics is the maximum size of the API server's metrics page in bytes. The rest is ignored.
const maxMetrics = 64 << 20

// fetchKubeWrites reads the number of writes since the start of the API server from its metrics.
func fetchKubeWrites(ctx context.Context, config *rest.Config) (kubeWrites, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return kubeWrites{}, fmt.Errorf("get the API server's metrics: %w", err)
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/metrics", http.NoBody)
	if err != nil {
		return kubeWrites{}, fmt.Errorf("get the API server's metrics: %w", err)
	}

	response, err := client.Do(request)
	if err != nil {
		return kubeWrites{}, fmt.Errorf("get the API server's metrics: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // the body is only read

	if response.StatusCode != http.StatusOK {
		return kubeWrites{}, fmt.Errorf("get the API server's metrics: %s", response.Status)
	}

	return parseKubeWrites(io.LimitReader(response.Body, maxMetrics))
}

// parseKubeWrites parses a metrics page of the API server. It ignores Leases, because they are renewed at
// a fixed interval and not for jobs.
func parseKubeWrites(page io.Reader) (kubeWrites, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)

	families, err := parser.TextToMetricFamilies(page)
	if err != nil {
		return kubeWrites{}, fmt.Errorf("parse the API server's metrics: %w", err)
	}

	out := kubeWrites{accepted: map[string]int{}, conflicts: map[string]int{}}

	for _, metric := range families["apiserver_request_total"].GetMetric() {
		labels := map[string]string{}
		for _, label := range metric.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}

		verb := strings.ToLower(labels["verb"])
		if labels["resource"] == "leases" || !slices.Contains([]string{"post", "put", "patch", "apply", "delete"}, verb) {
			continue
		}

		count := int(metric.GetCounter().GetValue())

		switch code, _ := strconv.Atoi(labels["code"]); {
		case code == http.StatusConflict:
			out.conflicts[writeKey(labels["resource"], labels["subresource"], verb)] += count
		case code >= http.StatusOK && code < http.StatusMultipleChoices:
			out.accepted[writeKey(labels["resource"], labels["subresource"], verb)] += count
		}
	}

	return out, nil
}

// writeKey returns the key of a write: the resource with its subresource or verb. All writes of Events
// have the same key.
func writeKey(resource, subresource, verb string) string {
	switch {
	case resource == "events":
		return resource
	case subresource != "":
		return resource + " " + subresource
	default:
		return resource + " " + verb
	}
}

// countKubeWrites sets the numbers of writes and conflicts between two measurements.
func (r *Report) countKubeWrites(baseline, current kubeWrites) {
	r.KubernetesWrites = map[string]int{}
	total := 0

	for key, count := range current.accepted {
		if count -= baseline.accepted[key]; count > 0 {
			r.KubernetesWrites[key] = count
			total += count
		}
	}

	r.KubernetesConflicts = map[string]int{}

	for key, count := range current.conflicts {
		if count -= baseline.conflicts[key]; count > 0 {
			r.KubernetesConflicts[key] = count
		}
	}

	if r.Jobs > 0 {
		r.KubernetesWritesPerJob = round3(float64(total) / float64(r.Jobs))
	}
}

func (s *stack) measureKubernetes(ctx context.Context, r *Report) error {
	current, err := fetchKubeWrites(ctx, s.admin)
	if err != nil {
		return fmt.Errorf("measure Kubernetes: %w", err)
	}

	r.countKubeWrites(s.kubeBaseline, current)

	return nil
}
