// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// clusterAnnotation is the annotation of control plane objects that names their HostedCluster as
// NAMESPACE/NAME.
const clusterAnnotation = "hypershift.openshift.io/cluster"

// startWorkers starts the watches and the workers. It returns when the cache is in sync.
func (s *Sim) startWorkers() error {
	type watched struct {
		object  client.Object
		enqueue func(client.Object)
	}

	newUnstructured := func(gvk schema.GroupVersionKind) client.Object {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(gvk)

		return object
	}

	kinds := []watched{
		{newUnstructured(hypershiftGVK(kindHostedCluster)), s.enqueueHostedCluster},
		{newUnstructured(hypershiftGVK(kindNodePool)), s.enqueueNodePool},
		{&corev1.Namespace{}, s.enqueueControlPlane},
		{&corev1.Service{}, s.enqueueService},
	}
	if !s.options.WithoutMetalLB {
		kinds = append(kinds, watched{newUnstructured(addressPoolGVK()), s.enqueueAddressPool})
	}

	for _, w := range kinds {
		informer, err := s.cache.GetInformer(s.ctx, w.object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: install sim/hypershift/crds: %w", w.object, err)
		}

		if _, err := informer.AddEventHandler(newEventHandler(w.enqueue)); err != nil {
			return fmt.Errorf("watch %T: %w", w.object, err)
		}
	}

	s.wg.Go(func() { _ = s.cache.Start(s.ctx) })

	synced, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()

	if !s.cache.WaitForCacheSync(synced) {
		return errors.New("watch hosted clusters: the API server does not respond")
	}

	for range workers {
		s.wg.Go(s.runWorker)
	}

	return nil
}

func newEventHandler(enqueue func(client.Object)) toolscache.ResourceEventHandler {
	add := func(obj any) {
		if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}

		if o, ok := obj.(client.Object); ok {
			enqueue(o)
		}
	}

	return toolscache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, updated any) { add(updated) }, DeleteFunc: add}
}

func (s *Sim) enqueueHostedCluster(o client.Object) {
	s.queue.Add(key{kindHostedCluster, client.ObjectKeyFromObject(o)})

	pools, err := s.list(s.ctx, hypershiftGVK(kindNodePool), o.GetNamespace())
	if err != nil {
		return // the watches enqueue the objects
	}

	for i := range pools {
		if clusterOf(&pools[i]) == o.GetName() {
			s.queue.Add(key{kindNodePool, client.ObjectKeyFromObject(&pools[i])})
		}
	}
}

func (s *Sim) enqueueNodePool(o client.Object) {
	s.queue.Add(key{kindNodePool, client.ObjectKeyFromObject(o)})

	if pool, ok := o.(*unstructured.Unstructured); ok {
		s.queue.Add(key{kindHostedCluster, types.NamespacedName{Namespace: o.GetNamespace(), Name: clusterOf(pool)}})
	}
}

func clusterOf(pool *unstructured.Unstructured) string {
	name, _, _ := unstructured.NestedString(pool.Object, "spec", "clusterName")

	return name
}

// enqueueControlPlane enqueues the HostedCluster that an object of a control plane belongs to.
func (s *Sim) enqueueControlPlane(o client.Object) {
	namespace, name, ok := strings.Cut(o.GetAnnotations()[clusterAnnotation], "/")
	if ok {
		s.queue.Add(key{kindHostedCluster, types.NamespacedName{Namespace: namespace, Name: name}})
	}
}

// enqueueService enqueues a Service, its HostedCluster, and all Services without an address, because a
// deleted Service releases an address.
func (s *Sim) enqueueService(o client.Object) {
	s.enqueueControlPlane(o)

	service, ok := o.(*corev1.Service)
	if !ok || s.options.WithoutMetalLB || service.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}

	s.queue.Add(key{kindService, client.ObjectKeyFromObject(o)})
	s.enqueueServices(onlyWithoutAddress)
}

func (s *Sim) enqueueAddressPool(o client.Object) {
	s.queue.Add(key{kindAddressPool, client.ObjectKeyFromObject(o)})
	s.enqueueServices(allServices)
}

// onlyWithoutAddress and allServices are the values of the parameter isWaitingOnly.
const onlyWithoutAddress, allServices = true, false

// enqueueServices enqueues all Services of type LoadBalancer, or only those without an address.
func (s *Sim) enqueueServices(isWaitingOnly bool) {
	var all corev1.ServiceList
	if err := s.cache.List(s.ctx, &all); err != nil {
		return // the watches enqueue the objects
	}

	for i := range all.Items {
		service := &all.Items[i]
		if service.Spec.Type != corev1.ServiceTypeLoadBalancer || isWaitingOnly && len(service.Status.LoadBalancer.Ingress) > 0 {
			continue
		}

		s.queue.Add(key{kindService, client.ObjectKeyFromObject(service)})
	}
}

// enqueueAll enqueues all objects that the Sim reconciles.
func (s *Sim) enqueueAll() {
	for _, kind := range []kind{kindHostedCluster, kindNodePool} {
		objects, err := s.list(s.ctx, hypershiftGVK(kind), "")
		if err != nil {
			continue // the cache is not in sync yet
		}

		for i := range objects {
			s.queue.Add(key{kind, client.ObjectKeyFromObject(&objects[i])})
		}
	}

	if !s.options.WithoutMetalLB {
		s.enqueueServices(allServices)
	}
}

// list lists objects from the cache.
func (s *Sim) list(ctx context.Context, gvk schema.GroupVersionKind, namespace string) ([]unstructured.Unstructured, error) {
	var list unstructured.UnstructuredList

	gvk.Kind += "List"
	list.SetGroupVersionKind(gvk)

	if err := s.cache.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list %s: %w", gvk.Kind, err)
	}

	return list.Items, nil
}

func (s *Sim) runWorker() {
	for {
		k, isShutDown := s.queue.Get()
		if isShutDown {
			return
		}

		err := s.reconcile(k)

		switch {
		case err == nil:
			s.queue.Forget(k)
		case s.ctx.Err() != nil:
		default:
			if !isExpected(err) {
				s.recordProblem(fmt.Errorf("%s: %w", k, err))
			}

			s.queue.AddRateLimited(k)
		}

		s.queue.Done(k)
	}
}

// isExpected returns true for errors that concurrent changes of the same objects cause. The Sim retries
// after them and does not report them as problems.
func isExpected(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// reconcile takes all steps for an object that are possible now.
func (s *Sim) reconcile(k key) error {
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()

	switch k.kind {
	case kindService:
		return s.reconcileService(ctx, k)
	case kindAddressPool:
		return s.validateAddressPools(ctx, k)
	case kindHostedCluster, kindNodePool:
	}

	object, err := s.get(ctx, k)
	if err != nil || object == nil {
		return err
	}

	if k.kind == kindNodePool {
		return s.reconcileNodePool(ctx, k, object)
	}

	return s.reconcileHostedCluster(ctx, k, object)
}

// hasElapsed returns true if a delay of an object is over. The first call starts the delay. While the
// delay lasts, hasElapsed enqueues the key for the time at which the delay ends.
func (s *Sim) hasElapsed(k key, uid types.UID, name string, delay time.Duration) bool {
	if slow, ok := s.findFault(Slow, k.Name); ok {
		delay += slow.Delay
	}

	s.mu.Lock()
	id := delayKey{uid, name}

	due, ok := s.dueTimes[id]
	if !ok {
		due = s.options.Clock.Now().Add(delay)
		s.dueTimes[id] = due
	}

	s.mu.Unlock()

	remaining := due.Sub(s.options.Clock.Now())
	if remaining <= 0 {
		return true
	}

	s.queue.AddAfter(k, remaining)

	return false
}
