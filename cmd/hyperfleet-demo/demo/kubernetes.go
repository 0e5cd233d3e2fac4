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

// kubeWrites are the writes that the API server has taken, by the resource and what is
// written of it, such as "machineclaims status", and those of them that ended in a conflict.
type kubeWrites struct {
	accepted map[string]int
	refused  map[string]int
}

// maxMetrics bounds the API server's page of metrics, in bytes.
const maxMetrics = 64 << 20

// kubeWritesOf asks the API server what was written since its start.
func kubeWritesOf(ctx context.Context, config *rest.Config) (kubeWrites, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return kubeWrites{}, fmt.Errorf("ask the API server for its metrics: %w", err)
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/metrics", http.NoBody)
	if err != nil {
		return kubeWrites{}, fmt.Errorf("ask the API server for its metrics: %w", err)
	}

	response, err := client.Do(request)
	if err != nil {
		return kubeWrites{}, fmt.Errorf("ask the API server for its metrics: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // it was only read

	if response.StatusCode != http.StatusOK {
		return kubeWrites{}, fmt.Errorf("ask the API server for its metrics: %s", response.Status)
	}

	return readKubeWrites(io.LimitReader(response.Body, maxMetrics))
}

// readKubeWrites reads a page of the API server's metrics. Leases are left out: they are
// renewed by time, and not for jobs.
func readKubeWrites(page io.Reader) (kubeWrites, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)

	families, err := parser.TextToMetricFamilies(page)
	if err != nil {
		return kubeWrites{}, fmt.Errorf("read the API server's metrics: %w", err)
	}

	out := kubeWrites{accepted: map[string]int{}, refused: map[string]int{}}

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
			out.refused[whatIsWritten(labels["resource"], labels["subresource"], verb)] += count
		case code >= http.StatusOK && code < http.StatusMultipleChoices:
			out.accepted[whatIsWritten(labels["resource"], labels["subresource"], verb)] += count
		}
	}

	return out, nil
}

// whatIsWritten names a kind of write. Events are one kind, however they are written.
func whatIsWritten(resource, subresource, verb string) string {
	switch {
	case resource == "events":
		return resource
	case subresource != "":
		return resource + " " + subresource
	default:
		return resource + " " + verb
	}
}

// countKubeWrites takes over the writes since before.
func (r *Report) countKubeWrites(before, now kubeWrites) {
	r.KubernetesWrites = map[string]int{}
	total := 0

	for what, count := range now.accepted {
		if count -= before.accepted[what]; count > 0 {
			r.KubernetesWrites[what] = count
			total += count
		}
	}

	r.KubernetesConflicts = map[string]int{}

	for what, count := range now.refused {
		if count -= before.refused[what]; count > 0 {
			r.KubernetesConflicts[what] = count
		}
	}

	if r.Jobs > 0 {
		r.KubernetesWritesPerJob = round3(float64(total) / float64(r.Jobs))
	}
}

func (s *stack) measureKubernetes(ctx context.Context, r *Report) error {
	now, err := kubeWritesOf(ctx, s.admin)
	if err != nil {
		return fmt.Errorf("measure Kubernetes: %w", err)
	}

	r.countKubeWrites(s.kubeBefore, now)

	return nil
}
