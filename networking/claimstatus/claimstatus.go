// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/step"
)

// maxMessage is the maximum length of a condition's message in bytes, without the ellipsis. The API server
// allows 32768.
const maxMessage = 32000

// Machine is the object of a machine, which is a MachineClaim or a KubevirtMachine.
type Machine = step.Object

// Writer writes the fields of one field manager into statuses.
type Writer struct {
	Client client.Client
	Clock  clock.PassiveClock
	// Owner is the field manager, such as hyperfleet-dns. Each controller needs its own field manager,
	// because an apply removes all fields of the field manager that it does not contain.
	Owner string
	// Types are the types of the field manager's conditions. Report writes the first one.
	Types []string
	// Fields are the paths of the field manager's other fields in the status.
	Fields [][]string
}

// Report writes the condition, unless the machine already has it. It returns no error if the machine no longer
// exists, or if another machine has its name now.
func (w *Writer) Report(
	ctx context.Context, machine Machine, status metav1.ConditionStatus, reason, message string,
) error {
	condition := metav1.Condition{Type: w.Types[0], Status: status, Reason: reason, Message: message}
	if HasCondition(machine, condition) {
		return nil
	}

	return IgnoreGone(w.Apply(ctx, machine, map[string]any{}, condition))
}

// Clear removes the conditions, if the object has any of them.
func (w *Writer) Clear(ctx context.Context, obj step.Object) error {
	isOurs := func(condition metav1.Condition) bool { return slices.Contains(w.Types, condition.Type) }
	if !slices.ContainsFunc(*obj.StatusConditions(), isOurs) {
		return nil
	}

	return IgnoreGone(w.Apply(ctx, obj, map[string]any{}))
}

// HasCondition returns whether an object has a condition with the same status, reason and message for its
// current generation.
func HasCondition(obj step.Object, condition metav1.Condition) bool {
	current := meta.FindStatusCondition(*obj.StatusConditions(), condition.Type)

	return current != nil && current.Status == condition.Status && current.Reason == condition.Reason &&
		current.Message == truncateMessage(condition.Message) && current.ObservedGeneration == obj.GetGeneration()
}

// Apply replaces all fields of the field manager in a status with the given fields and conditions. It removes the field
// manager's other fields and conditions, also if another program owns them too, such as one that has restored a backup. It
// returns a conflict if another object with the same name exists now, or if a field of another program changes meanwhile.
func (w *Writer) Apply(ctx context.Context, obj step.Object, status map[string]any, conditions ...metav1.Condition) error {
	list, err := w.prepareConditions(obj, conditions)
	if err != nil {
		return err
	}

	// Set an empty list too, because a status without any fields becomes null, which is invalid.
	status["conditions"] = list

	applied, err := w.applyOnce(ctx, obj, status)

	switch {
	case err == nil:
		_, err = w.removeRestored(ctx, obj, applied, status)

		return err
	case !apierrors.IsInvalid(err):
		return err
	}

	// The other program's part may be invalid without ours, such as a condition without a message.
	current, convertErr := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if convertErr != nil {
		return fmt.Errorf("convert %s: %w", client.ObjectKeyFromObject(obj), convertErr)
	}

	isRemoved, removeErr := w.removeRestored(ctx, obj, current, status)
	if removeErr != nil || !isRemoved {
		return cmp.Or(removeErr, err)
	}

	_, err = w.applyOnce(ctx, obj, status)

	return err
}

// prepareConditions completes the conditions and returns them as a list of JSON values.
func (w *Writer) prepareConditions(obj step.Object, conditions []metav1.Condition) ([]any, error) {
	list := make([]any, 0, len(conditions))

	for i := range conditions {
		condition := &conditions[i]
		condition.Message = truncateMessage(condition.Message)
		condition.ObservedGeneration = obj.GetGeneration()
		condition.LastTransitionTime = metav1.NewTime(w.Clock.Now())

		previous := meta.FindStatusCondition(*obj.StatusConditions(), condition.Type)
		if previous != nil && previous.Status == condition.Status {
			condition.LastTransitionTime = previous.LastTransitionTime
		}

		converted, err := runtime.DefaultUnstructuredConverter.ToUnstructured(condition)
		if err != nil {
			return nil, fmt.Errorf("convert condition %s: %w", condition.Type, err)
		}

		list = append(list, converted)
	}

	return list, nil
}

// applyOnce applies the status, and returns the object that the API server has now.
func (w *Writer) applyOnce(ctx context.Context, obj step.Object, status map[string]any) (map[string]any, error) {
	kind, err := w.Client.GroupVersionKindFor(obj)
	if err != nil {
		return nil, fmt.Errorf("get kind of %s: %w", client.ObjectKeyFromObject(obj), err)
	}

	object := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": obj.GetName(), "namespace": obj.GetNamespace(), "uid": string(obj.GetUID())},
		"status":   runtime.DeepCopyJSON(status),
	}}
	object.SetGroupVersionKind(kind)

	err = w.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object),
		client.FieldOwner(w.Owner), client.ForceOwnership)
	if err != nil {
		return nil, fmt.Errorf("apply status of %s %s as %s: %w", kind.Kind, client.ObjectKeyFromObject(obj), w.Owner, err)
	}

	return object.Object, nil
}

// IgnoreGone returns nil for the error that an object no longer exists or that another object has
// its name now. A watch event follows. It returns all other errors.
func IgnoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}

	return err
}

func truncateMessage(message string) string {
	if len(message) > maxMessage {
		return message[:maxMessage] + "..."
	}

	return message
}
