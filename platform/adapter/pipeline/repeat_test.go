// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
)

// phaseTask reports the phase of its object.
var phaseTask = strings.Replace(usualTask, `"Fine"`, `resources.?space.?phase.orValue("None")`, 1)

// twoReportsTask reports Available=False, and then Available=True if its object is active.
var twoReportsTask = func() string {
	before, after, _ := strings.Cut(usualTask, "post:")
	payloads, action, _ := strings.Cut(after, "  post_actions:\n")
	_, report, _ := strings.Cut(payloads, "    - name: report\n")

	waiting := strings.Replace(report, `{expression: 'adapter.executionStatus == "success" && !adapter.resourcesSkipped ? "True" : "False"'}`,
		`"False"`, 1)

	return before + "post:" + payloads + "    - name: waiting\n" + waiting + "  post_actions:\n" +
		strings.NewReplacer("tell", "wait", ".report", ".waiting").Replace(action) +
		strings.Replace(action, "name: tell", `name: tell
      when: {expression: 'resources.?space.?phase.orValue("") == "Active"'}`, 1)
}()

// watchedObject is a client whose watch has one object. It counts the calls.
type watchedObject struct {
	transport.Client

	// phase is the phase of the object. It is empty if there is no object.
	phase string
	// hasFailed is true while the watch does not work.
	hasFailed bool
	calls     int
}

func (c *watchedObject) Find(
	_ context.Context, _ transport.Query, read transport.Read,
) ([]*unstructured.Unstructured, error) {
	if read == transport.CacheOnly && c.hasFailed {
		return nil, transport.ErrNotCached
	}

	if read == transport.Live {
		c.calls++
	}

	if c.phase == "" {
		return nil, nil
	}

	return []*unstructured.Unstructured{{Object: map[string]any{"phase": c.phase}}}, nil
}

func (c *watchedObject) Create(context.Context, *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	c.calls++

	return nil, errors.New("it exists")
}

// findObject is a resources phase that reads one object.
func findObject(ctx context.Context, in resources.Input, read transport.Read) (resources.Result, error) {
	out := resources.Result{Objects: map[string]any{}}

	found, err := in.Clients[transport.Kubernetes].Find(ctx, transport.Query{}, read)
	if len(found) > 0 {
		out.Objects["space"] = found[0].Object
	}

	return out, err
}

// TestRequeueSendsNoCallTwice requeues an event after a change of its object. The requeue sends calls only if the report
// has changed, or if only a call can tell.
func TestRequeueSendsNoCallTwice(t *testing.T) {
	t.Parallel()

	cached := func(ctx context.Context, in resources.Input) (resources.Result, error) {
		return findObject(ctx, in, transport.Cached)
	}
	readAndReport := []string{http.MethodGet, http.MethodPut}

	for name, tc := range map[string]struct {
		task    string
		objects phase
		// fault is for the first event.
		fault func(*fixture)
		// method and body change the resource before its first event.
		method, body string
		// change is the change of the object.
		change func(*watchedObject)
		want   []string
	}{
		"the report is the same":      {},
		"the task file reads nothing": {task: strings.ReplaceAll(newTaskWithoutPreconditions(), ".clusterId", ".event.id")},
		"only the first of two reports is sent": {
			task: twoReportsTask, change: func(o *watchedObject) { o.phase = "Ended" }, want: readAndReport,
		},
		"the report has changed": {change: func(o *watchedObject) { o.phase = "Ended" }, want: readAndReport},
		"the object is gone":     {change: func(o *watchedObject) { o.phase = "" }, want: readAndReport},
		"the watch has failed":   {change: func(o *watchedObject) { o.hasFailed = true }, want: readAndReport},
		"the object is read live": {objects: func(ctx context.Context, in resources.Input) (resources.Result, error) {
			return findObject(ctx, in, transport.Live)
		}, want: readAndReport},
		"an object is written, and the error ignored": {objects: func(ctx context.Context, in resources.Input) (resources.Result, error) {
			_, _ = in.Clients[transport.Kubernetes].Create(ctx, nil)

			return cached(ctx, in)
		}, want: readAndReport},
		"the generation is read again": {objects: func(ctx context.Context, in resources.Input) (resources.Result, error) {
			_, _ = in.ReadGeneration(ctx)

			return cached(ctx, in)
		}, want: []string{http.MethodGet, http.MethodGet, http.MethodPut}},
		"other resources are read": {
			task: strings.Replace(phaseTask, "resources:", "  - {name: others, api_call: {method: GET, url: clusters}}\nresources:", 1),
			want: []string{http.MethodGet, http.MethodGet, http.MethodPut},
		},
		"the resource is large": {
			method: http.MethodPatch, body: `{"spec":{"tier":"gold","text":"` + strings.Repeat("x", 8<<10) + `"}}`, want: readAndReport,
		},
		"the report has failed": {
			fault: func(w *fixture) { w.injectResponse(matchReports, http.StatusBadRequest, "", "") }, want: readAndReport,
		},
		"the report was discarded": {
			fault: func(w *fixture) { w.injectResponse(matchReports, http.StatusNoContent, "", "") }, want: readAndReport,
		},
		"the resource is being deleted": {method: http.MethodDelete, want: readAndReport},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w, object := newFixture(t), &watchedObject{phase: "Active"}
			p := w.newPipeline(cmp.Or(tc.task, phaseTask), cached)
			p.Clients = map[string]transport.Client{transport.Kubernetes: object}

			if tc.objects != nil {
				p.WithResources(tc.objects)
			}

			cluster := w.createCluster("test-one")
			event := newEvent(cluster.Id, 1)

			if tc.method != "" {
				fleetapi.Call(t, tc.method, w.url, "/clusters/"+cluster.Id, tc.body, nil)

				event = newEvent(cluster.Id, 2)
			}

			if tc.fault != nil {
				tc.fault(w)
			}

			earlier := p.Handle(t.Context(), event).Handled

			w.takeMethods()

			if tc.change != nil {
				tc.change(object)
			}

			object.calls = 0

			again := p.Handle(pipeline.WithRequeue(t.Context(), earlier), event)
			if diff := gocmp.Diff(tc.want, w.takeMethods()); diff != "" || again.Status != pipeline.Success {
				t.Errorf("the requeue is %s, %v, and sent (-want +got): %s", again.Status, again.Failure, diff)
			}

			if isUnchanged := again.Trace.Result.Reason == pipeline.ReasonUnchanged; isUnchanged != (tc.want == nil) || isUnchanged && object.calls > 0 {
				t.Errorf("the requeue has the reason %q, and sent %d calls to the cluster", again.Trace.Result.Reason, object.calls)
			}

			if earlier != nil && again.Handled == nil {
				t.Error("the next requeue has to send its calls again")
			}
		})
	}
}

// takeMethods returns the methods of the requests since the last call, and ends the fault.
func (w *fixture) takeMethods() (methods []string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	for _, request := range w.requests {
		method, _, _ := strings.Cut(request, " ")
		methods = append(methods, method)
	}

	w.requests, w.fault = nil, nil

	return methods
}
