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

	"github.com/hyperfleet/hyperfleet/kit/step"
)

// maxMessage is what a condition's message may hold, with room for an ellipsis.
const maxMessage = 32000

// Machine is the object of a machine: a MachineClaim or a KubevirtMachine.
type Machine = step.Object

// Writer writes one owner's part of statuses.
type Writer struct {
	Client client.Client
	Clock  clock.PassiveClock
	// Owner is the field manager, e.g. hyperfleet-dns. Each controller has one of its own:
	// what an owner does not say again is taken away.
	Owner string
	// Type of the one condition that Report and Clear are about.
	Type string
}

// Report writes the condition, unless the machine has it already. A machine that is gone, or
// whose name another has by now, is no error.
func (w *Writer) Report(
	ctx context.Context, machine Machine, status metav1.ConditionStatus, reason, message string,
) error {
	condition := metav1.Condition{Type: w.Type, Status: status, Reason: reason, Message: message}
	if Says(machine, condition) {
		return nil
	}

	return IgnoreGone(w.Apply(ctx, machine, map[string]any{}, condition))
}

// Clear takes the condition away, if the machine has it.
func (w *Writer) Clear(ctx context.Context, machine Machine) error {
	if meta.FindStatusCondition(*machine.StatusConditions(), w.Type) == nil {
		return nil
	}

	return IgnoreGone(w.Apply(ctx, machine, map[string]any{}))
}

// Says tells whether an object has a condition already.
func Says(obj step.Object, want metav1.Condition) bool {
	got := meta.FindStatusCondition(*obj.StatusConditions(), want.Type)

	return got != nil && got.Status == want.Status && got.Reason == want.Reason &&
		got.Message == cut(want.Message) && got.ObservedGeneration == obj.GetGeneration()
}

// Apply makes the owner's part of a status be what is given, and nothing else: conditions
// that it does not name are taken away, as far as they are the owner's. It is refused for
// another object of the name.
func (w *Writer) Apply(ctx context.Context, obj step.Object, status map[string]any, conditions ...metav1.Condition) error {
	kind, err := w.Client.GroupVersionKindFor(obj)
	if err != nil {
		return fmt.Errorf("name the kind of %s: %w", client.ObjectKeyFromObject(obj), err)
	}

	list := make([]any, 0, len(conditions))

	for i := range conditions {
		condition := &conditions[i]
		condition.Message = cut(condition.Message)
		condition.ObservedGeneration = obj.GetGeneration()
		condition.LastTransitionTime = metav1.NewTime(w.Clock.Now())

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
		"metadata": map[string]any{"name": obj.GetName(), "namespace": obj.GetNamespace(), "uid": string(obj.GetUID())},
		"status":   status,
	}}
	object.SetGroupVersionKind(kind)

	err = w.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object),
		client.FieldOwner(w.Owner), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("write status of %s %s as %s: %w", kind.Kind, client.ObjectKeyFromObject(obj), w.Owner, err)
	}

	return nil
}

// IgnoreGone makes nothing of an object that is not there any more, or is another one now: an
// event tells of that.
func IgnoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}

	return err
}

func cut(message string) string {
	if len(message) > maxMessage {
		return message[:maxMessage] + "..."
	}

	return message
}
