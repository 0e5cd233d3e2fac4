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

// clusterAnnotation names the HostedCluster, as NAMESPACE/NAME, that an object of a control
// plane belongs to.
const clusterAnnotation = "hypershift.openshift.io/cluster"

// run starts the watches and the workers.
func (s *Sim) run() error {
	type watched struct {
		object  client.Object
		enqueue func(client.Object)
	}

	foreign := func(gvk schema.GroupVersionKind) client.Object {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(gvk)

		return object
	}

	kinds := []watched{
		{foreign(hypershiftKind(kindHostedCluster)), s.ofHostedCluster},
		{foreign(hypershiftKind(kindNodePool)), s.ofNodePool},
		{&corev1.Namespace{}, s.ofPlane},
		{&corev1.Service{}, s.ofService},
	}
	if !s.options.WithoutMetalLB {
		kinds = append(kinds, watched{foreign(metallbKind()), s.ofAddressPool})
	}

	for _, w := range kinds {
		informer, err := s.view.GetInformer(s.ctx, w.object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: install sim/hypershift/crds: %w", w.object, err)
		}

		if _, err := informer.AddEventHandler(handler(w.enqueue)); err != nil {
			return fmt.Errorf("watch %T: %w", w.object, err)
		}
	}

	s.wg.Go(func() { _ = s.view.Start(s.ctx) })

	synced, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()

	if !s.view.WaitForCacheSync(synced) {
		return errors.New("watch hosted clusters: the API server does not answer")
	}

	for range workers {
		s.wg.Go(s.work)
	}

	return nil
}

func handler(enqueue func(client.Object)) toolscache.ResourceEventHandler {
	add := func(obj any) {
		if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}

		if o, ok := obj.(client.Object); ok {
			enqueue(o)
		}
	}

	return toolscache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, now any) { add(now) }, DeleteFunc: add}
}

func (s *Sim) ofHostedCluster(o client.Object) {
	s.queue.Add(key{kindHostedCluster, client.ObjectKeyFromObject(o)})

	pools, err := s.list(s.ctx, hypershiftKind(kindNodePool), o.GetNamespace())
	if err != nil {
		return // they are looked at by themselves
	}

	for i := range pools {
		if clusterOf(&pools[i]) == o.GetName() {
			s.queue.Add(key{kindNodePool, client.ObjectKeyFromObject(&pools[i])})
		}
	}
}

func (s *Sim) ofNodePool(o client.Object) {
	s.queue.Add(key{kindNodePool, client.ObjectKeyFromObject(o)})

	if pool, ok := o.(*unstructured.Unstructured); ok {
		s.queue.Add(key{kindHostedCluster, types.NamespacedName{Namespace: o.GetNamespace(), Name: clusterOf(pool)}})
	}
}

func clusterOf(pool *unstructured.Unstructured) string {
	name, _, _ := unstructured.NestedString(pool.Object, "spec", "clusterName")

	return name
}

// ofPlane has the HostedCluster looked at that a control plane's object belongs to.
func (s *Sim) ofPlane(o client.Object) {
	namespace, name, ok := strings.Cut(o.GetAnnotations()[clusterAnnotation], "/")
	if ok {
		s.queue.Add(key{kindHostedCluster, types.NamespacedName{Namespace: namespace, Name: name}})
	}
}

// ofService also has the Services looked at that wait for the address of one that is gone.
func (s *Sim) ofService(o client.Object) {
	s.ofPlane(o)

	service, ok := o.(*corev1.Service)
	if !ok || s.options.WithoutMetalLB || service.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}

	s.queue.Add(key{kindService, client.ObjectKeyFromObject(o)})
	s.allServices(true)
}

func (s *Sim) ofAddressPool(o client.Object) {
	s.queue.Add(key{kindAddressPool, client.ObjectKeyFromObject(o)})
	s.allServices(false)
}

// allServices has MetalLB look at every Service, or those that wait.
func (s *Sim) allServices(waiting bool) {
	var all corev1.ServiceList
	if err := s.view.List(s.ctx, &all); err != nil {
		return // they are looked at by themselves
	}

	for i := range all.Items {
		service := &all.Items[i]
		if service.Spec.Type != corev1.ServiceTypeLoadBalancer || waiting && len(service.Status.LoadBalancer.Ingress) > 0 {
			continue
		}

		s.queue.Add(key{kindService, client.ObjectKeyFromObject(service)})
	}
}

// all has everything looked at.
func (s *Sim) all() {
	for _, kind := range []kind{kindHostedCluster, kindNodePool} {
		objects, err := s.list(s.ctx, hypershiftKind(kind), "")
		if err != nil {
			continue // nothing is there yet
		}

		for i := range objects {
			s.queue.Add(key{kind, client.ObjectKeyFromObject(&objects[i])})
		}
	}

	if !s.options.WithoutMetalLB {
		s.allServices(false)
	}
}

// list reads what the watches have seen.
func (s *Sim) list(ctx context.Context, gvk schema.GroupVersionKind, namespace string) ([]unstructured.Unstructured, error) {
	var list unstructured.UnstructuredList

	gvk.Kind += "List"
	list.SetGroupVersionKind(gvk)

	if err := s.view.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list %s: %w", gvk.Kind, err)
	}

	return list.Items, nil
}

func (s *Sim) work() {
	for {
		k, over := s.queue.Get()
		if over {
			return
		}

		err := s.reconcile(k)

		switch {
		case err == nil:
			s.queue.Forget(k)
		case s.ctx.Err() != nil:
		default:
			if !expected(err) {
				s.problem(fmt.Errorf("%s: %w", k, err))
			}

			s.queue.AddRateLimited(k)
		}

		s.queue.Done(k)
	}
}

// expected are errors that are nobody's doing: what changes under the Sim's hands it does
// again.
func expected(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// reconcile takes an object as far as it can get now.
func (s *Sim) reconcile(k key) error {
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()

	switch k.kind {
	case kindService:
		return s.balance(ctx, k)
	case kindAddressPool:
		return s.checkPool(ctx, k)
	case kindHostedCluster, kindNodePool:
	}

	object, err := s.get(ctx, k)
	if err != nil || object == nil {
		return err
	}

	if k.kind == kindNodePool {
		return s.nodePool(ctx, k, object)
	}

	return s.hostedCluster(ctx, k, object)
}

// after tells whether a delay that begins with the first question is over, and has the
// key looked at again when it is.
func (s *Sim) after(k key, uid types.UID, what string, delay time.Duration) bool {
	if slow, ok := s.fault(Slow, k.Name); ok {
		delay += slow.Delay
	}

	s.mu.Lock()
	id := dueKey{uid, what}

	due, ok := s.due[id]
	if !ok {
		due = s.options.Clock.Now().Add(delay)
		s.due[id] = due
	}

	s.mu.Unlock()

	left := due.Sub(s.options.Clock.Now())
	if left <= 0 {
		return true
	}

	s.queue.AddAfter(k, left)

	return false
}
