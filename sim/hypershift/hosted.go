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
	// apiPort is that of the hosted API server.
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

// hosted is one look at a HostedCluster.
type hosted struct {
	*Sim

	key    key
	object *unstructured.Unstructured
	status map[string]any
	conds  []metav1.Condition
	// namespace of the control plane.
	namespace string
}

func (s *Sim) hostedCluster(ctx context.Context, k key, object *unstructured.Unstructured) error {
	h := &hosted{Sim: s, key: k, object: object, namespace: ControlPlaneNamespace(k.Namespace, k.Name)}

	if object.GetDeletionTimestamp() != nil {
		return h.remove(ctx)
	}

	if s.terminating(ctx, k.Namespace) {
		return nil
	}

	if !slices.Contains(object.GetFinalizers(), finalizer) {
		return s.setFinalizers(ctx, object, append(object.GetFinalizers(), finalizer))
	}

	if err := h.readStatus(); err != nil {
		return err
	}

	if err := h.live(ctx); err != nil {
		return err
	}

	return h.writeStatus(ctx)
}

// terminating tells whether a namespace goes, and what is in it with it.
func (s *Sim) terminating(ctx context.Context, name string) bool {
	namespace := &corev1.Namespace{}
	err := s.view.Get(ctx, types.NamespacedName{Name: name}, namespace)

	return err == nil && namespace.DeletionTimestamp != nil
}

// ControlPlaneNamespace is where HyperShift runs a control plane.
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

func (h *hosted) readStatus() error {
	h.status, _, _ = unstructured.NestedMap(h.object.Object, "status")
	if h.status == nil {
		h.status = map[string]any{}
	}

	var read struct {
		Conditions []metav1.Condition `json:"conditions"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(h.status, &read); err != nil {
		return fmt.Errorf("read conditions: %w", err)
	}

	h.conds = read.Conditions

	return nil
}

func (h *hosted) writeStatus(ctx context.Context) error {
	conditions, err := plain(struct {
		Conditions []metav1.Condition `json:"conditions"`
	}{h.conds})
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
		return fmt.Errorf("write status: %w", err)
	}

	return nil
}

// plain makes a value what an unstructured object has.
func plain[T any](value T) (map[string]any, error) {
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&value)
	if err != nil {
		return nil, fmt.Errorf("write status: %w", err)
	}

	return out, nil
}

func (h *hosted) say(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&h.conds, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message,
		ObservedGeneration: h.object.GetGeneration(), LastTransitionTime: metav1.NewTime(h.options.Clock.Now()),
	})
}

// sayIf is the condition of something that is as it should be, or is not.
func (h *hosted) sayIf(ok bool, kind, yes, reason, no string) {
	if ok {
		h.say(kind, metav1.ConditionTrue, reasonAsExpected, yes)
	} else {
		h.say(kind, metav1.ConditionFalse, reason, no)
	}
}

func (h *hosted) string(path ...string) string {
	text, _, _ := unstructured.NestedString(h.object.Object, path...)

	return text
}

// live takes a HostedCluster that is wanted as far as it gets now.
func (h *hosted) live(ctx context.Context) error {
	version, blocked, err := h.check(ctx)
	if err != nil {
		return err
	}

	h.say("ReconciliationActive", metav1.ConditionTrue, reasonAsExpected, "Reconciliation active on resource")
	if blocked != "" {
		h.say("Progressing", metav1.ConditionFalse, reasonBlocked, blocked)

		// Of the three only this one is an error of HyperShift's pass, and tried again.
		if invalid := meta.FindStatusCondition(h.conds, "ValidConfiguration"); invalid.Status == metav1.ConditionFalse {
			h.say("ReconciliationSucceeded", metav1.ConditionFalse, "ReconciliationError", "configuration is invalid: "+invalid.Message)
		}

		if meta.FindStatusCondition(h.conds, "Available") == nil {
			h.say("Available", metav1.ConditionFalse, reasonWaiting, blocked)
			h.say("Degraded", metav1.ConditionUnknown, reasonStatusUnknown, "The hosted control plane is not found")
		}

		return nil
	}

	h.say("ReconciliationSucceeded", metav1.ConditionTrue, "ReconciliatonSucceeded", "Reconciliation completed successfully")

	ready, err := h.makePlane(ctx)
	if err != nil {
		return err
	}

	available, err := h.plane(ctx, ready)
	if err != nil {
		return err
	}

	return h.rollOut(available, version)
}

// plane plays the control plane from its address to its being available.
func (h *hosted) plane(ctx context.Context, address bool) (bool, error) {
	delays, uid := h.options.Delays, h.object.GetUID()

	h.sayIf(address, "InfrastructureReady", messageAllIsWell, "WaitingOnInfrastructureReady",
		"Kubernetes API server load balancer is not provisioned")

	kubeconfig := address && h.after(h.key, uid, "kubeconfig", delays.Kubeconfig)
	if kubeconfig {
		if err := h.makeKubeconfig(ctx); err != nil {
			return false, err
		}
	}

	running := kubeconfig && h.after(h.key, uid, "control plane", delays.ControlPlane)
	quorum := running && !h.has(NoQuorum, h.key.Name)

	if quorum {
		h.say("EtcdAvailable", metav1.ConditionTrue, "QuorumAvailable", "")
	} else {
		h.say("EtcdAvailable", metav1.ConditionFalse, "EtcdWaitingForQuorum", "Waiting for etcd to reach quorum")
	}

	h.sayIf(quorum, "KubeAPIServerAvailable", "Kube APIServer deployment is available", reasonWaiting,
		"Waiting for Kube APIServer deployment to become available")

	reached := !h.has(Unreachable, h.key.Name)
	reason, message := h.whyNotAvailable(address, kubeconfig, quorum)

	h.sayIf(quorum && reached, "Available", "The hosted control plane is available", reason, message)
	h.sayIf(quorum, "IgnitionEndpointAvailable", "Ignition server deployment is available", reasonWaiting,
		"Ignition server deployment is not yet available")

	if h.has(Degraded, h.key.Name) {
		h.say("Degraded", metav1.ConditionTrue, "UnavailableReplicas", "kube-controller-manager deployment has 1 unavailable replicas")
	} else {
		h.say("Degraded", metav1.ConditionFalse, reasonAsExpected, "The hosted cluster is not degraded")
	}

	return quorum && reached, nil
}

// whyNotAvailable is reconcileAvailabilityStatus of hostedcontrolplane_controller.go.
func (h *hosted) whyNotAvailable(address, kubeconfig, quorum bool) (reason, message string) {
	switch {
	case !address:
		return "WaitingOnInfrastructureReady", "Kubernetes API server load balancer is not provisioned"
	case !kubeconfig:
		return "KubeconfigWaitingForCreate", "Waiting for hosted control plane kubeconfig to be created"
	case !quorum:
		return "EtcdWaitingForQuorum", "Waiting for etcd to reach quorum"
	default:
		return "KASLoadBalancerNotReachable", "failed to establish a TCP connection to the API server's load balancer"
	}
}

// makeKubeconfig writes the administrator's kubeconfig and the password of kubeadmin.
func (h *hosted) makeKubeconfig(ctx context.Context) error {
	text, err := h.options.Kubeconfig(h.key.Namespace, h.key.Name)
	if err != nil {
		return fmt.Errorf("make kubeconfig: %w", err)
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

		if err := h.ensure(ctx, object); err != nil {
			return err
		}

		h.status[field] = map[string]any{"name": secret.name}
	}

	return nil
}

// ensure makes an object where it is not there.
func (s *Sim) ensure(ctx context.Context, object client.Object) error {
	at := client.ObjectKeyFromObject(object)

	there, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("make %T %s: it is no object", object, at)
	}

	err := s.client.Get(ctx, at, there)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get %T %s: %w", object, at, err)
	}

	if err == nil {
		return nil
	}

	if err := s.client.Create(ctx, object); err != nil {
		return fmt.Errorf("make %T %s: %w", object, at, err)
	}

	return nil
}

// DeleteHostedCluster deletes a HostedCluster as a person would, behind its owner's back.
func (s *Sim) DeleteHostedCluster(ctx context.Context, at types.NamespacedName) error {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(hypershiftKind(kindHostedCluster))
	object.SetNamespace(at.Namespace)
	object.SetName(at.Name)

	if err := s.client.Delete(ctx, object); err != nil {
		return fmt.Errorf("delete HostedCluster %s: %w", at, err)
	}

	return nil
}
