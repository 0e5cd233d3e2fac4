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

// pool is one look at a NodePool.
type pool struct {
	*Sim

	key    key
	object *unstructured.Unstructured
	status map[string]any
	conds  []any
}

func (s *Sim) nodePool(ctx context.Context, k key, object *unstructured.Unstructured) error {
	p := &pool{Sim: s, key: k, object: object}

	if object.GetDeletionTimestamp() != nil {
		finalizers := slices.DeleteFunc(object.GetFinalizers(), func(f string) bool { return f == finalizer })
		if len(finalizers) == len(object.GetFinalizers()) {
			return nil
		}

		return s.setFinalizers(ctx, object, finalizers)
	}

	cluster, err := s.get(ctx, key{kindHostedCluster, types.NamespacedName{Namespace: k.Namespace, Name: clusterOf(object)}})
	if err != nil || cluster == nil {
		// HyperShift waits for it, without a condition.
		return err
	}

	if cluster.GetDeletionTimestamp() == nil && !slices.Contains(object.GetFinalizers(), finalizer) {
		return s.setFinalizers(ctx, object, append(object.GetFinalizers(), finalizer))
	}

	p.status, _, _ = unstructured.NestedMap(object.Object, "status")
	if p.status == nil {
		p.status = map[string]any{}
	}

	p.conds, _, _ = unstructured.NestedSlice(p.status, "conditions")

	if cluster.GetDeletionTimestamp() == nil {
		if err := p.userData(ctx, cluster); err != nil {
			return err
		}
	}

	p.live(cluster)

	return p.write(ctx)
}

// say sets a condition; a NodePool's have a status of their own make.
func (p *pool) say(kind string, ok bool, reason, message string) {
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

	for i, item := range p.conds {
		old, _ := item.(map[string]any)
		if old["type"] != kind {
			continue
		}

		if old["status"] == condition["status"] {
			condition["lastTransitionTime"] = old["lastTransitionTime"]
		}

		p.conds[i] = condition

		return
	}

	p.conds = append(p.conds, condition)
}

func (p *pool) live(cluster *unstructured.Unstructured) {
	image, _, _ := unstructured.NestedString(p.object.Object, "spec", "release", "image")
	replicas, _, _ := unstructured.NestedInt64(p.object.Object, "spec", "replicas")
	c := &hosted{Sim: p.Sim, object: cluster}
	c.status, _, _ = unstructured.NestedMap(cluster.Object, "status")

	p.say("ReconciliationActive", true, reasonAsExpected, "Reconciliation active on resource")
	p.say("UpdateManagementEnabled", true, reasonAsExpected, "")
	p.say("AutoscalingEnabled", false, reasonAsExpected, "")

	version, err := p.options.Version(image)
	if err == nil {
		err = skew(c.wanted(), version)
	}

	if err != nil {
		p.violation(p.key, err.Error())
		p.say("ValidReleaseImage", false, reasonValidationFailed, err.Error())

		return
	}

	p.say("ValidReleaseImage", true, reasonAsExpected, "Using release image: "+image)

	done := c.rolledOut() == version || replicas == 0 && c.rolledOut() != ""
	if done {
		p.status["version"] = version
		p.say("UpdatingVersion", false, reasonAsExpected, "")
	} else {
		p.say("UpdatingVersion", true, reasonAsExpected, "Updating version in progress. Target version: "+version)
	}

	p.nodes(replicas, c.rolledOut() != "")
}

// wanted is the version that the HostedCluster is to have.
func (h *hosted) wanted() string {
	version, _, _ := unstructured.NestedString(h.status, "version", "desired", "version")

	return version
}

// skew is ValidateVersionSkew of support/supportedversion.
func skew(cluster, nodes string) error {
	above, err := minor(cluster)
	if err != nil {
		return nil //nolint:nilerr // the cluster has no version yet
	}

	below, err := minor(nodes)
	if err != nil {
		return err
	}

	if below > above {
		return fmt.Errorf("NodePool version %s cannot be higher than the HostedCluster version %s", nodes, cluster)
	}

	return nil
}

// nodes tells of the pool's nodes (hypershift-operator, nodepool/conditions.go). A pool of
// none has no machine that is ready, and says that this is as expected.
func (p *pool) nodes(replicas int64, running bool) {
	const none = "NodePool set to no replicas"

	p.status["replicas"] = int64(0)

	switch {
	case replicas == 0:
		p.say("AllMachinesReady", false, reasonAsExpected, none)
		p.say("AllNodesHealthy", false, reasonAsExpected, none)
		p.say("Ready", true, reasonAsExpected, "")
	case !running:
		p.say("AllMachinesReady", false, "NotFound", "No Machines are created")
		p.say("AllNodesHealthy", false, "NotFound", "No Machines are created")
		p.say("Ready", false, "WaitingForAvailableMachines", fmt.Sprintf("Minimum availability requires %d replicas", replicas))
	case p.has(UnhealthyNodes, p.key.Name):
		p.status["replicas"] = replicas
		p.say("AllMachinesReady", true, reasonAsExpected, messageAllIsWell)
		p.say("AllNodesHealthy", false, "NodeConditionsFailed", fmt.Sprintf("1 of %d machines are not healthy", replicas))
		p.say("Ready", false, "WaitingForAvailableMachines", fmt.Sprintf("Minimum availability requires %d replicas", replicas))
	default:
		p.status["replicas"] = replicas
		p.say("AllMachinesReady", true, reasonAsExpected, messageAllIsWell)
		p.say("AllNodesHealthy", true, reasonAsExpected, messageAllIsWell)
		p.say("Ready", true, reasonAsExpected, "")
	}
}

func (p *pool) write(ctx context.Context) error {
	p.status["conditions"] = p.conds

	before, _, _ := unstructured.NestedMap(p.object.Object, "status")
	if equality.Semantic.DeepEqual(before, p.status) {
		return nil
	}

	p.object.Object["status"] = p.status

	if err := p.client.Status().Update(ctx, p.object); err != nil {
		return fmt.Errorf("write status: %w", err)
	}

	return nil
}
