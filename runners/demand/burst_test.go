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
)

// flakyTransport is a transport to the API server that the test can interrupt.
type flakyTransport struct {
	next   http.RoundTripper
	isDown atomic.Bool

	current, highest atomic.Int32
}

func (f *flakyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.isDown.Load() {
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	}

	// Count only the calls that webhooks cause, and not those of the cache.
	if !strings.Contains(r.URL.Path, "/runnerjobs") || r.URL.Query().Has("watch") || r.URL.Query().Has("limit") {
		return f.next.RoundTrip(r)
	}

	now := f.current.Add(1)
	defer f.current.Add(-1)

	for limit := f.highest.Load(); now > limit && !f.highest.CompareAndSwap(limit, now); limit = f.highest.Load() {
	}

	return f.next.RoundTrip(r)
}

func newFlakyConfig() (*rest.Config, *flakyTransport) {
	way := &flakyTransport{}
	config := rest.CopyConfig(env.Config)
	config.QPS = -1
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		way.next = next

		return way
	})

	return config, way
}

func newFlakyClient(t *testing.T) (client.Client, *flakyTransport) {
	t.Helper()

	config, way := newFlakyConfig()

	out, err := client.New(config, client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	return out, way
}

// startCachedCluster starts a client that reads from a cache, as the operator's client does.
func startCachedCluster(t testing.TB, config *rest.Config, kinds ...client.Object) cluster.Cluster {
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

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s")

	kubeClient, way := newFlakyClient(t)
	receiver := newTestReceiver(kubeClient, nil)
	send := func() *httptest.ResponseRecorder {
		return serveRequest(receiver, newWebhookRequest(newWebhookBody(repository, 5, "queued", "self-hosted"), "s"))
	}

	way.isDown.Store(true)

	got := send()
	if got.Code != 503 || got.Header().Get("Retry-After") == "" || !strings.Contains(got.Body.String(), "deliver it again") {
		t.Errorf("response = %d %v %s", got.Code, got.Header(), got.Body)
	}

	if strings.Contains(got.Body.String(), "connection refused") {
		t.Errorf("the response reveals an internal error: %s", got.Body)
	}

	way.isDown.Store(false)

	if got := send(); got.Code != 202 || len(listJobs(t, namespace)) != 1 {
		t.Errorf("delivered again: %d %s", got.Code, got.Body)
	}
}

// startBurstServer starts a receiver that reads from a cache, as the operator's does, and waits until the
// cache has the pool.
func startBurstServer(t testing.TB, parallel int, pool client.ObjectKey) (*httptest.Server, *flakyTransport) {
	t.Helper()

	config, way := newFlakyConfig()
	kubeCluster := startCachedCluster(t, config, &v1alpha1.RunnerPool{}, &v1alpha1.HypervisorMachineTemplate{}, &v1alpha1.RunnerJob{})
	server := httptest.NewServer(newTestReceiver(kubeCluster.GetClient(), nil, func(c *demand.ReceiverConfig) {
		c.Parallel, c.Live = parallel, kubeCluster.GetAPIReader()
		c.Secrets = &connect.Secrets{Reader: kubeCluster.GetAPIReader()}
	}))
	t.Cleanup(server.Close)

	waitUntil(t, func() bool { return kubeCluster.GetClient().Get(t.Context(), pool, &v1alpha1.RunnerPool{}) == nil })

	return server, way
}

// The receiver handles a limited number of webhooks of a burst in parallel, and loses no acknowledged
// webhook.
func TestReceiverBurst(t *testing.T) {
	t.Parallel()

	const (
		many     = 80
		parallel = 8
	)

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s")

	server, way := startBurstServer(t, parallel, client.ObjectKey{Namespace: namespace, Name: "linux"})

	var group sync.WaitGroup
	for i := range many {
		group.Go(func() {
			for {
				code, err := sendWebhook(t.Context(), server.Client(), server.URL, newWebhookRequest(newWebhookBody(repository, i+1, "queued", "self-hosted"), "s"))
				if err != nil {
					t.Error(err)

					return
				}

				switch code {
				case http.StatusAccepted:
					return
				case http.StatusServiceUnavailable: // redelivered, as a platform would do
					time.Sleep(20 * time.Millisecond)
				default:
					t.Errorf("status %d", code)

					return
				}
			}
		})
	}

	group.Wait()
	moveBatches(t, namespace)

	if got := len(listJobs(t, namespace)); got != many {
		t.Errorf("%d jobs are in the ledger, %d were acknowledged", got, many)
	}

	if limit := way.highest.Load(); limit < 1 || limit > parallel {
		t.Errorf("%d calls at a time, want 1 to %d", limit, parallel)
	}
}

func sendWebhook(ctx context.Context, lookup *http.Client, base string, from *http.Request) (int, error) {
	req, err := http.NewRequestWithContext(ctx, from.Method, base+from.URL.Path, from.Body)
	if err != nil {
		return 0, err
	}

	req.Header = from.Header

	resp, err := lookup.Do(req)
	if err != nil {
		return 0, err
	}

	_, _ = io.Copy(io.Discard, resp.Body)

	return resp.StatusCode, resp.Body.Close()
}

// A caller that stops sending does not keep its slot.
func TestReceiverSlowCaller(t *testing.T) {
	t.Parallel()

	server := httptest.NewServer(newTestReceiver(env.Client, nil))
	defer server.Close()

	conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	if _, err := fmt.Fprint(conn, "POST /webhooks/github HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}

	response, err := io.ReadAll(conn)
	// The receiver's own deadline passed, so the response does not blame the sender.
	if err != nil || !bytes.Contains(response, []byte(" 503 ")) || !bytes.Contains(response, []byte("Retry-After: ")) {
		t.Errorf("response = %q, %v", response, err)
	}
}
