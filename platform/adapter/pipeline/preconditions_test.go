// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
)

// TestPreconditionOfTheOldForm checks that a precondition with type: hyperfleet_api reads the resource, and that gates see
// its conditions.
func TestPreconditionOfTheOldForm(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	cluster := w.createCluster("test-one")
	isOpen := false

	result := w.newPipeline(`
preconditions:
  - {name: fetch, type: hyperfleet_api, resource: cluster, id: "{{ .event.id }}", output_param: clusterResource}
resources:
  - name: space
    when: {expression: 'clusterResource.status.conditions.exists(c, c.type == "Reconciled" && c.status == "False")'}
    manifest: {apiVersion: v1, kind: Namespace, metadata: {name: "{{ .event.id }}"}}
    discovery: {by_name: "{{ .event.id }}"}
`, func(ctx context.Context, given resources.Input) (_ resources.Result, err error) {
		isOpen, err = given.Task.Resources[0].When.EvalBool(ctx, given.Vars)

		return resources.Result{}, err
	}).Handle(t.Context(), newEvent(cluster.Id, 1))

	if got := formatOutcome(result); got != "success  done" || !isOpen {
		t.Errorf("%s, the gate is open: %v: %v", got, isOpen, result.Failure)
	}
}

// TestRetriesOfPreconditions checks that a call has the attempts and the back-off of the task file.
func TestRetriesOfPreconditions(t *testing.T) {
	t.Parallel()

	timers := &recordingClock{}
	w := newFixture(t)
	w.clock = timers
	cluster := w.createCluster("test-one")
	w.injectResponse(matchReads, http.StatusServiceUnavailable, "", "")

	text := strings.Replace(usualTask, "method: GET,", "method: GET, retry_attempts: 5, retry_backoff: constant,", 1)
	w.newPipeline(text, nil).Handle(t.Context(), newEvent(cluster.Id, 1))

	w.mu.Lock()
	defer w.mu.Unlock()

	reads := 0

	for _, request := range w.requests {
		if strings.HasPrefix(request, http.MethodGet) {
			reads++
		}
	}

	// A pause varies by 10%.
	if pauses := timers.pauses; reads != 5 || len(pauses) != 4 || slices.Max(pauses) > slices.Min(pauses)*3/2 {
		t.Errorf("%d attempts with the pauses %v, want 5 with equal pauses", reads, pauses)
	}
}
