// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	finalizer = "hypershift.openshift.io/finalizer"
	// apiPort is the port of the hosted API server.
	apiPort = 6443
)

// Reasons and messages of HyperShift's conditions (api/hypershift/v1beta1,
// hostedcluster_conditions.go).
const (
	reasonAsExpected     = "AsExpected"
	reasonStatusUnknown  = "StatusUnknown"
	reasonWaiting        = "WaitingForAvailable"
	reasonBlocked        = "Blocked"
	reasonInvalidConfig  = "InvalidConfiguration"
	reasonInvalidImage   = "InvalidImage"
	reasonSecretNotFound = "SecretNotFound"
	messageAllIsWell     = "All is well"
)

// hostedClusterReconciler reconciles one HostedCluster once.
type hostedClusterReconciler struct {
	*Sim

	key        key
	object     *unstructured.Unstructured
	status     map[string]any
	conditions []metav1.Condition
	// namespace is the namespace of the control plane.
	namespace string
}

func (s *Sim) reconcileHostedCluster(ctx context.Context, k key, object *unstructured.Unstructured) error {
	h := &hostedClusterReconciler{Sim: s, key: k, object: object, namespace: ControlPlaneNamespace(k.Namespace, k.Name)}

	if object.GetDeletionTimestamp() != nil {
		return h.finalize(ctx)
	}

	if s.isTerminating(ctx, k.Namespace) {
		return nil
	}

	if !slices.Contains(object.GetFinalizers(), finalizer) {
		return s.setFinalizers(ctx, object, append(object.GetFinalizers(), finalizer))
	}

	if err := h.readStatus(); err != nil {
		return err
	}

	if err := h.advance(ctx); err != nil {
		return err
	}

	return h.writeStatus(ctx)
}

// isTerminating returns true if the namespace is being deleted, together with all objects in it.
func (s *Sim) isTerminating(ctx context.Context, name string) bool {
	namespace := &corev1.Namespace{}
	err := s.cache.Get(ctx, types.NamespacedName{Name: name}, namespace)

	return err == nil && namespace.DeletionTimestamp != nil
}

// ControlPlaneNamespace returns the namespace in which HyperShift runs the control plane of a
// HostedCluster.
func ControlPlaneNamespace(namespace, name string) string {
	return namespace + "-" + strings.ReplaceAll(name, ".", "-")
}

func (s *Sim) setFinalizers(ctx context.Context, object *unstructured.Unstructured, finalizers []string) error {
	before := object.DeepCopy()
	object.SetFinalizers(finalizers)

	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := s.client.Patch(ctx, object, patch); err != nil {
		return fmt.Errorf("set finalizers: %w", err)
	}

	return nil
}

func (h *hostedClusterReconciler) readStatus() error {
	h.status, _, _ = unstructured.NestedMap(h.object.Object, "status")
	if h.status == nil {
		h.status = map[string]any{}
	}

	var read struct {
		Conditions []metav1.Condition `json:"conditions"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(h.status, &read); err != nil {
		return fmt.Errorf("decode conditions: %w", err)
	}

	h.conditions = read.Conditions

	return nil
}

func (h *hostedClusterReconciler) writeStatus(ctx context.Context) error {
	conditions, err := toUnstructured(struct {
		Conditions []metav1.Condition `json:"conditions"`
	}{h.conditions})
	if err != nil {
		return err
	}

	h.status["conditions"] = conditions["conditions"]

	before, _, _ := unstructured.NestedMap(h.object.Object, "status")
	if equality.Semantic.DeepEqual(before, h.status) {
		return nil
	}

	h.object.Object["status"] = h.status

	if err := h.client.Status().Update(ctx, h.object); err != nil {
		return fmt.Errorf("update status: %w", err)
	}

	return nil
}

// toUnstructured converts a struct to a map as it is stored in an unstructured object.
func toUnstructured[T any](value T) (map[string]any, error) {
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&value)
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}

	return out, nil
}

func (h *hostedClusterReconciler) setCondition(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&h.conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message,
		ObservedGeneration: h.object.GetGeneration(), LastTransitionTime: metav1.NewTime(h.options.Clock.Now()),
	})
}

// setConditionIf sets a condition to True with reason AsExpected if ok, else to False with the given
// reason.
func (h *hostedClusterReconciler) setConditionIf(ok bool, kind, trueMessage, reason, falseMessage string) {
	if ok {
		h.setCondition(kind, metav1.ConditionTrue, reasonAsExpected, trueMessage)
	} else {
		h.setCondition(kind, metav1.ConditionFalse, reason, falseMessage)
	}
}

func (h *hostedClusterReconciler) readString(path ...string) string {
	text, _, _ := unstructured.NestedString(h.object.Object, path...)

	return text
}

// advance validates a HostedCluster that is not being deleted, and takes all steps towards an available
// control plane that are possible now.
func (h *hostedClusterReconciler) advance(ctx context.Context) error {
	version, blocked, err := h.validate(ctx)
	if err != nil {
		return err
	}

	h.setCondition("ReconciliationActive", metav1.ConditionTrue, reasonAsExpected, "Reconciliation active on resource")
	if blocked != "" {
		h.setCondition("Progressing", metav1.ConditionFalse, reasonBlocked, blocked)

		// Of the three validation conditions, HyperShift returns an error and retries only for this one.
		if invalid := meta.FindStatusCondition(h.conditions, "ValidConfiguration"); invalid.Status == metav1.ConditionFalse {
			h.setCondition("ReconciliationSucceeded", metav1.ConditionFalse, "ReconciliationError",
				"configuration is invalid: "+invalid.Message)
		}

		if meta.FindStatusCondition(h.conditions, "Available") == nil {
			h.setCondition("Available", metav1.ConditionFalse, reasonWaiting, blocked)
			h.setCondition("Degraded", metav1.ConditionUnknown, reasonStatusUnknown, "The hosted control plane is not found")
		}

		return nil
	}

	h.setCondition("ReconciliationSucceeded", metav1.ConditionTrue, "ReconciliatonSucceeded",
		"Reconciliation completed successfully")

	ready, err := h.ensureControlPlane(ctx)
	if err != nil {
		return err
	}

	available, err := h.advanceControlPlane(ctx, ready)
	if err != nil {
		return err
	}

	return h.advanceRollout(available, version)
}

// advanceControlPlane simulates the start of the control plane, from the address of its API server until
// it is available. It returns whether the control plane is available.
func (h *hostedClusterReconciler) advanceControlPlane(ctx context.Context, hasAddress bool) (isAvailable bool, err error) {
	delays, uid := h.options.Delays, h.object.GetUID()

	h.setConditionIf(hasAddress, "InfrastructureReady", messageAllIsWell, "WaitingOnInfrastructureReady",
		"Kubernetes API server load balancer is not provisioned")

	hasKubeconfig := hasAddress && h.hasElapsed(h.key, uid, "kubeconfig", delays.Kubeconfig)
	if hasKubeconfig {
		if err := h.ensureKubeconfig(ctx); err != nil {
			return false, err
		}
	}

	isRunning := hasKubeconfig && h.hasElapsed(h.key, uid, "control plane", delays.ControlPlane)
	hasQuorum := isRunning && !h.hasFault(NoQuorum, h.key.Name)

	if hasQuorum {
		h.setCondition("EtcdAvailable", metav1.ConditionTrue, "QuorumAvailable", "")
	} else {
		h.setCondition("EtcdAvailable", metav1.ConditionFalse, "EtcdWaitingForQuorum", "Waiting for etcd to reach quorum")
	}

	h.setConditionIf(hasQuorum, "KubeAPIServerAvailable", "Kube APIServer deployment is available", reasonWaiting,
		"Waiting for Kube APIServer deployment to become available")

	isReachable := !h.hasFault(Unreachable, h.key.Name)
	reason, message := h.explainUnavailable(hasAddress, hasKubeconfig, hasQuorum)

	h.setConditionIf(hasQuorum && isReachable, "Available", "The hosted control plane is available", reason, message)
	h.setConditionIf(hasQuorum, "IgnitionEndpointAvailable", "Ignition server deployment is available", reasonWaiting,
		"Ignition server deployment is not yet available")

	if h.hasFault(Degraded, h.key.Name) {
		h.setCondition("Degraded", metav1.ConditionTrue, "UnavailableReplicas",
			"kube-controller-manager deployment has 1 unavailable replicas")
	} else {
		h.setCondition("Degraded", metav1.ConditionFalse, reasonAsExpected, "The hosted cluster is not degraded")
	}

	return hasQuorum && isReachable, nil
}

// explainUnavailable returns the reason and message of condition Available while it is False
// (reconcileAvailabilityStatus of hostedcontrolplane_controller.go).
func (h *hostedClusterReconciler) explainUnavailable(hasAddress, hasKubeconfig, hasQuorum bool) (reason, message string) {
	switch {
	case !hasAddress:
		return "WaitingOnInfrastructureReady", "Kubernetes API server load balancer is not provisioned"
	case !hasKubeconfig:
		return "KubeconfigWaitingForCreate", "Waiting for hosted control plane kubeconfig to be created"
	case !hasQuorum:
		return "EtcdWaitingForQuorum", "Waiting for etcd to reach quorum"
	default:
		return "KASLoadBalancerNotReachable", "failed to establish a TCP connection to the API server's load balancer"
	}
}

// ensureKubeconfig creates the Secrets with the administrator's kubeconfig and the password of kubeadmin.
func (h *hostedClusterReconciler) ensureKubeconfig(ctx context.Context) error {
	text, err := h.options.Kubeconfig(h.key.Namespace, h.key.Name)
	if err != nil {
		return fmt.Errorf("create kubeconfig: %w", err)
	}

	for field, secret := range map[string]struct {
		name string
		data map[string][]byte
	}{
		"kubeconfig":        {h.key.Name + "-admin-kubeconfig", map[string][]byte{"kubeconfig": text}},
		"kubeadminPassword": {h.key.Name + "-kubeadmin-password", map[string][]byte{"password": []byte(h.object.GetUID())}},
	} {
		object := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: h.key.Namespace, Name: secret.name, Labels: h.object.GetLabels(),
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: h.object.GetAPIVersion(), Kind: h.object.GetKind(), Name: h.key.Name, UID: h.object.GetUID(),
				}},
			},
			Type: corev1.SecretTypeOpaque, Data: secret.data,
		}

		if err := h.createIfMissing(ctx, object); err != nil {
			return err
		}

		h.status[field] = map[string]any{"name": secret.name}
	}

	return nil
}

// createIfMissing creates an object if it does not exist. It does not change an existing object.
func (s *Sim) createIfMissing(ctx context.Context, object client.Object) error {
	objectKey := client.ObjectKeyFromObject(object)

	existing, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("create %T %s: its copy is not a client.Object", object, objectKey)
	}

	err := s.client.Get(ctx, objectKey, existing)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get %T %s: %w", object, objectKey, err)
	}

	if err == nil {
		return nil
	}

	if err := s.client.Create(ctx, object); err != nil {
		return fmt.Errorf("create %T %s: %w", object, objectKey, err)
	}

	return nil
}

// DeleteHostedCluster deletes a HostedCluster as an administrator would, without its owner.
func (s *Sim) DeleteHostedCluster(ctx context.Context, objectKey types.NamespacedName) error {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(hypershiftGVK(kindHostedCluster))
	object.SetNamespace(objectKey.Namespace)
	object.SetName(objectKey.Name)

	if err := s.client.Delete(ctx, object); err != nil {
		return fmt.Errorf("delete HostedCluster %s: %w", objectKey, err)
	}

	return nil
}
