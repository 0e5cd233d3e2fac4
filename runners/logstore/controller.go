// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

const (
	// ReasonNotStored is the reason of the event about a log that could not be stored.
	ReasonNotStored = "LogNotStored"

	// reconcileTimeout limits one reconcile, which calls the store once.
	reconcileTimeout = 15 * time.Second
	concurrency      = 2
	// Attempts to store a log are 1 s, 2 s, 4 s, ... 10 min apart, for about two hours in total.
	maxAttempts = 20
	minDelay    = time.Second
	maxDelay    = 10 * time.Minute
	// maxMessage is the maximum length of spec.notStored in characters.
	maxMessage = 1024
)

// Reconciler moves pending logs to the store.
type Reconciler struct {
	Client client.Client
	// Live reads logs from the API server, because a cache would hold the texts of all logs in memory.
	Live     client.Reader
	Store    *Store
	Recorder events.EventRecorder
	Metrics  *Metrics

	mu sync.Mutex
	// attempts counts the failed attempts of each pending log.
	attempts map[types.NamespacedName]int
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerlogs,verbs=get;list;watch;update

// SetupWithManager adds the controller to a manager. The controller watches only the metadata of logs, not
// their texts.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	pending, err := predicate.LabelSelectorPredicate(metav1.LabelSelector{
		MatchLabels: map[string]string{v1alpha1.LabelLogStore: v1alpha1.LogStorePending},
	})
	if err != nil {
		return fmt.Errorf("select pending logs: %w", err)
	}

	err = ctrl.NewControllerManagedBy(mgr).
		Named("runnerlog").
		For(&v1alpha1.RunnerLog{}, builder.OnlyMetadata, builder.WithPredicates(pending)).
		WithOptions(controller.Options{ReconciliationTimeout: reconcileTimeout, MaxConcurrentReconciles: concurrency}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller runnerlog: %w", err)
	}

	return nil
}

// Reconcile stores one log if it has the label for pending logs. Afterwards it clears the text in the
// RunnerLog.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var runnerLog v1alpha1.RunnerLog

	err := r.Live.Get(ctx, request.NamespacedName, &runnerLog)

	switch {
	case apierrors.IsNotFound(err), err == nil && runnerLog.Labels[v1alpha1.LabelLogStore] != v1alpha1.LogStorePending:
		r.forget(request.NamespacedName)

		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("get RunnerLog %s: %w", request, err)
	}

	stored, err := r.Store.put(ctx, &runnerLog)
	if err != nil {
		return r.handleError(ctx, &runnerLog, err)
	}

	r.Metrics.countWrite(outcomeStored)
	delete(runnerLog.Labels, v1alpha1.LabelLogStore)
	runnerLog.Spec.Stored, runnerLog.Spec.Text = stored, ""

	return r.update(ctx, &runnerLog)
}

// handleError requeues the log with a back-off. After maxAttempts attempts it marks the log as failed
// instead: the log stays in the RunnerLog.
func (r *Reconciler) handleError(ctx context.Context, runnerLog *v1alpha1.RunnerLog, cause error) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(runnerLog)
	attempts := r.countAttempt(key)
	log.FromContext(ctx).Info("log was not stored", "log", key, "attempt", attempts, "error", cause.Error())

	if attempts < maxAttempts {
		r.Metrics.countWrite(outcomeFailed)

		if attempts == 1 {
			r.emitEvent(runnerLog, "store the log (it stays in the cluster until a retry succeeds): "+cause.Error())
		}

		return reconcile.Result{RequeueAfter: retryDelay(attempts)}, nil
	}

	r.Metrics.countWrite(outcomeGivenUp)
	r.emitEvent(runnerLog, "store the log (it stays in the cluster, after the last retry): "+cause.Error())

	runnerLog.Labels[v1alpha1.LabelLogStore] = v1alpha1.LogStoreFailed
	runnerLog.Spec.NotStored = string([]rune(cause.Error())[:min(len([]rune(cause.Error())), maxMessage)])

	return r.update(ctx, runnerLog)
}

// update writes the RunnerLog. On a conflict it requeues the log.
func (r *Reconciler) update(ctx context.Context, runnerLog *v1alpha1.RunnerLog) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(runnerLog)

	switch err := r.Client.Update(ctx, runnerLog); {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: minDelay}, nil
	case client.IgnoreNotFound(err) != nil:
		return reconcile.Result{}, fmt.Errorf("update RunnerLog %s: %w", key, err)
	default:
		r.forget(key)

		return reconcile.Result{}, nil
	}
}

// emitEvent emits a warning on the RunnerJob that owns the log, or on the log if no job owns it.
func (r *Reconciler) emitEvent(runnerLog *v1alpha1.RunnerLog, message string) {
	var regarding client.Object = runnerLog

	for _, owner := range runnerLog.OwnerReferences {
		if owner.Kind == "RunnerJob" {
			regarding = &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{
				Namespace: runnerLog.Namespace, Name: owner.Name, UID: owner.UID,
			}}
		}
	}

	r.Recorder.Eventf(regarding, nil, corev1.EventTypeWarning, ReasonNotStored, "Store", "%s", message)
}

func (r *Reconciler) countAttempt(key types.NamespacedName) int {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.attempts == nil {
		r.attempts = map[types.NamespacedName]int{}
	}

	r.attempts[key]++

	return r.attempts[key]
}

func (r *Reconciler) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.attempts, key)
}

// retryDelay returns the delay after the given number of failed attempts.
func retryDelay(attempts int) time.Duration {
	delay := minDelay
	for i := 1; i < attempts && delay < maxDelay; i++ {
		delay *= 2
	}

	return min(delay, maxDelay)
}
