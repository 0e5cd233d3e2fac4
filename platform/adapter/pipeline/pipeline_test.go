// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
)

// usualTask is a typical task file.
const usualTask = `
params:
  - {name: clusterId, source: event.id, required: true}
  - {name: generation, source: event.generation, type: int, required: true}
  - {name: region, source: env.REGION, default: nowhere}
preconditions:
  - name: cluster
    api_call: {method: GET, url: "clusters/{{ .clusterId }}"}
    capture:
      - {name: tier, field: spec.tier}
      - {name: is_deleting, expression: "response.?deleted_time.hasValue()"}
    conditions:
      - {field: tier, operator: in, values: [gold, silver]}
    expression: cluster.name.startsWith("test-")
resources:
  - name: space
    manifest: {apiVersion: v1, kind: Namespace, metadata: {name: "{{ .clusterId }}"}}
    discovery: {by_name: "{{ .clusterId }}"}
post:
  payloads:
    - name: report
      build:
        adapter: "{{ .adapter.name }}"
        observed_generation: {expression: generation}
        observed_time: "{{ now }}"
        conditions:
          - {type: Applied, status: {expression: 'adapter.executionStatus == "success" ? "True" : "False"'}}
          - type: Available
            status: {expression: 'adapter.executionStatus == "success" && !adapter.resourcesSkipped ? "True" : "False"'}
            reason: {expression: 'adapter.executionStatus == "success" ? "Fine" : "Author" + adapter.errorReason'}
          - {type: Health, status: "True"}
  post_actions:
    - name: tell
      api_call: {method: PUT, url: "clusters/{{ .clusterId }}/statuses", body: "{{ .report }}"}
`

// newSilentTask returns a task file that reports no status.
func newSilentTask() string {
	before, _, _ := strings.Cut(usualTask, "post:")

	return before
}

// newTaskWithoutPreconditions returns a task file without params and preconditions.
func newTaskWithoutPreconditions() string {
	_, after, _ := strings.Cut(usualTask, "resources:")
	after, _, _ = strings.Cut(after, "post:")

	return "resources:" + after
}

// newAlwaysAvailableTask returns a task file that always reports Available=True.
func newAlwaysAvailableTask() string {
	return strings.Replace(usualTask,
		`{expression: 'adapter.executionStatus == "success" && !adapter.resourcesSkipped ? "True" : "False"'}`, `"True"`, 1)
}

func newFailingPhase(class errclass.Class) phase {
	return func(context.Context, resources.Input) (resources.Result, error) {
		return resources.Result{Outcomes: []resources.Outcome{{
			Resource: "space", Operation: resources.Created, Reason: "Refused",
			Err: errclass.New(class, "Refused", "create Namespace x: admission says no"),
		}}}, nil
	}
}

func formatOutcome(result pipeline.Result) string {
	return strings.Join([]string{string(result.Status), string(result.Phase), result.Trace.Result.Event}, " ")
}

func TestSuccessfulEvent(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	cluster := w.createCluster("test-one")

	var (
		work     resources.Input
		identity map[string]any
	)

	result := w.newPipeline(usualTask, func(_ context.Context, given resources.Input) (resources.Result, error) {
		work = given
		identity, _ = given.Vars["adapter"].(map[string]any) // the post phase sets it again

		return resources.Result{}, nil
	}).Handle(t.Context(), newEvent(cluster.Id, 1))

	if got := formatOutcome(result); got != "success  done" || result.Err != nil {
		t.Fatalf("%s: %v\n%+v", got, result.Failure, result.Trace)
	}

	if got := w.getAvailable(cluster.Id); got != "True Fine" {
		t.Errorf("reported %s", got)
	}

	got := map[string]any{
		"id": work.ResourceID, "generation": work.Generation, "deleting": work.Deleting, "adapter": identity["name"],
		"region": work.Vars["region"], "tier": work.Vars["tier"], "is_deleting": work.Vars["is_deleting"], "vars": work.Vars["generation"],
	}
	want := map[string]any{
		"id": cluster.Id, "generation": int64(1), "deleting": false, "adapter": "landing",
		"region": "north", "tier": "gold", "is_deleting": false, "vars": int64(1),
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("work (-want +got):\n%s", diff)
	}
}

func TestDeletionIsDetected(t *testing.T) {
	t.Parallel()

	w := newFixture(t)

	for name, text := range map[string]string{"by the task file's call": usualTask, "by the framework": newTaskWithoutPreconditions()} {
		cluster := w.createCluster("test-deleted")
		fleetapi.Call(t, http.MethodDelete, w.url, "/clusters/"+cluster.Id, "", nil)

		text = strings.NewReplacer("{{ .clusterId }}", "{{ .event.id }}").Replace(text)

		var work resources.Input

		w.newPipeline(text, func(_ context.Context, given resources.Input) (resources.Result, error) {
			work = given

			return resources.Result{}, nil
		}).Handle(t.Context(), newEvent(cluster.Id, 2))

		if !work.Deleting {
			t.Errorf("%s: the deletion was not detected", name)
		}
	}
}

// TestOutcomes has a case for each failure, with the handling of the event and the reported status.
func TestOutcomes(t *testing.T) {
	t.Parallel()

	const problem = "application/problem+json"

	for name, tc := range map[string]struct {
		task      string
		objects   phase
		fault     func(*fixture)
		unmet     bool
		want      string
		available string
		framework bool
	}{
		"a precondition is unmet": {task: usualTask, unmet: true, objects: func(context.Context, resources.Input) (resources.Result, error) {
			return resources.Result{}, errors.New("the resources are handled although a precondition is unmet")
		}, want: "skipped  done", available: "False Fine"},
		"admission refuses":                         {task: usualTask, objects: newFailingPhase(errclass.Permanent), want: "failed resources done", available: "False AuthorResourcesFailed"},
		"the cluster is unavailable":                {task: usualTask, objects: newFailingPhase(errclass.Transient), want: "failed resources again", available: "False AuthorResourcesFailed"},
		"rejected, and the task reports nothing":    {task: newSilentTask(), objects: newFailingPhase(errclass.Permanent), want: "failed resources done", available: "False ResourcesFailed", framework: true},
		"unavailable, and the task reports nothing": {task: newSilentTask(), objects: newFailingPhase(errclass.Transient), want: "failed resources again", available: "False ResourcesFailed", framework: true},
		"rejected, and the task reports Available":  {task: newAlwaysAvailableTask(), objects: newFailingPhase(errclass.Permanent), want: "failed resources done", available: "False ResourcesFailed", framework: true},
		"rejected, and the API is down for reports": {
			task: newSilentTask(), objects: newFailingPhase(errclass.Permanent), fault: func(w *fixture) { w.injectResponse(matchReports, 503, "", "") },
			want: "failed resources again", available: "none", framework: true,
		},
		"rejected, and the connection breaks for reports": {
			task: newSilentTask(), objects: newFailingPhase(errclass.Permanent), fault: func(w *fixture) { w.breakConnections(matchReports) },
			want: "failed resources again", available: "none", framework: true,
		},
		"the connection breaks when the framework reads": {
			task:  strings.ReplaceAll(newTaskWithoutPreconditions(), ".clusterId", ".event.id"),
			fault: func(w *fixture) { w.breakConnections(matchReads) },
			want:  "failed resources again", available: "False ResourcesFailed", framework: true,
		},
		"another server responds when the framework reads": {
			task:  strings.ReplaceAll(newTaskWithoutPreconditions(), ".clusterId", ".event.id"),
			fault: func(w *fixture) { w.injectResponse(matchReads, 200, "text/html", "<html>") },
			want:  "failed resources again", available: "False ResourcesFailed", framework: true,
		},
		"another resource is gone, and the API is down for the event's own": {
			task: strings.Replace(usualTask, `clusters/{{ .clusterId }}"}`, `clusters/`+uuid.NewString()+`"}`, 1),
			fault: func(w *fixture) {
				w.injectResponse(func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/resources/") }, 503, "", "")
			},
			want: "failed preconditions again", available: "False AuthorPreconditionsFailed",
		},
		// The object that the resource needs does not exist until a later event.
		"waiting for a deletion is no success": {task: usualTask, objects: func(context.Context, resources.Input) (resources.Result, error) {
			return resources.Result{Outcomes: []resources.Outcome{{Resource: "space", Operation: resources.None, Reason: string(gates.ReasonDeletionPending), Pending: true}}}, nil
		}, want: "failed resources done", available: "False AuthorResourcesFailed"},
		"a required param is missing": {
			task: "params: [{name: zone, source: event.zone, required: true}]\n",
			want: "failed params done", available: "False ParamsFailed", framework: true,
		},
		"an optional param is missing": {task: "params: [{name: zone, source: event.zone}]\n", want: "success  done", available: "none"},
		"an expression of a precondition fails": {
			task: "preconditions: [{name: p, expression: event.nothing == 1}]\n",
			want: "failed preconditions done", available: "False PreconditionsFailed", framework: true,
		},
		"an invalid comparison": {
			task: "preconditions: [{name: p, conditions: [{field: event.id, operator: greaterThan, value: 3}]}]\n",
			want: "failed preconditions done", available: "False PreconditionsFailed", framework: true,
		},
		"a payload can't be built": {
			task: "post: {payloads: [{name: p, build: {a: {expression: event.nothing}}}]}\n",
			want: "failed post_actions done", available: "False PostActionsFailed", framework: true,
		},
		"the report is refused": {
			task: "post: {post_actions: [{name: tell, api_call: {method: PUT, url: 'clusters/{{ .event.id }}/statuses', body: '{}'}}]}\n",
			want: "failed post_actions done", available: "False PostActionsFailed", framework: true,
		},
		"the API is down":                {task: usualTask, fault: func(w *fixture) { w.injectResponse(matchAll, 503, "", "") }, want: "failed preconditions again", available: "none", framework: true},
		"the API is down for reads":      {task: usualTask, fault: func(w *fixture) { w.injectResponse(matchReads, 503, "", "") }, want: "failed preconditions again", available: "False AuthorPreconditionsFailed"},
		"the API is down for reports":    {task: usualTask, fault: func(w *fixture) { w.injectResponse(matchReports, 503, "", "") }, want: "failed post_actions again", available: "none"},
		"no such route":                  {task: usualTask, fault: func(w *fixture) { w.injectResponse(matchReads, 404, problem, noRoute) }, want: "failed preconditions done", available: "False AuthorPreconditionsFailed"},
		"the API denies access":          {task: usualTask, fault: func(w *fixture) { w.injectResponse(matchReads, 403, problem, "{}") }, want: "failed preconditions again", available: "False AuthorPreconditionsFailed"},
		"another resource is gone":       {task: strings.Replace(usualTask, `clusters/{{ .clusterId }}"}`, `clusters/`+uuid.NewString()+`"}`, 1), want: "failed preconditions done", available: "False AuthorPreconditionsFailed"},
		"an optional call without a 404": {task: "params: [{name: x, source: {api_call: {method: GET, url: 'clusters/{{ .event.id }}'}}, default: 1}]\n", fault: func(w *fixture) { w.injectResponse(matchReads, 500, "", "") }, want: "failed params again", available: "False ParamsFailed", framework: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newFixture(t)
			clusterName := "test-one"

			if tc.unmet {
				clusterName = "other"
			}

			cluster := w.createCluster(clusterName)

			if tc.fault != nil {
				tc.fault(w)
			}

			result := w.newPipeline(tc.task, tc.objects).Handle(t.Context(), newEvent(cluster.Id, 1))

			if got := formatOutcome(result); got != tc.want {
				t.Errorf("%s, want %s: %v", got, tc.want, result.Failure)
			}

			if again := result.Err != nil; again != strings.HasSuffix(tc.want, "again") || broker.IsPoison(result.Err) {
				t.Errorf("error for the broker: %v", result.Err)
			}

			if got := result.Trace.Report != nil; got != tc.framework {
				t.Errorf("the framework reported: %v", got)
			}

			w.injectResponse(func(*http.Request) bool { return false }, 0, "", "")

			if status := w.getStatus(cluster.Id); name == "rejected, and the task reports nothing" && !strings.Contains(fmt.Sprint(*status), "admission says no") {
				t.Errorf("the report does not contain the cause: %+v", *status)
			}

			if got := w.getAvailable(cluster.Id); got != tc.available {
				t.Errorf("reported %q, want %q", got, tc.available)
			}

			if tc.framework && tc.available != "none" {
				applied := map[bool]string{true: "False", false: "Unknown"}[result.Phase == pipeline.PhaseResources]
				if got := w.getCondition(cluster.Id, "Applied"); got != applied+" "+strings.Fields(tc.available)[1] {
					t.Errorf("reported Applied %q, want %s", got, applied)
				}
			}
		})
	}
}

// A requeued event reports nothing if a precondition is unmet, and reports a status otherwise.
func TestRequeueWithUnmetPreconditionsReportsNothing(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	p := w.newPipeline(usualTask, nil)

	for name, want := range map[string]string{"other": "none", "test-one": "True Fine"} {
		cluster := w.createCluster(name)

		result := p.Handle(pipeline.WithRequeue(t.Context(), nil), newEvent(cluster.Id, 1))
		if got := w.getAvailable(cluster.Id); got != want || result.Failure != nil {
			t.Errorf("a requeued event of %s reported %q, want %q: %v", name, got, want, result.Failure)
		}
	}
}

const noRoute = `{"type":"about:blank","title":"no such route","status":404,"code":"HYPERFLEET-NTF-000"}`

func TestMissingResourceEndsTheEvent(t *testing.T) {
	t.Parallel()

	for name, text := range map[string]string{
		"seen by a precondition": usualTask,
		"seen by a param":        "params: [{name: c, source: {api_call: {method: GET, url: 'clusters/{{ .event.id }}'}}, required: true}]\n",
		"seen by the framework":  strings.ReplaceAll(newTaskWithoutPreconditions(), ".clusterId", ".event.id"),
		"seen by a report":       "post: {post_actions: [{name: tell, api_call: {method: PUT, url: 'clusters/{{ .event.id }}/statuses', body: '" + report + "'}}]}\n",
		"seen by our own report": "params: [{name: zone, source: event.zone, required: true}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newFixture(t)
			touched := false
			result := w.newPipeline(text, func(context.Context, resources.Input) (resources.Result, error) {
				touched = true

				return resources.Result{}, nil
			}).Handle(t.Context(), newEvent(uuid.Must(uuid.NewV7()).String(), 1))

			if got := formatOutcome(result); got != "skipped  done" || touched {
				t.Errorf("%s, objects touched: %v: %v", got, touched, result.Failure)
			}
		})
	}
}

const report = `{"adapter":"landing","observed_generation":1,"observed_time":"{{ now }}","conditions":[` +
	`{"type":"Available","status":"False"},{"type":"Applied","status":"False"},{"type":"Health","status":"True"}]}`

// Upstream's Sentinel uses another event type, and sets neither subject nor partition key.
func TestEventsOfUpstreamAreHandled(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	cluster := w.createCluster("test-one")
	result := w.newPipeline(usualTask, nil).Handle(t.Context(),
		newEventOfType("com.redhat.hyperfleet.cluster.reconcile", `{"id":"`+cluster.Id+`","kind":"Cluster","generation":1}`))

	if got := w.getAvailable(cluster.Id); got != "True Fine" {
		t.Errorf("reported %q: %v", got, result.Err)
	}
}

func TestMalformedEventsArePoison(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	handle := w.newPipeline(usualTask, nil)

	const kind = "io.hyperfleet.cluster.reconcile"

	for name, tc := range map[string]struct{ kind, data string }{
		"a type without a kind":  {"io.hyperfleet.reconcile", `{"id":"a","generation":1}`},
		"no id":                  {kind, `{"generation":1}`},
		"an invalid id":          {kind, `{"id":"../x","generation":1}`},
		"no generation":          {kind, `{"id":"a"}`},
		"a generation as a text": {kind, `{"id":"a","generation":"1"}`},
		"no object":              {kind, `[1]`},
	} {
		result := handle.Handle(t.Context(), newEventOfType(tc.kind, tc.data))

		if !broker.IsPoison(result.Err) || !errors.Is(result.Err, pipeline.ErrMalformed) || formatOutcome(result) != "failed event poison" {
			t.Errorf("%s: %s: %v", name, formatOutcome(result), result.Err)
		}
	}

	if len(w.requests) != 0 {
		t.Errorf("the API got requests: %v", w.requests)
	}
}

func TestEventTimeoutIsReportedAndRetried(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	cluster := w.createCluster("test-one")
	ctx, cancel := context.WithCancel(t.Context())

	result := w.newPipeline(usualTask, func(ctx context.Context, _ resources.Input) (resources.Result, error) {
		cancel()

		return resources.Result{}, ctx.Err()
	}).Handle(ctx, newEvent(cluster.Id, 1))

	if got := formatOutcome(result); got != "failed resources again" {
		t.Errorf("%s: %v", got, result.Failure)
	}

	if got := w.getAvailable(cluster.Id); got != "False ResourcesFailed" {
		t.Errorf("reported %s", got)
	}
}

func TestSecretParamsAreNotDisclosed(t *testing.T) {
	t.Parallel()

	const secret = "s3cret-value"

	w := newFixture(t)
	cluster := w.createCluster("test-one")
	result := w.newPipeline(`
params:
  - {name: password, source: event.password}
  - {name: n, source: event.password, type: int, default: 1}
preconditions:
  - {name: p, expression: 'int(password) > 3'}
post:
  post_actions:
    - {name: log, log: {message: "nothing of {{ .event.id }}"}}
`, nil).Handle(t.Context(), newEventOfType("io.hyperfleet.cluster.reconcile",
		`{"id":"`+cluster.Id+`","generation":1,"password":"`+secret+`"}`))

	if got := formatOutcome(result); got != "failed preconditions done" {
		t.Errorf("%s: %v", got, result.Failure)
	}

	status := w.getStatus(cluster.Id)
	for _, text := range []string{result.Failure.Error(), w.log.String(), cmp.Diff(result.Trace, pipeline.Trace{}), cmp.Diff(status, nil)} {
		if strings.Contains(text, secret) {
			t.Errorf("the secret appears in %s", text)
		}
	}
}

// TestEventOfALostGenerationChangesNothing checks that an event from before a restore of the database, whose
// generation the resource no longer has, writes and reports nothing.
func TestEventOfALostGenerationChangesNothing(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	cluster := w.createCluster("test-one")
	touched := false

	result := w.newPipeline(usualTask, func(context.Context, resources.Input) (resources.Result, error) {
		touched = true

		return resources.Result{}, nil
	}).Handle(t.Context(), newEvent(cluster.Id, 7))

	if got := formatOutcome(result); got != "skipped  done" || touched || w.getAvailable(cluster.Id) != "none" {
		t.Errorf("%s, objects touched: %v, reported %s", got, touched, w.getAvailable(cluster.Id))
	}
}

// TestStaleObjectsReportNothing checks that an event that becomes stale while it is handled reports nothing.
func TestStaleObjectsReportNothing(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	cluster := w.createCluster("test-one")

	result := w.newPipeline(usualTask, func(ctx context.Context, given resources.Input) (resources.Result, error) {
		fleetapi.Call(t, http.MethodPatch, w.url, "/clusters/"+cluster.Id, `{"spec":{"tier":"silver"}}`, nil)

		generation, err := given.ReadGeneration(ctx)
		if generation != 2 || err != nil {
			t.Errorf("ReadGeneration() = %d, %v", generation, err)
		}

		return resources.Result{Outcomes: []resources.Outcome{{Resource: "space", Operation: resources.None, Reason: string(gates.ReasonStale)}}}, nil
	}).Handle(t.Context(), newEvent(cluster.Id, 1))

	if got := formatOutcome(result); got != "skipped  done" || w.getAvailable(cluster.Id) != "none" {
		t.Errorf("%s, reported %s", got, w.getAvailable(cluster.Id))
	}
}

// TestReportSeesWhatIsApplied checks that a report can tell a skip by a gate from an object with the content of its
// manifest.
func TestReportSeesWhatIsApplied(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	text := strings.Replace(usualTask, `adapter.executionStatus == "success" ? "True" : "False"`, `adapter.resourcesApplied ? "True" : "False"`, 1)

	for outdated, want := range map[bool]string{true: "False ", false: "True "} {
		cluster := w.createCluster("test-one")
		w.newPipeline(text, func(context.Context, resources.Input) (resources.Result, error) {
			return resources.Result{Outcomes: []resources.Outcome{{Resource: "space", Operation: resources.None, Reason: string(gates.ReasonApplyWhen), Outdated: outdated}}}, nil
		}).Handle(t.Context(), newEvent(cluster.Id, 1))

		if got := w.getCondition(cluster.Id, "Applied"); got != want {
			t.Errorf("outdated %v: reported %q, want %q", outdated, got, want)
		}
	}
}

func TestOlderGenerationChangesNothing(t *testing.T) {
	t.Parallel()

	for name, text := range map[string]string{
		"seen by the task file": usualTask, "seen by the framework": strings.ReplaceAll(newTaskWithoutPreconditions(), ".clusterId", ".event.id"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newFixture(t)
			cluster := w.createCluster("test-one")
			fleetapi.Call(t, http.MethodPatch, w.url, "/clusters/"+cluster.Id, `{"spec":{"tier":"silver"}}`, nil)

			touched := false
			handle := w.newPipeline(text, func(context.Context, resources.Input) (resources.Result, error) {
				touched = true

				return resources.Result{}, nil
			})

			result := handle.Handle(t.Context(), newEvent(cluster.Id, 1))
			if got := formatOutcome(result); got != "skipped  done" || touched || result.Trace.Result.Reason != pipeline.ReasonStale {
				t.Errorf("%s, objects touched: %v: %v", got, touched, result.Trace.Result)
			}

			if got := w.getAvailable(cluster.Id); got != "none" {
				t.Errorf("reported %s", got)
			}

			if result = handle.Handle(t.Context(), newEvent(cluster.Id, 2)); formatOutcome(result) != "success  done" || !touched {
				t.Errorf("current generation: %s, objects touched: %v", formatOutcome(result), touched)
			}
		})
	}
}

// TestFinalizedIsAdded checks that the report of a deleted resource gets the condition Finalized, which is True when no
// object is left, unless the task file has the condition.
func TestFinalizedIsAdded(t *testing.T) {
	t.Parallel()

	own := strings.Replace(usualTask, `- {type: Health, status: "True"}`,
		`- {type: Health, status: "True"}`+"\n          - {type: Finalized, status: \"False\", reason: Own}", 1)
	object := map[string]any{"space": map[string]any{}}

	for name, tc := range map[string]struct {
		text    string
		outcome resources.Outcome
		objects map[string]any
		want    string
	}{
		"nothing is left":    {usualTask, resources.Outcome{Operation: resources.None}, map[string]any{}, "gone"},
		"an object is left":  {usualTask, resources.Outcome{Operation: resources.None}, object, "False ResourcesRemain"},
		"another's object":   {usualTask, resources.Outcome{Operation: resources.None, Reason: string(gates.ReasonNotManaged)}, object, "gone"},
		"a pending deletion": {usualTask, resources.Outcome{Operation: resources.Deleted, Pending: true}, map[string]any{}, "False ResourcesRemain"},
		"a failure":          {usualTask, resources.Outcome{Operation: resources.Deleted, Err: errors.New("no")}, map[string]any{}, "False ResourcesRemain"},
		"the file has it":    {own, resources.Outcome{Operation: resources.None}, map[string]any{}, "False Own"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newFixture(t)
			cluster := w.createCluster("test")

			handle := w.newPipeline(tc.text, func(context.Context, resources.Input) (resources.Result, error) {
				tc.outcome.Resource = "space"

				return resources.Result{Outcomes: []resources.Outcome{tc.outcome}, Objects: tc.objects}, nil
			})

			handle.Handle(t.Context(), newEvent(cluster.Id, 1))

			if got := w.getCondition(cluster.Id, "Finalized"); tc.text == usualTask && got != "no Finalized" {
				t.Errorf("before the deletion: %s", got)
			}

			var deleted openapi.Resource
			fleetapi.Call(t, http.MethodDelete, w.url, "/clusters/"+cluster.Id, nil, &deleted)

			handle.Handle(t.Context(), newEvent(cluster.Id, int(deleted.Generation)))

			got := "gone"
			if _, err := fleet.Store.Get(t.Context(), cluster.Id); err == nil {
				got = w.getCondition(cluster.Id, "Finalized")
			}

			if got != tc.want {
				t.Errorf("Finalized is %q, want %q\n%s", got, tc.want, w.log)
			}
		})
	}
}
