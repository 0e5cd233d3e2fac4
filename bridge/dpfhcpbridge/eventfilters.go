// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
)

// The predicates in this file drop only events that cannot change the result of a reconcile: after such an
// event, the status and the writes would be the same as before. TestDroppedFieldsAreUnused checks this for
// HostedClusters. If a step reads another field of an object, the object's predicate must read the field too.
//
// Most changes by HyperShift only change what the bridge reports, but not the step at which the bridge waits.
// These events are batched for batchDelay. Events that let the steps continue or stop wait only for
// settleDelay, because HyperShift writes several objects in a row.

const (
	// settleDelay is the delay of events that let the steps continue or stop.
	settleDelay = time.Second
	// batchDelay is the delay of all other events. The status can be out of date for this long.
	batchDelay = 5 * time.Second
)

// newUpdateHandler returns a handler that delays events. The delay is settleDelay for deletions, and for
// updates that pass newChangePredicate(readFields). It is batchDelay for all other events.
func newUpdateHandler(mapFunc handler.MapFunc, readFields func(client.Object) any) handler.EventHandler {
	fast, batched := newDelayedHandler(settleDelay, mapFunc), newDelayedHandler(batchDelay, mapFunc)
	urgent := newChangePredicate(readFields)

	return handler.Funcs{
		CreateFunc: batched.Create,
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if urgent.Update(e) {
				fast.Update(ctx, e, q)
			} else {
				batched.Update(ctx, e, q)
			}
		},
		DeleteFunc: fast.Delete,
	}
}

// newDelayedHandler returns a handler that delays all requests, so that the events within the delay lead
// to one reconcile.
func newDelayedHandler(wait time.Duration, mapFunc handler.MapFunc) handler.EventHandler {
	immediate := newHandler(mapFunc)

	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			immediate.Create(ctx, e, delayedQueue{q, wait})
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			immediate.Update(ctx, e, delayedQueue{q, wait})
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			immediate.Delete(ctx, e, delayedQueue{q, wait})
		},
	}
}

// newHandler returns a handler without a delay.
func newHandler(mapFunc handler.MapFunc) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(mapFunc)
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// delayedQueue adds requests to the queue after a delay. The queue merges the requests for one bridge
// and keeps the earliest time.
type delayedQueue struct {
	queue

	delay time.Duration
}

func (d delayedQueue) Add(request reconcile.Request) { d.AddAfter(request, d.delay) }

// readNothing is the readFields function for objects of which no field lets the steps continue or stop.
func readNothing(client.Object) any { return nil }

// newChangePredicate returns a predicate that passes an update if the result of readFields changes, or if
// the object begins to be deleted. It passes all deletions. It drops creations, because the bridge itself
// creates the objects.
func newChangePredicate(readFields func(client.Object) any) predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero() ||
				!equality.Semantic.DeepEqual(readFields(e.ObjectOld), readFields(e.ObjectNew))
		},
	}
}

// readUnstructured converts a function that reads fields of an unstructured object, for newChangePredicate.
// The result for objects of other types is nil.
func readUnstructured(read func(*unstructured.Unstructured) any) func(client.Object) any {
	return func(obj client.Object) any {
		if object, ok := obj.(*unstructured.Unstructured); ok {
			return read(object)
		}

		return nil
	}
}

// newHostedClusterPredicate returns a predicate that accepts changes of the HostedCluster's fields that the
// steps read.
func newHostedClusterPredicate() predicate.Predicate {
	return newChangePredicate(readUnstructured(func(cluster *unstructured.Unstructured) any {
		host, port := hypershift.Endpoint(cluster)
		conditions := slices.DeleteFunc(hypershift.Conditions(cluster), func(c metav1.Condition) bool {
			return !slices.Contains([]string{
				hypershift.Available, hypershift.Progressing, hypershift.Degraded, hypershift.ValidConfiguration,
				hypershift.SupportedHostedCluster, hypershift.ValidReleaseImage, hypershift.ReconciliationSucceeded,
			}, c.Type)
		})

		return []any{
			cluster.GetGeneration(), cluster.GetLabels(),
			hypershift.KubeconfigSecretName(cluster), hypershift.IsRolledOut(cluster), host, port, conditions,
		}
	}))
}

// readHostedClusterProgress returns the fields of a HostedCluster that let the steps continue or stop.
func readHostedClusterProgress(obj client.Object) any {
	return readUnstructured(func(cluster *unstructured.Unstructured) any {
		kubeconfig := ""

		const wasAvailable = true // with it, evaluateControlPlane has another reason for each state

		result := evaluateControlPlane(hypershift.Conditions(cluster), hypershift.IsRolledOut(cluster), wasAvailable)
		if result.IsDone() {
			kubeconfig = hypershift.KubeconfigSecretName(cluster)
		}

		return []any{
			cluster.GetGeneration(), cluster.GetLabels(), hypershift.BlockingCondition(cluster) != nil,
			result.Reason(), kubeconfig,
		}
	})(obj)
}

// newNodePoolPredicate returns a predicate for changes of the fields that the steps read of a NodePool.
func newNodePoolPredicate() predicate.Predicate {
	return newChangePredicate(readUnstructured(func(pool *unstructured.Unstructured) any {
		reason, message := hypershift.NodePoolProblem(pool)

		return []any{pool.GetGeneration(), pool.GetLabels(), reason, message}
	}))
}

// readNodePoolProgress returns the fields of a NodePool that let the steps continue or stop.
func readNodePoolProgress(obj client.Object) any {
	return readUnstructured(func(pool *unstructured.Unstructured) any {
		reason, _ := hypershift.NodePoolProblem(pool)

		return []any{pool.GetGeneration(), pool.GetLabels(), reason}
	})(obj)
}

// newUserDataPredicate returns a predicate for changes of the user data that DPUs are installed with.
func newUserDataPredicate() predicate.Predicate {
	return newChangePredicate(readUnstructured(func(pool *unstructured.Unstructured) any {
		return hypershift.UserDataSecretName(pool)
	}))
}

// newDPUClusterPredicate returns a predicate for changes that decide whether a DPUCluster can be used.
func newDPUClusterPredicate() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		oldObject, oldOK := e.ObjectOld.(*unstructured.Unstructured)
		newObject, newOK := e.ObjectNew.(*unstructured.Unstructured)

		if !oldOK || !newOK {
			return true
		}

		before, after := hypershift.DecodeDPUCluster(oldObject), hypershift.DecodeDPUCluster(newObject)
		before.Kubeconfig, after.Kubeconfig = "", "" // the bridge itself sets it

		return before != after
	}}
}

// newServicePredicate returns a predicate for changes of a Service's type, ports or addresses.
func newServicePredicate() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, beforeOK := e.ObjectOld.(*corev1.Service)
		after, afterOK := e.ObjectNew.(*corev1.Service)

		return !beforeOK || !afterOK || before.Spec.Type != after.Spec.Type ||
			!equality.Semantic.DeepEqual(before.Spec.Ports, after.Spec.Ports) ||
			!slices.Equal(serviceAddresses(before), serviceAddresses(after)) ||
			!equality.Semantic.DeepEqual(before.Status.LoadBalancer, after.Status.LoadBalancer)
	}}
}

// newIgnoreOwnCreationsPredicate returns a predicate that drops the creations of a bridge's own objects, and
// passes all other events.
func newIgnoreOwnCreationsPredicate() predicate.Predicate {
	return predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool {
		return e.Object.GetLabels()[hypershift.LabelUID] == ""
	}}
}

// newReleasedPredicate returns a predicate for bridges that are deleted or that have changed their
// addresses.
func newReleasedPredicate() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, beforeOK := e.ObjectOld.(*v1alpha1.DPFHCPBridge)
			after, afterOK := e.ObjectNew.(*v1alpha1.DPFHCPBridge)

			return beforeOK && afterOK && before.Spec.MetalLBVirtualIP != after.Spec.MetalLBVirtualIP
		},
	}
}
