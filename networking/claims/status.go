// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// FieldOwner of what this package writes into statuses that are others' otherwise.
const FieldOwner = "hyperfleet-addresses"

// maxMessage is what a condition's message may hold, with room for an ellipsis.
const maxMessage = 32000

// says tells whether a condition is there already.
func says(obj step.Object, want metav1.Condition) bool {
	got := meta.FindStatusCondition(*obj.StatusConditions(), want.Type)

	return got != nil && got.Status == want.Status && got.Reason == want.Reason &&
		got.Message == want.Message && got.ObservedGeneration == obj.GetGeneration()
}

// apply makes the owner's part of a status be what is given, and nothing else: conditions
// that it does not name are taken away, as far as they are the owner's. It is refused for
// another object of the name.
func apply(
	ctx context.Context, c client.Client, now clock.PassiveClock, obj step.Object, kind string,
	status map[string]any, conditions ...metav1.Condition,
) error {
	list := make([]any, 0, len(conditions))

	for i := range conditions {
		condition := &conditions[i]
		condition.ObservedGeneration = obj.GetGeneration()
		condition.LastTransitionTime = metav1.NewTime(now.Now())

		if len(condition.Message) > maxMessage {
			condition.Message = condition.Message[:maxMessage] + "..."
		}

		before := meta.FindStatusCondition(*obj.StatusConditions(), condition.Type)
		if before != nil && before.Status == condition.Status {
			condition.LastTransitionTime = before.LastTransitionTime
		}

		converted, err := runtime.DefaultUnstructuredConverter.ToUnstructured(condition)
		if err != nil {
			return fmt.Errorf("convert condition %s: %w", condition.Type, err)
		}

		list = append(list, converted)
	}

	// An empty list, too: a status of which nothing is left would be null, which is invalid.
	status["conditions"] = list

	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind,
		"metadata": map[string]any{
			"name": obj.GetName(), "namespace": obj.GetNamespace(), "uid": string(obj.GetUID()),
		},
		"status": status,
	}}

	err := c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object),
		client.FieldOwner(FieldOwner), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("write addresses of %s %s: %w", kind, client.ObjectKeyFromObject(obj), err)
	}

	return nil
}
