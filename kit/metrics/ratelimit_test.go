// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// TestRateLimits checks that the metrics show the credential with the fewest remaining calls, until its
// limit is reset.
func TestRateLimits(t *testing.T) {
	t.Parallel()

	start := time.Unix(1_800_000_000, 0)
	timer := clocktesting.NewFakePassiveClock(start)
	registry := prometheus.NewRegistry()

	calls, err := metrics.NewCallMetrics(registry, timer)
	if err != nil {
		t.Fatal(err)
	}

	var answer http.Header

	transport := func(system string) http.RoundTripper {
		return calls.WrapTransport(system, nil, retry.RoundTripperFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: answer}, nil
		}))
	}
	one, other, gitlab := transport("github"), transport("github"), transport("gitlab")

	send := func(next http.RoundTripper, header ...string) {
		t.Helper()

		answer = http.Header{}
		for i := 0; i < len(header); i += 2 {
			answer.Set(header[i], header[i+1])
		}

		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://ci.example/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}

		response, err := next.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}

		_ = response.Body.Close()
	}

	reset := strconv.FormatInt(start.Add(10*time.Minute).Unix(), 10)
	later := strconv.FormatInt(start.Add(time.Hour).Unix(), 10)

	send(one, "X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "12", "X-RateLimit-Reset", reset, "X-RateLimit-Resource", "core")
	send(other, "X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "4000", "X-RateLimit-Reset", later, "X-RateLimit-Resource", "core")
	send(gitlab, "RateLimit-Limit", "600", "RateLimit-Remaining", "599", "RateLimit-Reset", "30")
	send(gitlab, "RateLimit-Remaining", "many")
	send(gitlab)

	expect := func(github string, gitlab string) {
		t.Helper()

		var want strings.Builder

		want.WriteString("# HELP hyperfleet_external_rate_limit_remaining_calls Number of remaining calls until the limit is reset, " +
			"of the credential with the fewest remaining calls.\n# TYPE hyperfleet_external_rate_limit_remaining_calls gauge\n")

		for _, line := range []string{github, gitlab} {
			if line != "" {
				want.WriteString("hyperfleet_external_rate_limit_remaining_calls" + line + "\n")
			}
		}

		if err := testutil.GatherAndCompare(registry, strings.NewReader(want.String()), "hyperfleet_external_rate_limit_remaining_calls"); err != nil {
			t.Error(err)
		}
	}

	expect(`{resource="core",system="github"} 12`, `{resource="all",system="gitlab"} 599`)
	timer.SetTime(start.Add(11 * time.Minute))
	expect(`{resource="core",system="github"} 4000`, "")

	for i := range 40 {
		send(gitlab, "X-RateLimit-Remaining", "1", "X-RateLimit-Resource", fmt.Sprint("r", i))
	}

	if n, err := testutil.GatherAndCount(registry, "hyperfleet_external_rate_limit_calls"); err != nil || n > 1+17 {
		t.Errorf("%d series, %v: resources are not bounded", n, err)
	}
}
