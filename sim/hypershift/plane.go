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

// Names of a control plane's Services, and the ways to publish a service of spec.services.
const (
	serviceAPI       = "kube-apiserver"
	serviceIgnition  = "ignition-server-proxy"
	typeNodePort     = "NodePort"
	typeLoadBalancer = "LoadBalancer"
	typeRoute        = "Route"
)

// publishingStrategy describes how a service of the control plane is published.
type publishingStrategy struct {
	kind string
	// address and port are of a NodePort, hostname is of a LoadBalancer or Route.
	address, hostname string
	port              int64
}

func (h *hostedClusterReconciler) findStrategy(service string) (publishingStrategy, bool) {
	services, _, _ := unstructured.NestedSlice(h.object.Object, "spec", "services")

	for _, item := range services {
		entry, _ := item.(map[string]any)
		if entry["service"] != service {
			continue
		}

		field := "servicePublishingStrategy"
		kind, _, _ := unstructured.NestedString(entry, field, "type")
		address, _, _ := unstructured.NestedString(entry, field, "nodePort", "address")
		port, _, _ := unstructured.NestedInt64(entry, field, "nodePort", "port")
		hostname, _, _ := unstructured.NestedString(entry, field, "loadBalancer", "hostname")

		if kind == typeRoute {
			hostname, _, _ = unstructured.NestedString(entry, field, "route", "hostname")
		}

		return publishingStrategy{kind: kind, address: address, port: port, hostname: hostname}, true
	}

	return publishingStrategy{}, false
}

// ensureControlPlane creates the control plane's namespace and Services. It returns whether the API
// server has an address.
func (h *hostedClusterReconciler) ensureControlPlane(ctx context.Context) (hasAddress bool, err error) {
	annotations := map[string]string{clusterAnnotation: h.key.NamespacedName.String()}

	err = h.createIfMissing(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: h.namespace, Annotations: annotations,
		Labels: map[string]string{"hypershift.openshift.io/hosted-control-plane": "true"},
	}})
	if err != nil {
		return false, err
	}

	if err := h.copyEncryptionKey(ctx); err != nil {
		return false, err
	}

	serviceStrategy, _ := h.findStrategy("APIServer")

	api, err := h.ensureService(ctx, serviceAPI, apiPort, serviceStrategy)
	if err != nil {
		return false, err
	}

	if err := h.setIgnitionEndpoint(ctx); err != nil {
		return false, err
	}

	host, port := apiServerEndpoint(api, serviceStrategy)
	if host == "" || port == 0 {
		return false, nil
	}

	h.status["controlPlaneEndpoint"] = map[string]any{"host": host, "port": port}

	return true, nil
}

// copyEncryptionKey copies the Secret with the encryption key to the control plane's namespace, where the API server reads
// it (hypershift-operator, hostedcluster_controller.go). validateConfig has read the Secret.
func (h *hostedClusterReconciler) copyEncryptionKey(ctx context.Context) error {
	name := h.readString("spec", "secretEncryption", "aescbc", "activeKey", "name")
	if name == "" {
		return nil
	}

	source := &corev1.Secret{}
	if err := h.client.Get(ctx, types.NamespacedName{Namespace: h.key.Namespace, Name: name}, source); err != nil {
		return fmt.Errorf("get encryption key: %w", err)
	}

	return h.createIfMissing(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: h.namespace, Name: name}, Data: source.Data,
	})
}

// apiServerEndpoint returns the host and port of a hosted API server (control-plane-operator,
// kas/service.go). Host and port are empty as long as the load balancer has no address.
func apiServerEndpoint(service *corev1.Service, serviceStrategy publishingStrategy) (host string, port int64) {
	switch {
	case serviceStrategy.kind == typeNodePort:
		return serviceStrategy.address, int64(service.Spec.Ports[0].NodePort)
	case serviceStrategy.kind == typeRoute:
		return serviceStrategy.hostname, 443
	case len(service.Status.LoadBalancer.Ingress) == 0:
		return "", 0
	case serviceStrategy.hostname != "":
		return serviceStrategy.hostname, apiPort
	case service.Status.LoadBalancer.Ingress[0].Hostname != "":
		return service.Status.LoadBalancer.Ingress[0].Hostname, apiPort
	default:
		return service.Status.LoadBalancer.Ingress[0].IP, apiPort
	}
}

// ensureService creates a Service. It does not change an existing Service, so that annotations of other
// clients stay.
func (h *hostedClusterReconciler) ensureService(
	ctx context.Context, name string, port int32, serviceStrategy publishingStrategy,
) (*corev1.Service, error) {
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

	switch serviceStrategy.kind {
	case typeLoadBalancer:
		service.Spec.Type = corev1.ServiceTypeLoadBalancer
	case typeNodePort:
		service.Spec.Type = corev1.ServiceTypeNodePort
		service.Spec.Ports[0].NodePort = int32(serviceStrategy.port)
	}

	if err := h.client.Create(ctx, service); err != nil {
		return nil, fmt.Errorf("create Service %s: %w", name, err)
	}

	return service, nil
}

// setIgnitionEndpoint sets the endpoint from which workers read their configuration in the status.
func (h *hostedClusterReconciler) setIgnitionEndpoint(ctx context.Context) error {
	const port = 443

	serviceStrategy, _ := h.findStrategy("Ignition")

	switch {
	case serviceStrategy.kind == typeNodePort:
		service, err := h.ensureService(ctx, serviceIgnition, port, serviceStrategy)
		if err != nil {
			return err
		}

		h.status["ignitionEndpoint"] = fmt.Sprintf("%s:%d", serviceStrategy.address, service.Spec.Ports[0].NodePort)
	case serviceStrategy.hostname != "":
		h.status["ignitionEndpoint"] = serviceStrategy.hostname
	default:
		h.status["ignitionEndpoint"] = "ignition-server-" + h.namespace + ".apps.management.example.com"
	}

	return nil
}

// finalize deletes the NodePools of a HostedCluster that is being deleted, and the control plane's
// namespace. When the namespace no longer exists, finalize removes the finalizer.
func (h *hostedClusterReconciler) finalize(ctx context.Context) error {
	if !slices.Contains(h.object.GetFinalizers(), finalizer) ||
		!h.hasElapsed(h.key, h.object.GetUID(), "delete", h.options.Delays.Delete) || h.hasFault(StuckDeletion, h.key.Name) {
		return nil
	}

	pools, err := h.list(ctx, hypershiftGVK(kindNodePool), h.key.Namespace)
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
