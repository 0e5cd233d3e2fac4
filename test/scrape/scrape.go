// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// ErrNoSeries is the error of Sum if there is no such series yet.
var ErrNoSeries = errors.New("there is no such series")

const timeout = 30 * time.Second

// Sum reads the metrics at url, and returns the sum of the series of a metric whose labels contain a text,
// for example `method="GET"`. If labels is empty, it adds up all series of the metric. For a histogram, use
// the metrics name_sum and name_count.
func Sum(ctx context.Context, url, name, labels string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // the body was only read

	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("read metrics at %s: %s", url, response.Status)
	}

	parser := expfmt.NewTextParser(model.LegacyValidation)

	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return 0, fmt.Errorf("read metrics at %s: %w", url, err)
	}

	return sumSeries(maps.Values(families), name, labels)
}

// Render returns the metrics of a registry in Prometheus' text format.
func Render(gatherer prometheus.Gatherer) (string, error) {
	families, err := gatherer.Gather()

	var out strings.Builder

	for _, family := range families {
		if _, writeErr := expfmt.MetricFamilyToText(&out, family); writeErr != nil {
			err = errors.Join(err, writeErr)
		}
	}

	return out.String(), err
}

// SumOf is Sum for a registry of this process. It returns 0 if there is no such series.
func SumOf(t testing.TB, gatherer prometheus.Gatherer, name, labels string) float64 {
	t.Helper()

	families, err := gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}

	total, err := sumSeries(slices.Values(families), name, labels)
	if err != nil && !errors.Is(err, ErrNoSeries) {
		t.Fatal(err)
	}

	return total
}

func sumSeries(families iter.Seq[*dto.MetricFamily], name, labels string) (float64, error) {
	total, found := 0.0, false

	for family := range families {
		suffix, hasName := strings.CutPrefix(name, family.GetName())
		if !hasName {
			continue
		}

		for _, metric := range family.GetMetric() {
			if value, ok := valueOf(metric, suffix); ok && strings.Contains(formatLabels(metric), labels) {
				total, found = total+value, true
			}
		}
	}

	if !found {
		return 0, fmt.Errorf("read metric %s{%s}: %w", name, labels, ErrNoSeries)
	}

	return total, nil
}

// valueOf returns the value of a metric, or with the suffix _sum or _count, that value of a histogram or summary.
func valueOf(metric *dto.Metric, suffix string) (value float64, ok bool) {
	histogram, summary := metric.GetHistogram(), metric.GetSummary()
	isSingle := histogram == nil && summary == nil

	switch suffix {
	case "":
		return metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetUntyped().GetValue(), isSingle
	case "_sum":
		return histogram.GetSampleSum() + summary.GetSampleSum(), !isSingle
	case "_count":
		return float64(histogram.GetSampleCount() + summary.GetSampleCount()), !isSingle
	default:
		return 0, false
	}
}

// formatLabels formats the labels of a metric as in Prometheus' text format.
func formatLabels(metric *dto.Metric) string {
	var out []string
	for _, label := range metric.GetLabel() {
		out = append(out, fmt.Sprintf("%s=%q", label.GetName(), label.GetValue()))
	}

	return strings.Join(out, ",")
}
