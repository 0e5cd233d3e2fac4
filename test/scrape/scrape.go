// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
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

	page, err := io.ReadAll(response.Body)

	switch {
	case err != nil:
		return 0, fmt.Errorf("read metrics: %w", err)
	case response.StatusCode != http.StatusOK:
		return 0, fmt.Errorf("read metrics at %s: %s", url, response.Status)
	}

	return sumSeries(string(page), name, labels)
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

	page, err := Render(gatherer)
	if err != nil {
		t.Fatal(err)
	}

	total, err := sumSeries(page, name, labels)
	if err != nil && !errors.Is(err, ErrNoSeries) {
		t.Fatal(err)
	}

	return total
}

func sumSeries(page, name, labels string) (float64, error) {
	total, found := 0.0, false

	for line := range strings.Lines(page) {
		rest, hasName := strings.CutPrefix(line, name)
		if !hasName || rest[0] != ' ' && rest[0] != '{' {
			continue
		}

		end := strings.LastIndexByte(rest, ' ')
		if !strings.Contains(rest[:end], labels) {
			continue
		}

		var value float64
		if _, err := fmt.Sscan(rest[end+1:], &value); err != nil {
			return 0, fmt.Errorf("read metric %s: %q: %w", name, line, err)
		}

		total, found = total+value, true
	}

	if !found {
		return 0, fmt.Errorf("read metric %s{%s}: %w", name, labels, ErrNoSeries)
	}

	return total, nil
}
