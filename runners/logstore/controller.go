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
	// ReasonNotStored is the reason of the event about a log that the store does not take.
	ReasonNotStored = "LogNotStored"

	// passTimeout bounds one pass: one call of a store.
	passTimeout = 15 * time.Second
	concurrency = 2
	// A log is tried after 1 s, 2 s, 4 s, ... 10 min: for two hours.
	maxTries  = 20
	firstWait = time.Second
	maxWait   = 10 * time.Minute
	// maxMessage is the bound of spec.notStored.
	maxMessage = 1024
)

// Reconciler brings logs to the store.
type Reconciler struct {
	Client client.Client
	// Live reads logs: a cache would hold all there are in memory.
	Live     client.Reader
	Store    *Store
	Recorder events.EventRecorder
	Metrics  *Metrics

	mu sync.Mutex
	// tries that failed, by log. What is not pending is not in it.
	tries map[types.NamespacedName]int
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerlogs,verbs=get;list;watch;update

// SetupWithManager adds the controller to a manager. It watches what logs are there, without
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
		WithOptions(controller.Options{ReconciliationTimeout: passTimeout, MaxConcurrentReconciles: concurrency}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller runnerlog: %w", err)
	}

	return nil
}

// Reconcile stores one log, if it is for the store.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var found v1alpha1.RunnerLog

	err := r.Live.Get(ctx, request.NamespacedName, &found)

	switch {
	case apierrors.IsNotFound(err), err == nil && found.Labels[v1alpha1.LabelLogStore] != v1alpha1.LogStorePending:
		r.forget(request.NamespacedName)

		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("read log %s: %w", request, err)
	}

	where, err := r.Store.put(ctx, &found)
	if err != nil {
		return r.failed(ctx, &found, err)
	}

	r.Metrics.wrote(outcomeStored)
	delete(found.Labels, v1alpha1.LabelLogStore)
	found.Spec.Stored, found.Spec.Text = where, ""

	return r.write(ctx, &found)
}

// failed has a log tried again later, or leaves it where it is for good.
func (r *Reconciler) failed(ctx context.Context, of *v1alpha1.RunnerLog, problem error) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(of)
	tries := r.failedAgain(key)
	log.FromContext(ctx).Info("log was not stored", "log", key, "try", tries, "error", problem.Error())

	if tries < maxTries {
		r.Metrics.wrote(outcomeFailed)

		if tries == 1 {
			r.tell(of, "the log is in the cluster for now, and is tried again: "+problem.Error())
		}

		return reconcile.Result{RequeueAfter: wait(tries)}, nil
	}

	r.Metrics.wrote(outcomeGivenUp)
	r.tell(of, "the log stays in the cluster: "+problem.Error())

	of.Labels[v1alpha1.LabelLogStore] = v1alpha1.LogStoreFailed
	of.Spec.NotStored = string([]rune(problem.Error())[:min(len([]rune(problem.Error())), maxMessage)])

	return r.write(ctx, of)
}

// write writes what became of a log, unless that has changed meanwhile.
func (r *Reconciler) write(ctx context.Context, of *v1alpha1.RunnerLog) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(of)

	switch err := r.Client.Update(ctx, of); {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: firstWait}, nil
	case client.IgnoreNotFound(err) != nil:
		return reconcile.Result{}, fmt.Errorf("update log %s: %w", key, err)
	default:
		r.forget(key)

		return reconcile.Result{}, nil
	}
}

// tell tells it of the job, if that is known, and else of the log.
func (r *Reconciler) tell(of *v1alpha1.RunnerLog, message string) {
	var about client.Object = of

	for _, owner := range of.OwnerReferences {
		if owner.Kind == "RunnerJob" {
			about = &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: owner.Name, UID: owner.UID}}
		}
	}

	r.Recorder.Eventf(about, nil, corev1.EventTypeWarning, ReasonNotStored, "Store", "%s", message)
}

func (r *Reconciler) failedAgain(key types.NamespacedName) int {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.tries == nil {
		r.tries = map[types.NamespacedName]int{}
	}

	r.tries[key]++

	return r.tries[key]
}

func (r *Reconciler) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.tries, key)
}

// wait is how long a log waits after so many tries.
func wait(tries int) time.Duration {
	out := firstWait
	for i := 1; i < tries && out < maxWait; i++ {
		out *= 2
	}

	return min(out, maxWait)
}
