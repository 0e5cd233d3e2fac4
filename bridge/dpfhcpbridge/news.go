// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
)

// The predicates below let through what a bridge would act on. A bridge that is left alone
// by the rest is looked at a few times between its creation and its being ready.

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

// conditions are those of an object of another project without their times.
func conditions(obj client.Object, types ...string) any {
	object, is := obj.(*unstructured.Unstructured)
	if !is {
		return nil
	}

	return slices.DeleteFunc(hypershift.Conditions(object), func(c metav1.Condition) bool {
		return len(types) > 0 && !slices.Contains(types, c.Type)
	})
}

func hostedClusterNews() predicate.Predicate {
	return changed(func(obj client.Object) any {
		object, is := obj.(*unstructured.Unstructured)
		if !is {
			return nil
		}

		host, port := hypershift.Endpoint(object)

		return []any{
			object.GetGeneration(), object.GetLabels(), hypershift.Kubeconfig(object), hypershift.RolledOut(object), host, port,
			conditions(obj, hypershift.Available, hypershift.Progressing, hypershift.Degraded, hypershift.ValidConfiguration,
				hypershift.SupportedHostedCluster, hypershift.ValidReleaseImage, hypershift.ReconciliationSucceeded),
		}
	})
}

func nodePoolNews() predicate.Predicate {
	return changed(func(obj client.Object) any {
		object, is := obj.(*unstructured.Unstructured)
		if !is {
			return nil
		}

		reason, message := hypershift.NodesTrouble(object)

		return []any{object.GetGeneration(), object.GetLabels(), reason, message, hypershift.UserData(object)}
	})
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
