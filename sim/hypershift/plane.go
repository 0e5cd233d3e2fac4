// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Names of a control plane's Services, by the service of spec.services that they are.
const (
	serviceAPI      = "kube-apiserver"
	serviceIgnition = "ignition-server-proxy"
	typeNodePort    = "NodePort"
	typeBalancer    = "LoadBalancer"
	typeRoute       = "Route"
)

// strategy is how a service of the control plane is published.
type strategy struct {
	kind string
	// address and port of a NodePort, hostname of a LoadBalancer or Route.
	address, hostname string
	port              int64
}

func (h *hosted) strategy(service string) (strategy, bool) {
	services, _, _ := unstructured.NestedSlice(h.object.Object, "spec", "services")

	for _, item := range services {
		entry, _ := item.(map[string]any)
		if entry["service"] != service {
			continue
		}

		at := "servicePublishingStrategy"
		kind, _, _ := unstructured.NestedString(entry, at, "type")
		address, _, _ := unstructured.NestedString(entry, at, "nodePort", "address")
		port, _, _ := unstructured.NestedInt64(entry, at, "nodePort", "port")
		hostname, _, _ := unstructured.NestedString(entry, at, "loadBalancer", "hostname")

		if kind == typeRoute {
			hostname, _, _ = unstructured.NestedString(entry, at, "route", "hostname")
		}

		return strategy{kind: kind, address: address, port: port, hostname: hostname}, true
	}

	return strategy{}, false
}

// makePlane makes the control plane's namespace and Services, and tells whether its API
// server has an address.
func (h *hosted) makePlane(ctx context.Context) (bool, error) {
	annotations := map[string]string{clusterAnnotation: h.key.NamespacedName.String()}

	err := h.ensure(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: h.namespace, Annotations: annotations,
		Labels: map[string]string{"hypershift.openshift.io/hosted-control-plane": "true"},
	}})
	if err != nil {
		return false, err
	}

	published, _ := h.strategy("APIServer")

	api, err := h.makeService(ctx, serviceAPI, apiPort, published)
	if err != nil {
		return false, err
	}

	if err := h.ignition(ctx); err != nil {
		return false, err
	}

	host, port := address(api, published)
	if host == "" || port == 0 {
		return false, nil
	}

	h.status["controlPlaneEndpoint"] = map[string]any{"host": host, "port": port}

	return true, nil
}

// address of a hosted API server (control-plane-operator, kas/service.go).
func address(service *corev1.Service, published strategy) (string, int64) {
	switch {
	case published.kind == typeNodePort:
		return published.address, int64(service.Spec.Ports[0].NodePort)
	case published.kind == typeRoute:
		return published.hostname, 443
	case len(service.Status.LoadBalancer.Ingress) == 0:
		return "", 0
	case published.hostname != "":
		return published.hostname, apiPort
	case service.Status.LoadBalancer.Ingress[0].Hostname != "":
		return service.Status.LoadBalancer.Ingress[0].Hostname, apiPort
	default:
		return service.Status.LoadBalancer.Ingress[0].IP, apiPort
	}
}

// makeService makes a Service and keeps what others have annotated it with.
func (h *hosted) makeService(ctx context.Context, name string, port int32, published strategy) (*corev1.Service, error) {
	service := &corev1.Service{}

	err := h.client.Get(ctx, types.NamespacedName{Namespace: h.namespace, Name: name}, service)
	if err == nil {
		return service, nil
	}

	if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get Service %s: %w", name, err)
	}

	service = &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: h.namespace, Name: name,
			Labels:      map[string]string{"app": name, "hypershift.openshift.io/control-plane-component": name},
			Annotations: map[string]string{clusterAnnotation: h.key.NamespacedName.String()},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"app": name},
			IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyPreferDualStack),
			Ports:          []corev1.ServicePort{{Port: port, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("client")}},
		},
	}

	switch published.kind {
	case typeBalancer:
		service.Spec.Type = corev1.ServiceTypeLoadBalancer
	case typeNodePort:
		service.Spec.Type = corev1.ServiceTypeNodePort
		service.Spec.Ports[0].NodePort = int32(published.port)
	}

	if err := h.client.Create(ctx, service); err != nil {
		return nil, fmt.Errorf("make Service %s: %w", name, err)
	}

	return service, nil
}

// ignition plays the endpoint from which workers read their configuration.
func (h *hosted) ignition(ctx context.Context) error {
	const port = 443

	published, _ := h.strategy("Ignition")

	switch {
	case published.kind == typeNodePort:
		service, err := h.makeService(ctx, serviceIgnition, port, published)
		if err != nil {
			return err
		}

		h.status["ignitionEndpoint"] = fmt.Sprintf("%s:%d", published.address, service.Spec.Ports[0].NodePort)
	case published.hostname != "":
		h.status["ignitionEndpoint"] = published.hostname
	default:
		h.status["ignitionEndpoint"] = "ignition-server-" + h.namespace + ".apps.management.example.com"
	}

	return nil
}

// remove takes a HostedCluster away that is being deleted: its NodePools, its control
// plane's namespace, and when that is gone the finalizer.
func (h *hosted) remove(ctx context.Context) error {
	if !slices.Contains(h.object.GetFinalizers(), finalizer) ||
		!h.after(h.key, h.object.GetUID(), "delete", h.options.Delays.Delete) || h.has(StuckDeletion, h.key.Name) {
		return nil
	}

	pools, err := h.list(ctx, hypershiftKind(kindNodePool), h.key.Namespace)
	if err != nil {
		return err
	}

	for i := range pools {
		if clusterOf(&pools[i]) != h.key.Name || pools[i].GetDeletionTimestamp() != nil {
			continue
		}

		if err := client.IgnoreNotFound(h.client.Delete(ctx, &pools[i])); err != nil {
			return fmt.Errorf("delete NodePool %s: %w", pools[i].GetName(), err)
		}
	}

	namespace := &corev1.Namespace{}

	err = h.client.Get(ctx, types.NamespacedName{Name: h.namespace}, namespace)

	switch {
	case apierrors.IsNotFound(err):
		finalizers := slices.DeleteFunc(h.object.GetFinalizers(), func(f string) bool { return f == finalizer })

		return h.setFinalizers(ctx, h.object, finalizers)
	case err != nil:
		return fmt.Errorf("get namespace %s: %w", h.namespace, err)
	case namespace.DeletionTimestamp != nil:
		return nil
	}

	if err := client.IgnoreNotFound(h.client.Delete(ctx, namespace)); err != nil {
		return fmt.Errorf("delete namespace %s: %w", h.namespace, err)
	}

	return nil
}
