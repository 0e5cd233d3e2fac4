// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// maxMessage is what a condition's message may hold, with room for an ellipsis.
const maxMessage = 32000

// Writer writes the conditions of one controller.
type Writer struct {
	Client client.Client
	Clock  clock.PassiveClock
	// Owner is the field manager, e.g. hyperfleet-dns. Each condition has one of its own:
	// what an owner does not say again is taken away.
	Owner string
	// Type of the condition.
	Type string
}

// Report writes the condition, unless the claim has it already. A claim that is gone is
// no error; where another has its name by then, that one's next pass puts it right.
func (w *Writer) Report(
	ctx context.Context, claim *v1alpha1.MachineClaim, status metav1.ConditionStatus, reason, message string,
) error {
	if len(message) > maxMessage {
		message = message[:maxMessage] + "..."
	}

	now := metav1.NewTime(w.Clock.Now())
	before := meta.FindStatusCondition(claim.Status.Conditions, w.Type)

	if before != nil && before.Status == status {
		if before.Reason == reason && before.Message == message && before.ObservedGeneration == claim.Generation {
			return nil
		}

		now = before.LastTransitionTime
	}

	condition, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&metav1.Condition{
		Type: w.Type, Status: status, Reason: reason, Message: message,
		ObservedGeneration: claim.Generation, LastTransitionTime: now,
	})
	if err != nil {
		return fmt.Errorf("convert condition %s: %w", w.Type, err)
	}

	return w.apply(ctx, claim, condition)
}

// Clear takes the condition away, if the claim has it.
func (w *Writer) Clear(ctx context.Context, claim *v1alpha1.MachineClaim) error {
	if meta.FindStatusCondition(claim.Status.Conditions, w.Type) == nil {
		return nil
	}

	return w.apply(ctx, claim)
}

func (w *Writer) apply(ctx context.Context, claim *v1alpha1.MachineClaim, conditions ...any) error {
	status := map[string]any{}
	if len(conditions) > 0 {
		status["conditions"] = conditions
	}

	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "MachineClaim",
		"metadata": map[string]any{"name": claim.Name, "namespace": claim.Namespace},
		"status":   status,
	}}

	err := w.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object),
		client.FieldOwner(w.Owner), client.ForceOwnership)
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}

	return fmt.Errorf("report %s on machine claim %s: %w", w.Type, client.ObjectKeyFromObject(claim), err)
}
