// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

const reasonValidationFailed = "ValidationFailed"

// nodePoolReconciler reconciles one NodePool once.
type nodePoolReconciler struct {
	*Sim

	key        key
	object     *unstructured.Unstructured
	status     map[string]any
	conditions []any
}

func (s *Sim) reconcileNodePool(ctx context.Context, k key, object *unstructured.Unstructured) error {
	p := &nodePoolReconciler{Sim: s, key: k, object: object}

	if object.GetDeletionTimestamp() != nil {
		finalizers := slices.DeleteFunc(object.GetFinalizers(), func(f string) bool { return f == finalizer })
		if len(finalizers) == len(object.GetFinalizers()) {
			return nil
		}

		return s.setFinalizers(ctx, object, finalizers)
	}

	cluster, err := s.get(ctx, key{kindHostedCluster, types.NamespacedName{Namespace: k.Namespace, Name: clusterOf(object)}})
	if err != nil || cluster == nil {
		// HyperShift waits for the HostedCluster without setting a condition.
		return err
	}

	if cluster.GetDeletionTimestamp() == nil && !slices.Contains(object.GetFinalizers(), finalizer) {
		return s.setFinalizers(ctx, object, append(object.GetFinalizers(), finalizer))
	}

	p.status, _, _ = unstructured.NestedMap(object.Object, "status")
	if p.status == nil {
		p.status = map[string]any{}
	}

	p.conditions, _, _ = unstructured.NestedSlice(p.status, "conditions")

	if cluster.GetDeletionTimestamp() == nil {
		if err := p.ensureUserData(ctx, cluster); err != nil {
			return err
		}
	}

	p.setConditions(cluster)

	return p.writeStatus(ctx)
}

// setCondition sets a condition. The conditions of a NodePool are of HyperShift's own type, not of
// metav1.Condition.
func (p *nodePoolReconciler) setCondition(kind string, ok bool, reason, message string) {
	status := metav1.ConditionFalse
	if ok {
		status = metav1.ConditionTrue
	}

	condition := map[string]any{
		"type": kind, "status": string(status), "reason": reason, "observedGeneration": p.object.GetGeneration(),
		"lastTransitionTime": p.options.Clock.Now().UTC().Format(time.RFC3339),
	}
	if message != "" {
		condition["message"] = message
	}

	for i, item := range p.conditions {
		old, _ := item.(map[string]any)
		if old["type"] != kind {
			continue
		}

		if old["status"] == condition["status"] {
			condition["lastTransitionTime"] = old["lastTransitionTime"]
		}

		p.conditions[i] = condition

		return
	}

	p.conditions = append(p.conditions, condition)
}

func (p *nodePoolReconciler) setConditions(cluster *unstructured.Unstructured) {
	image, _, _ := unstructured.NestedString(p.object.Object, "spec", "release", "image")
	replicas, _, _ := unstructured.NestedInt64(p.object.Object, "spec", "replicas")
	c := &hostedClusterReconciler{Sim: p.Sim, object: cluster}
	c.status, _, _ = unstructured.NestedMap(cluster.Object, "status")

	p.setCondition("ReconciliationActive", true, reasonAsExpected, "Reconciliation active on resource")
	p.setCondition("UpdateManagementEnabled", true, reasonAsExpected, "")
	p.setCondition("AutoscalingEnabled", false, reasonAsExpected, "")

	version, err := p.options.Version(image)
	if err == nil {
		err = validateVersionSkew(c.desiredVersion(), version)
	}

	if err != nil {
		p.recordViolation(p.key, err.Error())
		p.setCondition("ValidReleaseImage", false, reasonValidationFailed, err.Error())

		return
	}

	p.setCondition("ValidReleaseImage", true, reasonAsExpected, "Using release image: "+image)

	isDone := c.rolledOutVersion() == version || replicas == 0 && c.rolledOutVersion() != ""
	if isDone {
		p.status["version"] = version
		p.setCondition("UpdatingVersion", false, reasonAsExpected, "")
	} else {
		p.setCondition("UpdatingVersion", true, reasonAsExpected, "Updating version in progress. Target version: "+version)
	}

	p.setNodeConditions(replicas, c.rolledOutVersion() != "")
}

// desiredVersion returns the desired version of the HostedCluster.
func (h *hostedClusterReconciler) desiredVersion() string {
	version, _, _ := unstructured.NestedString(h.status, "version", "desired", "version")

	return version
}

// validateVersionSkew returns an error if the nodes' minor version is higher than the cluster's
// (ValidateVersionSkew of support/supportedversion).
func validateVersionSkew(cluster, nodes string) error {
	clusterMinor, err := parseMinor(cluster)
	if err != nil {
		return nil //nolint:nilerr // the cluster has no version yet
	}

	nodeMinor, err := parseMinor(nodes)
	if err != nil {
		return err
	}

	if nodeMinor > clusterMinor {
		return fmt.Errorf("NodePool version %s cannot be higher than the HostedCluster version %s", nodes, cluster)
	}

	return nil
}

// setNodeConditions sets the conditions about the pool's nodes (hypershift-operator,
// nodepool/conditions.go). In a pool without replicas, AllMachinesReady and AllNodesHealthy are False
// with reason AsExpected.
func (p *nodePoolReconciler) setNodeConditions(replicas int64, isRunning bool) {
	const none = "NodePool set to no replicas"

	p.status["replicas"] = int64(0)

	switch {
	case replicas == 0:
		p.setCondition("AllMachinesReady", false, reasonAsExpected, none)
		p.setCondition("AllNodesHealthy", false, reasonAsExpected, none)
		p.setCondition("Ready", true, reasonAsExpected, "")
	case !isRunning:
		p.setCondition("AllMachinesReady", false, "NotFound", "No Machines are created")
		p.setCondition("AllNodesHealthy", false, "NotFound", "No Machines are created")
		p.setCondition("Ready", false, "WaitingForAvailableMachines",
			fmt.Sprintf("Minimum availability requires %d replicas", replicas))
	case p.hasFault(UnhealthyNodes, p.key.Name):
		p.status["replicas"] = replicas
		p.setCondition("AllMachinesReady", true, reasonAsExpected, messageAllIsWell)
		p.setCondition("AllNodesHealthy", false, "NodeConditionsFailed", fmt.Sprintf("1 of %d machines are not healthy", replicas))
		p.setCondition("Ready", false, "WaitingForAvailableMachines",
			fmt.Sprintf("Minimum availability requires %d replicas", replicas))
	default:
		p.status["replicas"] = replicas
		p.setCondition("AllMachinesReady", true, reasonAsExpected, messageAllIsWell)
		p.setCondition("AllNodesHealthy", true, reasonAsExpected, messageAllIsWell)
		p.setCondition("Ready", true, reasonAsExpected, "")
	}
}

func (p *nodePoolReconciler) writeStatus(ctx context.Context) error {
	p.status["conditions"] = p.conditions

	before, _, _ := unstructured.NestedMap(p.object.Object, "status")
	if equality.Semantic.DeepEqual(before, p.status) {
		return nil
	}

	p.object.Object["status"] = p.status

	if err := p.client.Status().Update(ctx, p.object); err != nil {
		return fmt.Errorf("update status: %w", err)
	}

	return nil
}
