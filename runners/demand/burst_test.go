// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// flaky is a way to the API server that can be cut.
type flaky struct {
	next http.RoundTripper
	down atomic.Bool

	now, most atomic.Int32
}

func (f *flaky) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.down.Load() {
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	}

	// Only what webhooks cause is counted, and not the cache's own reading.
	if !strings.Contains(r.URL.Path, "/runnerjobs") || r.URL.Query().Has("watch") || r.URL.Query().Has("limit") {
		return f.next.RoundTrip(r)
	}

	now := f.now.Add(1)
	defer f.now.Add(-1)

	for most := f.most.Load(); now > most && !f.most.CompareAndSwap(most, now); most = f.most.Load() {
	}

	return f.next.RoundTrip(r)
}

func flakyConfig() (*rest.Config, *flaky) {
	way := &flaky{}
	config := rest.CopyConfig(env.Config)
	config.QPS = -1
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		way.next = next

		return way
	})

	return config, way
}

func flakyClient(t *testing.T) (client.Client, *flaky) {
	t.Helper()

	config, way := flakyConfig()

	out, err := client.New(config, client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	return out, way
}

// cached makes a client that reads from a cache, as the operator's does.
func cached(t testing.TB, config *rest.Config, kinds ...client.Object) cluster.Cluster {
	t.Helper()

	out, err := cluster.New(config, func(o *cluster.Options) { o.Scheme, o.Logger = env.Scheme, logr.Discard() })
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)

	go func() { stopped <- out.Start(ctx) }()

	t.Cleanup(func() {
		cancel()

		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})

	for _, kind := range kinds {
		if _, err := out.GetCache().GetInformer(t.Context(), kind); err != nil {
			t.Fatal(err)
		}
	}

	return out
}

func TestReceiverWithoutAPIServer(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), own(t)+"/app"
	hook(t, namespace, "linux", repository, "s")

	kubeClient, way := flakyClient(t)
	receiver := receiverOf(kubeClient, nil)
	send := func() *httptest.ResponseRecorder {
		return answerOf(receiver, post(body(repository, 5, "queued", "self-hosted"), "s"))
	}

	way.down.Store(true)

	got := send()
	if got.Code != 503 || got.Header().Get("Retry-After") == "" || !strings.Contains(got.Body.String(), "deliver it again") {
		t.Errorf("answer = %d %v %s", got.Code, got.Header(), got.Body)
	}

	if strings.Contains(got.Body.String(), "connection refused") {
		t.Errorf("the answer tells of the inside: %s", got.Body)
	}

	way.down.Store(false)

	if got := send(); got.Code != 202 || len(ledger(t, namespace)) != 1 {
		t.Errorf("delivered again: %d %s", got.Code, got.Body)
	}
}

// A burst is worked off a bounded number at a time, and nothing acknowledged is lost.
func TestReceiverBurst(t *testing.T) {
	t.Parallel()

	const (
		many     = 200
		parallel = 8
	)

	namespace, repository := env.Namespace(t), own(t)+"/app"
	hook(t, namespace, "linux", repository, "s")

	config, way := flakyConfig()
	kubeCluster := cached(t, config, &v1alpha1.RunnerPool{}, &v1alpha1.HypervisorMachineTemplate{}, &v1alpha1.RunnerJob{})
	server := httptest.NewServer(receiverOf(kubeCluster.GetClient(), nil, func(c *demand.ReceiverConfig) {
		c.Parallel, c.Live = parallel, kubeCluster.GetAPIReader()
		c.Secrets = &connect.Secrets{Reader: kubeCluster.GetAPIReader()}
	}))
	defer server.Close()

	// The cache may be behind what the test has made.
	reach(t, func() bool {
		err := kubeCluster.GetClient().Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "linux"}, &v1alpha1.RunnerPool{})

		return err == nil
	})

	var group sync.WaitGroup
	for i := range many {
		group.Go(func() {
			for {
				code, err := deliver(t.Context(), server.URL, post(body(repository, i+1, "queued", "self-hosted"), "s"))
				if err != nil {
					t.Error(err)

					return
				}

				switch code {
				case http.StatusAccepted:
					return
				case http.StatusServiceUnavailable: // redelivered, as a platform would be asked to
					time.Sleep(20 * time.Millisecond)
				default:
					t.Errorf("status %d", code)

					return
				}
			}
		})
	}

	group.Wait()
	move(t, namespace)

	if got := len(ledger(t, namespace)); got != many {
		t.Errorf("%d jobs are in the ledger, %d were acknowledged", got, many)
	}

	if most := way.most.Load(); most < 1 || most > parallel {
		t.Errorf("%d calls at a time, want 1 to %d", most, parallel)
	}
}

func deliver(ctx context.Context, base string, from *http.Request) (int, error) {
	req, err := http.NewRequestWithContext(ctx, from.Method, base+from.URL.Path, from.Body)
	if err != nil {
		return 0, err
	}

	req.Header = from.Header

	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}

	_, _ = io.Copy(io.Discard, resp.Body)

	return resp.StatusCode, resp.Body.Close()
}

// A caller that stops sending does not hold its place.
func TestReceiverSlowCaller(t *testing.T) {
	t.Parallel()

	server := httptest.NewServer(receiverOf(env.Client, nil))
	defer server.Close()

	conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	if _, err := fmt.Fprint(conn, "POST /webhooks/github HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}

	answer, err := io.ReadAll(conn)
	// It was our own deadline, which is no fault of the sender's.
	if err != nil || !bytes.Contains(answer, []byte(" 503 ")) || !bytes.Contains(answer, []byte("Retry-After: ")) {
		t.Errorf("answer = %q, %v", answer, err)
	}
}

// GitHub itself, simulated, tells the ledger of a job's whole life.
func TestReceiverFollowsGitHub(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), own(t)+"/app"
	hook(t, namespace, "linux", repository, "s", "linux")

	server := httptest.NewServer(receiverOf(env.Client, nil))
	defer server.Close()

	forge := githubtest.New(t, sim.Options{
		Repos:   []sim.Repo{{FullName: repository}},
		Webhook: control.WebhookTarget{URL: server.URL + "/webhooks/github", Secret: "s"},
		Faults:  control.Faults{WebhookDuplicated: .5, WebhookReordered: .5},
	})
	queued := forge.Queue(control.JobSpec{Repo: repository, Labels: []string{"self-hosted", "linux"}, Count: 3, Duration: time.Millisecond})

	owner, name, _ := strings.Cut(repository, "/")

	provider, err := github.New(github.Config{Settings: &github.Settings{
		Token: githubtest.PAT, Owner: owner, Repository: name, APIURL: forge.URL,
	}})
	if err != nil {
		t.Fatal(err)
	}

	for i := range queued {
		issued, err := provider.Issue(t.Context(), workload.RunnerRequest{
			Name: fmt.Sprintf("runner-%d", i), Labels: github.RunnerLabels([]string{"linux"}),
		})
		if err != nil {
			t.Fatal(err)
		}

		githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", issued.JITConfig)
	}

	forge.Eventually("all webhooks are delivered", func(s control.State) bool {
		return s.Webhooks.Pending == 0 && !slices.ContainsFunc(s.Jobs, func(j control.Job) bool { return j.Status != "completed" })
	})

	move(t, namespace)

	jobs := ledger(t, namespace)
	for _, want := range queued {
		got := jobs[fmt.Sprintf("gh-%d", want.ID)].Spec
		if got.State != v1alpha1.JobCompleted || got.Conclusion != "success" || !strings.HasPrefix(got.RunnerName, "runner-") {
			t.Errorf("job %d = %+v", want.ID, got)
		}
	}

	if len(jobs) != len(queued) {
		t.Errorf("%d jobs are in the ledger, want %d", len(jobs), len(queued))
	}
}
