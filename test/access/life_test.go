// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/kubernetes"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/maestro"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/test/capture"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
)

const (
	// waitTimeout is long enough for a busy machine.
	waitTimeout  = time.Minute
	pollInterval = 50 * time.Millisecond
	// clockOffset is how far the adapter's clock is ahead of the cluster's, so that nothing that the samples delay is
	// delayed here.
	clockOffset = 10 * time.Second
)

var serial atomic.Int64

// adapterRun is a sample adapter that runs with a service account, and the resource that it reconciles.
type adapterRun struct {
	t *testing.T
	// name is the unique name of the resource.
	name string
	// lacks is the permission that the account does not have, or zero if it has all of the role.
	lacks    permission
	served   *fleetapi.API
	url      string
	api      *client.Client
	pipeline *pipeline.Pipeline
	clients  map[string]transport.Client
	clock    *testclock.FakeClock
	log      *capture.Buffer
	// forbidden has the errors Forbidden of the adapter's operations.
	forbidden *capture.Buffer
	adapter   string
	// parent is the ID of the resource's parent, or "".
	parent string
}

// newAdapterRun starts the adapter of a sample's folder.
func newAdapterRun(t *testing.T, folder string, served *fleetapi.API, url string, config *rest.Config, lacks permission) *adapterRun {
	t.Helper()

	l := &adapterRun{
		t: t, name: fmt.Sprintf("c%d", serial.Add(1)), lacks: lacks, served: served, url: url,
		clock: testclock.NewFakeClock(time.Now().Add(clockOffset)), log: &capture.Buffer{}, forbidden: &capture.Buffer{},
	}

	var sample struct {
		Adapter adapter.Identity `json:"adapter"`
	}

	l.must(yaml.Unmarshal([]byte(l.readSample(folder+"/adapter.yaml")), &sample))
	l.adapter = sample.Adapter.Name

	deployment := &adapter.Deployment{
		Adapter: sample.Adapter,
		Clients: adapter.Clients{
			HyperFleetAPI: task.NewDeploymentSpec(task.FileOptional).Default.Clients.HyperFleetAPI,
			Broker:        adapter.Broker{SubscriptionID: l.adapter, Topic: "clusters"},
			Maestro:       &adapter.Maestro{KubeConfigPath: "hub"},
		},
	}
	deployment.Clients.HyperFleetAPI.BaseURL = url

	loaded, err := task.LoadFile(samples+folder+"/task.yaml", deployment, task.WithClock(l.clock))
	l.must(err)

	l.api, err = client.New(platform.APIClient{BaseURL: url}, client.Options{})
	l.must(err)

	if lacks.verb == "list" {
		config.Wrap(rejectStreamingLists)
	}

	logger := slog.New(slog.NewTextHandler(l.log, nil))
	l.connect(kubernetes.Options{Config: config, Adapter: l.adapter, Log: logger}, loaded.Resources[0].Transport)

	l.pipeline, err = pipeline.New(pipeline.Options{
		Deployment: deployment, Task: loaded, Clients: l.clients, Keys: parseKeys(t, testKey),
		FrameworkVersion: "1.2.3", Clock: l.clock, Log: logger,
	})
	l.must(err)

	return l
}

// rejectStreamingLists simulates an API server without streaming lists (Kubernetes, "Streaming lists"; the default
// before 1.32), where watches begin with a list.
func rejectStreamingLists(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if !r.URL.Query().Has("sendInitialEvents") {
			return next.RoundTrip(r)
		}

		body := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422,` +
			`"message":"sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"}`

		return &http.Response{
			StatusCode: http.StatusUnprocessableEntity, Request: r, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(body)),
		}, nil
	})
}

// connect creates the transport, and runs its watches until the test ends.
func (l *adapterRun) connect(options kubernetes.Options, name string) {
	l.t.Helper()

	var (
		to interface {
			transport.Client
			Run(ctx context.Context) error
		}
		err error
	)

	if name == transport.Maestro {
		to, err = maestro.New(options)
	} else {
		to, err = kubernetes.New(options)
	}

	l.must(err)

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- to.Run(ctx) }()

	l.t.Cleanup(func() {
		cancel()

		if err := <-ended; err != nil {
			l.t.Error(err)
		}
	})

	l.clients = map[string]transport.Client{name: to}
}

// isForbidden returns true if the adapter has reported the missing permission.
func (l *adapterRun) isForbidden() bool {
	if (l.lacks == permission{}) {
		return false
	}

	output := l.forbidden.String()
	if l.isForWatches() {
		output = l.readLog()
	}

	return strings.Contains(output, l.lacks.forbiddenMessage())
}

// readLog returns the log without its quoting.
func (l *adapterRun) readLog() string { return strings.ReplaceAll(l.log.String(), `\"`, `"`) }

// waitFor waits until problem returns "". It returns false if the adapter has reported the missing permission
// before, which ends the lifecycle.
func (l *adapterRun) waitFor(what string, problem func() string) bool {
	l.t.Helper()

	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(pollInterval) {
		text := problem()

		switch {
		case l.isForbidden():
			return false
		case text == "":
			return true
		case time.Now().After(deadline):
			l.t.Fatalf("timed out waiting for: %s: %s\n%s\n%s", what, text, l.forbidden, l.log)
		}
	}
}

// reconcileUntil sends events of the resource until problem returns "".
func (l *adapterRun) reconcileUntil(what, id string, problem func() string) bool {
	l.t.Helper()

	return l.waitFor(what, func() string {
		l.sendEvent(id)

		return problem()
	})
}

// waitForDeletion sends events until the fleet API does not have the resource any more.
func (l *adapterRun) waitForDeletion(id string) bool {
	l.t.Helper()

	return l.reconcileUntil("the resource is deleted", id, func() string {
		if _, err := l.api.Get(l.t.Context(), id); !errors.Is(err, client.ErrNotFound) {
			return fmt.Sprintf("%v", err)
		}

		return ""
	})
}

// sendEvent makes the adapter handle an event of the resource in its current state, and returns the result.
func (l *adapterRun) sendEvent(id string) (result pipeline.Result) {
	l.t.Helper()

	r, err := l.api.Get(l.t.Context(), id)
	if errors.Is(err, client.ErrNotFound) {
		return result
	}

	l.must(err)
	l.advanceClock()

	out := cloudevents.NewEvent()
	out.SetID(fmt.Sprintf("event-%d", serial.Add(1)))
	out.SetSource("hyperfleet-sentinel")
	out.SetType("io.hyperfleet." + strings.ToLower(r.Kind) + ".reconcile")

	data := map[string]any{"id": id, "kind": r.Kind, "href": r.Href, "generation": r.Generation}
	if l.parent != "" {
		data["owner_references"] = map[string]any{"id": l.parent}
	}

	l.must(out.SetData(cloudevents.ApplicationJSON, data))

	ctx, cancel := context.WithTimeout(l.t.Context(), waitTimeout)
	defer cancel()

	result = l.pipeline.Handle(ctx, out)

	for _, outcome := range result.Resources.Outcomes {
		if errclass.ReasonOf(outcome.Err, "") == transport.ReasonForbidden {
			fmt.Fprintf(l.forbidden, "%s: %s: %v\n", outcome.Resource, outcome.Operation, outcome.Err)
		}
	}

	return result
}

// advanceClock advances the adapter's clock by at least a second, because the names of jobs contain the time.
func (l *adapterRun) advanceClock() {
	next := l.clock.Now().Add(time.Second)
	if now := time.Now().Add(clockOffset); now.After(next) {
		next = now
	}

	l.clock.SetTime(next)
}

// hasMessage returns true if a condition in the resource's statuses contains the text.
func (l *adapterRun) hasMessage(id, text string) bool {
	l.t.Helper()

	list, err := l.served.Store.Statuses(l.t.Context(), id)
	l.must(err)

	for _, status := range list {
		for _, condition := range status.Conditions {
			if strings.Contains(condition.Message, text) {
				return true
			}
		}
	}

	return false
}

// waitForCache waits until the watches have the objects. Objects from watches have no managed fields.
func (l *adapterRun) waitForCache(id string, refs ...transport.Ref) bool {
	l.t.Helper()

	return l.reconcileUntil("the watches have the objects", id, func() string {
		for _, ref := range refs {
			for _, to := range l.clients {
				found, err := to.Find(l.t.Context(), transport.Query{GVK: ref.GVK, Namespace: ref.Namespace, Name: ref.Name}, transport.Cached)
				if err != nil || len(found) != 1 || found[0].GetManagedFields() != nil {
					return fmt.Sprintf("%s is not read from the cache, %v", ref, err)
				}
			}
		}

		return ""
	})
}

// call sends a request to the fleet API.
func (l *adapterRun) call(method, path, body string) openapi.Resource {
	l.t.Helper()

	request, err := http.NewRequestWithContext(l.t.Context(), method, l.url+client.BasePath+path, strings.NewReader(body))
	l.must(err)
	request.Header.Set("Content-Type", "application/json")

	response, err := http.DefaultClient.Do(request)
	l.must(err)

	defer response.Body.Close()

	var out openapi.Resource
	if err := json.NewDecoder(response.Body).Decode(&out); err != nil || response.StatusCode >= http.StatusBadRequest {
		l.t.Fatalf("%s %s: %s, %v", method, path, response.Status, err)
	}

	return out
}

func (l *adapterRun) must(err error) {
	l.t.Helper()

	if err != nil {
		l.t.Fatal(err)
	}
}

// getField returns a string field of an object, or "" if it is missing.
func getField(object *unstructured.Unstructured, path ...string) string {
	text, _, _ := unstructured.NestedString(object.Object, path...)

	return text
}
