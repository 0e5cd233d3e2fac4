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

// The predicates below let through what a pass can use, and drop nothing else: a change that
// is dropped leads to the same status and the same writes as before. TestWhatIsDroppedIsOfNoUse
// holds it; what a step reads anew of an object belongs here as well.
//
// Most of what HyperShift says is only told, while the list of steps waits where it did. Such
// news is gathered, with whatever comes next. What decides is looked at as soon as what comes
// with it has come: HyperShift writes several objects in one go.

const (
	// settle is how long news waits that decides something.
	settle = time.Second
	// gather is how long news waits that decides nothing. It is what a status may be behind.
	gather = 5 * time.Second
)

// soon is a handler of updates that has a pass when things have settled where what it reads of
// the object has changed, or whether the object is going, and else when news is gathered.
func soon(to handler.MapFunc, read func(client.Object) any) handler.EventHandler {
	settled, gathered, decides := within(settle, to), within(gather, to), changed(read)

	return handler.Funcs{
		CreateFunc: gathered.Create,
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if decides.Update(e) {
				settled.Update(ctx, e, q)
			} else {
				gathered.Update(ctx, e, q)
			}
		},
		DeleteFunc: settled.Delete,
	}
}

// within is a handler that has a pass for all that comes within a time.
func within(wait time.Duration, to handler.MapFunc) handler.EventHandler {
	now := atOnce(to)

	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { now.Create(ctx, e, delayed{q, wait}) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { now.Update(ctx, e, delayed{q, wait}) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { now.Delete(ctx, e, delayed{q, wait}) },
	}
}

// atOnce is a handler that has a pass for each event.
func atOnce(to handler.MapFunc) handler.EventHandler { return handler.EnqueueRequestsFromMapFunc(to) }

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// delayed is a queue whose requests wait. The queue takes requests for one bridge as one, at
// the earliest time of them.
type delayed struct {
	queue

	wait time.Duration
}

func (d delayed) Add(request reconcile.Request) { d.AddAfter(request, d.wait) }

// nothing is what is read of an object that decides nothing.
func nothing(client.Object) any { return nil }

// changed is a predicate of updates that change what is read of an object, and of all else
// but creations: what a bridge makes is no news to it.
func changed(read func(client.Object) any) predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero() ||
				!equality.Semantic.DeepEqual(read(e.ObjectOld), read(e.ObjectNew))
		},
	}
}

// of reads an object of another project.
func of(read func(*unstructured.Unstructured) any) func(client.Object) any {
	return func(obj client.Object) any {
		if object, is := obj.(*unstructured.Unstructured); is {
			return read(object)
		}

		return nil
	}
}

func hostedClusterNews() predicate.Predicate {
	return changed(of(func(cluster *unstructured.Unstructured) any {
		host, port := hypershift.Endpoint(cluster)
		told := slices.DeleteFunc(hypershift.Conditions(cluster), func(c metav1.Condition) bool {
			return !slices.Contains([]string{
				hypershift.Available, hypershift.Progressing, hypershift.Degraded, hypershift.ValidConfiguration,
				hypershift.SupportedHostedCluster, hypershift.ValidReleaseImage, hypershift.ReconciliationSucceeded,
			}, c.Type)
		})

		return []any{
			cluster.GetGeneration(), cluster.GetLabels(), hypershift.Kubeconfig(cluster), hypershift.RolledOut(cluster),
			host, port, told,
		}
	}))
}

// hostedClusterDecides is what the list of steps goes on or stops for.
func hostedClusterDecides(obj client.Object) any {
	return of(func(cluster *unstructured.Unstructured) any {
		kubeconfig := ""

		verdict := controlPlane(hypershift.Conditions(cluster), hypershift.RolledOut(cluster), true)
		if verdict.IsDone() {
			kubeconfig = hypershift.Kubeconfig(cluster)
		}

		return []any{
			cluster.GetGeneration(), cluster.GetLabels(), hypershift.Refused(cluster) != nil,
			verdict.Reason(), kubeconfig,
		}
	})(obj)
}

func nodePoolNews() predicate.Predicate {
	return changed(of(func(pool *unstructured.Unstructured) any {
		reason, message := hypershift.NodesTrouble(pool)

		return []any{pool.GetGeneration(), pool.GetLabels(), reason, message}
	}))
}

func nodePoolDecides(obj client.Object) any {
	return of(func(pool *unstructured.Unstructured) any {
		reason, _ := hypershift.NodesTrouble(pool)

		return []any{pool.GetGeneration(), pool.GetLabels(), reason}
	})(obj)
}

// userDataNews lets through what DPUs are installed by.
func userDataNews() predicate.Predicate {
	return changed(of(func(pool *unstructured.Unstructured) any { return hypershift.UserData(pool) }))
}

// dpuClusterNews lets through what decides whether a DPUCluster may be used.
func dpuClusterNews() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, ok := e.ObjectOld.(*unstructured.Unstructured)
		is, also := e.ObjectNew.(*unstructured.Unstructured)

		if !ok || !also {
			return true
		}

		before, after := hypershift.ReadDPUCluster(was), hypershift.ReadDPUCluster(is)
		before.Kubeconfig, after.Kubeconfig = "", "" // it is set by the bridge itself

		return before != after
	}}
}

// serviceNews lets through what changes a Service's type, ports or addresses.
func serviceNews() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, ok := e.ObjectOld.(*corev1.Service)
		is, also := e.ObjectNew.(*corev1.Service)

		return !ok || !also || was.Spec.Type != is.Spec.Type || !equality.Semantic.DeepEqual(was.Spec.Ports, is.Spec.Ports) ||
			!slices.Equal(addressesOfService(was), addressesOfService(is)) ||
			!equality.Semantic.DeepEqual(was.Status.LoadBalancer, is.Status.LoadBalancer)
	}}
}

// foreignOrChanged lets everything through but the creation of a bridge's own objects.
func foreignOrChanged() predicate.Predicate {
	return predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool {
		return e.Object.GetLabels()[hypershift.LabelUID] == ""
	}}
}

// goes lets through bridges that are gone, or have let go of an address.
func goes() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, ok := e.ObjectOld.(*v1alpha1.DPFHCPBridge)
			is, also := e.ObjectNew.(*v1alpha1.DPFHCPBridge)

			return ok && also && was.Spec.MetalLBVirtualIP != is.Spec.MetalLBVirtualIP
		},
	}
}
