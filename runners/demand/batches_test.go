// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
)

// operatorDeleteClient reads with the test's client, and deletes with the operator's account.
type operatorDeleteClient struct{ client.Client }

func (operatorDeleteClient) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	return operator.Delete(ctx, obj, opts...)
}

// moveBatches moves the batches of a namespace to the ledger, as the leader does.
func moveBatches(t *testing.T, namespace string) {
	t.Helper()

	var batches v1alpha1.RunnerJobBatchList
	if err := env.Client.List(t.Context(), &batches, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}

	batchMover := &demand.BatchReconciler{Client: operatorDeleteClient{env.Client}, Platforms: newPlatforms(), Log: slog.New(slog.DiscardHandler)}

	for i := range batches.Items {
		key := client.ObjectKeyFromObject(&batches.Items[i])
		if _, err := batchMover.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
	}
}

// A burst is acknowledged with batches. Every job of the burst gets into the ledger, also if a batch is moved
// twice.
func TestBurstIsMovedIntoTheLedger(t *testing.T) {
	t.Parallel()

	const many = 150

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s")

	asOperator := interceptor.NewClient(noWatchClient{env.Client}, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if _, ok := obj.(*v1alpha1.RunnerJobBatch); ok {
				return operator.Create(ctx, obj, opts...)
			}

			return c.Create(ctx, obj, opts...)
		},
	})

	server := httptest.NewServer(newTestReceiver(asOperator, nil))
	defer server.Close()

	var group sync.WaitGroup
	for i := range many {
		group.Go(func() {
			// On a busy computer the receiver rejects some webhooks with 503, and the test sends these again,
			// as a platform would.
			// The pause grows, because each attempt costs calls to the API server: without it, all of them may time out
			// again and again.
			code, err, pause := http.StatusServiceUnavailable, error(nil), 100*time.Millisecond
			for code == http.StatusServiceUnavailable && err == nil {
				code, err = sendWebhook(t.Context(), server.Client(), server.URL, newWebhookRequest(newWebhookBody(repository, i+1, "queued", "self-hosted"), "s"))
				if code == http.StatusServiceUnavailable {
					time.Sleep(time.Duration(rand.Int64N(int64(pause))))
					pause = min(2*pause, 5*time.Second)
				}
			}

			if code != http.StatusAccepted || err != nil {
				t.Errorf("webhook %d: status %d, %v", i+1, code, err)
			}
		})
	}

	group.Wait()

	var batches v1alpha1.RunnerJobBatchList
	if err := env.Client.List(t.Context(), &batches, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}

	direct := len(listJobs(t, namespace))
	t.Logf("%d jobs were written directly, the others in %d batches", direct, len(batches.Items))

	if len(batches.Items) == 0 || direct == 0 || len(batches.Items) > many-direct {
		t.Fatalf("%d batches and %d direct writes of %d webhooks", len(batches.Items), direct, many)
	}

	// One job of a batch is recorded, as if the operator was killed while it moved the batch.
	writer := &demand.Ledger{Client: env.Client, Live: env.Client, Platforms: newPlatforms()}
	if _, err := writer.Record(t.Context(), namespace, batches.Items[0].Spec.Jobs[0], batches.Items[0].CreationTimestamp.Time); err != nil {
		t.Fatal(err)
	}

	moveBatches(t, namespace)
	moveBatches(t, namespace)

	jobs := listJobs(t, namespace)
	if len(jobs) != many {
		t.Errorf("%d jobs are in the ledger, want %d", len(jobs), many)
	}

	for i := range many {
		job := jobs["gh-"+strconv.Itoa(i+1)]
		if job.Spec.ReceivedAt == nil || job.Spec.State != v1alpha1.JobQueued {
			// A list may lack objects that exist, so read the object too.
			var one v1alpha1.RunnerJob

			err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "gh-" + strconv.Itoa(i+1)}, &one)
			t.Errorf("job %d = %+v; read alone: %+v, %v", i+1, job.Spec, one.Spec, err)
		}
	}

	if err := env.Client.List(t.Context(), &batches, client.InNamespace(namespace)); err != nil || len(batches.Items) > 0 {
		t.Errorf("%d batches are left, %v", len(batches.Items), err)
	}
}

// If the maximum number of webhooks is already being written, one more webhook is written directly unless
// others arrive with it, because a batch of one job would cost two writes.
func TestSingleExtraWebhookIsWrittenDirectly(t *testing.T) {
	t.Parallel()

	const many = 17

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s")

	var writing, batches atomic.Int32

	all := make(chan struct{})
	counted := interceptor.NewClient(noWatchClient{env.Client}, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if _, ok := obj.(*v1alpha1.RunnerJobBatch); ok {
				batches.Add(1)
			} else if writing.Add(1) == many {
				close(all)
			}

			select {
			case <-all:
			case <-ctx.Done():
			}

			return c.Create(ctx, obj, opts...)
		},
	})

	server := httptest.NewServer(newTestReceiver(counted, nil))
	defer server.Close()

	var group sync.WaitGroup
	for i := range many {
		group.Go(func() {
			code, err := sendWebhook(t.Context(), server.Client(), server.URL, newWebhookRequest(newWebhookBody(repository, i+1, "queued", "self-hosted"), "s"))
			if code != http.StatusAccepted || err != nil {
				t.Errorf("webhook %d: status %d, %v", i+1, code, err)
			}
		})
	}

	group.Wait()

	if jobs := listJobs(t, namespace); len(jobs) != many || batches.Load() > 0 {
		t.Errorf("%d jobs and %d batches of %d webhooks", len(jobs), batches.Load(), many)
	}
}

// A job that a quota refuses blocks no other job of its batch, and the batch is retried soon.
func TestRefusedJobOfBatchBlocksNoOther(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		cause     string
		isDelayed bool
	}{
		"a quota": {"exceeded quota: few", true}, "an admission policy": {"not these", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			batch := &v1alpha1.RunnerJobBatch{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "burst"}}
			for _, id := range []string{"1", "2", "3"} {
				batch.Spec.Jobs = append(batch.Spec.Jobs, newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.ID = id }))
			}

			isRefusing := true
			refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "runnerjobs"}, "gh-1", errors.New(tc.cause))
			c := fake.NewClientBuilder().WithScheme(env.Scheme).WithObjects(batch).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
					if isRefusing && obj.GetName() == "gh-1" {
						return refusal
					}

					return c.Create(ctx, obj, opts...)
				},
			}).Build()
			mover := &demand.BatchReconciler{Client: c, Platforms: newPlatforms(), Log: slog.New(slog.DiscardHandler)}

			result, err := mover.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(batch)})
			if isDelayed := err == nil && result.RequeueAfter > 0 && result.RequeueAfter <= time.Minute; isDelayed != tc.isDelayed {
				t.Errorf("the result is %v, error %v", result, err)
			}

			requireJobs := func(want int) {
				t.Helper()

				var jobs v1alpha1.RunnerJobList
				if err := c.List(t.Context(), &jobs); err != nil || len(jobs.Items) != want {
					t.Errorf("%d jobs are recorded, error %v, want %d", len(jobs.Items), err, want)
				}
			}

			requireJobs(2)

			isRefusing = false

			if _, err := mover.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(batch)}); err != nil {
				t.Error(err)
			}

			requireJobs(3)
		})
	}
}
