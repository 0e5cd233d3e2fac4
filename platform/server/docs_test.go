// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/platform/conditions"
	"github.com/hyperfleet/hyperfleet/platform/entity"
)

// allCodes are all of them.
func allCodes() []*Code {
	return []*Code{
		CodeInvalid, CodeQuery, CodeChildRoute, CodeTooLarge, CodeMedia, CodeMethod, CodeCursorGone, CodeUnknown,
		CodeNotTrusted, CodeForbidden, CodeNoRoute, CodeNoResource, CodeExists, CodeInUse, CodeState, CodeInternal,
		CodeRule, CodeUnavailable, CodeKeysNotThere,
	}
}

// TestReference holds the page of the API to its codes, metrics and reasons.
func TestReference(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("../../docs/reference/fleet-api.md")
	if err != nil {
		t.Fatal(err)
	}

	for _, code := range allCodes() {
		if want := fmt.Sprintf("| `%s` | %d |", code.ID, code.Status); !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %s", want)
		}
	}

	for _, reason := range []string{
		conditions.ReasonAll, conditions.ReasonMissing, conditions.ReasonFailed, conditions.ReasonWaiting, conditions.ReasonReference,
	} {
		if !strings.Contains(string(page), "| `"+reason+"` |") {
			t.Errorf("the page lacks reason %s", reason)
		}
	}

	s := &Server{clock: clock.RealClock{}, registry: &entity.Registry{}}
	if s.metrics, err = s.newMetrics(nil); err != nil {
		t.Fatal(err)
	}

	described := make(chan *prometheus.Desc, 20)
	s.metrics.pending.Describe(described)
	s.metrics.requests.Describe(described)
	s.metrics.count.Describe(described)
	s.metrics.running.Describe(described)
	s.metrics.starts.Describe(described)
	close(described)

	for desc := range described {
		_, rest, _ := strings.Cut(desc.String(), `fqName: "`)
		name, _, _ := strings.Cut(rest, `"`)

		if !strings.Contains(string(page), "| `"+name+"` |") {
			t.Errorf("the page lacks metric %s", name)
		}
	}
}
