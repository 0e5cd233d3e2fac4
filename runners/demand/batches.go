// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"fmt"
	"log/slog"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// maxConcurrentBatches is how many batches are reconciled at the same time.
const maxConcurrentBatches = 4

// BatchReconciler merges the jobs of RunnerJobBatches into their RunnerJobs and deletes the
// batches.
type BatchReconciler struct {
	Client client.Client
	// Live reads from the API server, not from a cache. Default: Client.
	Live      client.Reader
	Platforms Platforms
	Log       *slog.Logger
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerjobbatches,verbs=list;watch;create;delete

// SetupWithManager adds the controller to a manager.
func (r *BatchReconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("runnerjobbatch").
		For(&v1alpha1.RunnerJobBatch{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: maxConcurrentBatches, ReconciliationTimeout: reconcileTimeout}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller runnerjobbatch: %w", err)
	}

	return nil
}

// Reconcile merges the jobs of one batch into their RunnerJobs, then deletes the batch. A repeated
// reconcile has the same result. A job that the API server rejects as invalid is logged and
// skipped, because it would otherwise block all other jobs of the batch. A job that the API server refuses, for
// example because of a quota, is retried with the batch after the others are recorded.
func (r *BatchReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var batch v1alpha1.RunnerJobBatch
	if err := r.Client.Get(ctx, req.NamespacedName, &batch); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	ledger := &Ledger{Client: r.Client, Live: r.Live, Platforms: r.Platforms}
	if ledger.Live == nil {
		ledger.Live = r.Client
	}

	var refusal error

	for i := range batch.Spec.Jobs {
		job := batch.Spec.Jobs[i]

		_, err := ledger.Record(ctx, batch.Namespace, job, receiveTime(job, batch.CreationTimestamp))

		switch {
		case apierrors.IsInvalid(err):
			r.Log.ErrorContext(ctx, "skipped invalid job of batch", "namespace", batch.Namespace, "job", job.ID, "cause", err.Error())
		case apierrors.IsForbidden(err):
			refusal = err
		case err != nil:
			return reconcile.Result{}, err
		}
	}

	if refusal != nil {
		return r.retryRefused(ctx, refusal)
	}

	err := r.Client.Delete(ctx, &batch, client.Preconditions{UID: &batch.UID})
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("delete batch %s: %w", req.NamespacedName, err)
	}

	return reconcile.Result{}, nil
}

// retryRefused returns the result for a batch with a job that the API server refuses.
func (r *BatchReconciler) retryRefused(ctx context.Context, refusal error) (reconcile.Result, error) {
	after := step.Fail(refusal).RequeueAfter()
	if after == 0 {
		return reconcile.Result{}, refusal
	}

	r.Log.WarnContext(ctx, "a quota refuses jobs of a batch, retrying", "error", refusal, "retryAfter", after.String())

	return reconcile.Result{RequeueAfter: after}, nil
}
