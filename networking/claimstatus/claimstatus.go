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
)

// maxMessage is what a condition's message may hold, with room for an ellipsis.
const maxMessage = 32000

// Machine is the object of a machine: a MachineClaim or a KubevirtMachine.
type Machine interface {
	client.Object

	// StatusConditions are the machine's conditions.
	StatusConditions() *[]metav1.Condition
}

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

// Report writes the condition, unless the machine has it already. A machine that is gone is
// no error; where another has its name by then, that one's next pass puts it right.
func (w *Writer) Report(
	ctx context.Context, machine Machine, status metav1.ConditionStatus, reason, message string,
) error {
	if len(message) > maxMessage {
		message = message[:maxMessage] + "..."
	}

	now := metav1.NewTime(w.Clock.Now())
	before := meta.FindStatusCondition(*machine.StatusConditions(), w.Type)

	if before != nil && before.Status == status {
		if before.Reason == reason && before.Message == message && before.ObservedGeneration == machine.GetGeneration() {
			return nil
		}

		now = before.LastTransitionTime
	}

	condition, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&metav1.Condition{
		Type: w.Type, Status: status, Reason: reason, Message: message,
		ObservedGeneration: machine.GetGeneration(), LastTransitionTime: now,
	})
	if err != nil {
		return fmt.Errorf("convert condition %s: %w", w.Type, err)
	}

	return w.apply(ctx, machine, condition)
}

// Clear takes the condition away, if the machine has it.
func (w *Writer) Clear(ctx context.Context, machine Machine) error {
	if meta.FindStatusCondition(*machine.StatusConditions(), w.Type) == nil {
		return nil
	}

	return w.apply(ctx, machine)
}

func (w *Writer) apply(ctx context.Context, machine Machine, conditions ...any) error {
	kind, err := w.Client.GroupVersionKindFor(machine)
	if err != nil {
		return fmt.Errorf("name the kind of machine %s: %w", client.ObjectKeyFromObject(machine), err)
	}

	status := map[string]any{}
	if len(conditions) > 0 {
		status["conditions"] = conditions
	}

	object := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": machine.GetName(), "namespace": machine.GetNamespace()},
		"status":   status,
	}}
	object.SetGroupVersionKind(kind)

	err = w.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object),
		client.FieldOwner(w.Owner), client.ForceOwnership)
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}

	return fmt.Errorf("report %s on %s %s: %w", w.Type, kind.Kind, client.ObjectKeyFromObject(machine), err)
}
