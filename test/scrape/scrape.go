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

// ErrNone is what Sum returns where a program tells no such series, yet.
var ErrNone = errors.New("there is no such series")

const timeout = 30 * time.Second

// Sum reads the page of metrics at url, and adds up the series of a metric whose labels contain
// the text: `method="GET"`, or nothing for all of them. A histogram's are name_sum and name_count.
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
	defer response.Body.Close() //nolint:errcheck // it was only read

	page, err := io.ReadAll(response.Body)

	switch {
	case err != nil:
		return 0, fmt.Errorf("read metrics: %w", err)
	case response.StatusCode != http.StatusOK:
		return 0, fmt.Errorf("read metrics at %s: %s", url, response.Status)
	}

	return sum(string(page), name, labels)
}

// Text is what a registry's page of metrics has.
func Text(from prometheus.Gatherer) (string, error) {
	families, err := from.Gather()

	var out strings.Builder

	for _, family := range families {
		if _, write := expfmt.MetricFamilyToText(&out, family); write != nil {
			err = errors.Join(err, write)
		}
	}

	return out.String(), err
}

// Here is Sum of a registry of this process, and 0 where there is no such series.
func Here(t testing.TB, from prometheus.Gatherer, name, labels string) float64 {
	t.Helper()

	page, err := Text(from)
	if err != nil {
		t.Fatal(err)
	}

	total, err := sum(page, name, labels)
	if err != nil && !errors.Is(err, ErrNone) {
		t.Fatal(err)
	}

	return total
}

func sum(page, name, labels string) (float64, error) {
	total, found := 0.0, false

	for line := range strings.Lines(page) {
		rest, is := strings.CutPrefix(line, name)
		if !is || rest[0] != ' ' && rest[0] != '{' {
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
		return 0, fmt.Errorf("read metric %s{%s}: %w", name, labels, ErrNone)
	}

	return total, nil
}
