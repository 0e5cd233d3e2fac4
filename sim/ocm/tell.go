// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ocm

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/jsonpath"
)

// Types of conditions, and some of their reasons.
const (
	conditionApplied   = "Applied"
	conditionAvailable = "Available"
	conditionFeedback  = "StatusFeedbackSynced"
)

// status of a ManifestWork.
type status struct {
	Conditions     []metav1.Condition `json:"conditions,omitempty"`
	ResourceStatus struct {
		Manifests []manifestStatus `json:"manifests,omitempty"`
	} `json:"resourceStatus"`
}

type manifestStatus struct {
	ResourceMeta resourceMeta `json:"resourceMeta"`
	Feedback     struct {
		Values []feedbackValue `json:"values,omitempty"`
	} `json:"statusFeedback"`
	Conditions []metav1.Condition `json:"conditions"`
}

type resourceMeta struct {
	Ordinal   int    `json:"ordinal"`
	Group     string `json:"group"`
	Version   string `json:"version"`
	Kind      string `json:"kind"`
	Resource  string `json:"resource"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

type feedbackValue struct {
	Name  string     `json:"name"`
	Value fieldValue `json:"fieldValue"`
}

type fieldValue struct {
	Type    string  `json:"type"`
	Integer *int64  `json:"integer,omitempty"`
	String  *string `json:"string,omitempty"`
	Boolean *bool   `json:"boolean,omitempty"`
}

// tell writes the work's status, if it has changed.
func (a *Agent) tell(ctx context.Context, work *unstructured.Unstructured, results []brought) error {
	var before, after status

	if err := reread(work.Object["status"], &before); err != nil {
		return fmt.Errorf("read status: %w", err)
	}

	after.Conditions = slices.Clone(before.Conditions)

	for i, result := range results {
		told := a.manifest(ctx, work, i, result, before.ResourceStatus.Manifests)
		after.ResourceStatus.Manifests = append(after.ResourceStatus.Manifests, told)
	}

	for _, condition := range summary(after.ResourceStatus.Manifests) {
		condition.ObservedGeneration = work.GetGeneration()
		meta.SetStatusCondition(&after.Conditions, condition)
	}

	var value map[string]any
	if err := reread(after, &value); err != nil {
		return fmt.Errorf("write status: %w", err)
	}

	if reflect.DeepEqual(work.Object["status"], value) {
		return nil
	}

	work.Object["status"] = value

	if _, err := a.works.UpdateStatus(ctx, work, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("write status: %w", err)
	}

	return nil
}

// reread converts by way of JSON.
func reread(from, to any) error {
	data, err := json.Marshal(from)
	if err != nil {
		return err
	}

	if unmarshal := json.Unmarshal(data, to); unmarshal != nil {
		return unmarshal
	}

	if value, ok := to.(*map[string]any); ok {
		numbers(*value)
	}

	return nil
}

// numbers makes whole numbers what an unstructured object has.
func numbers(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = numbers(v[key])
		}
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case float64:
		return int64(v)
	}

	return value
}

// summary are the conditions of a work of these manifests (ocm,
// pkg/work/spoke/conditions).
func summary(manifests []manifestStatus) []metav1.Condition {
	count := map[metav1.ConditionStatus]int{}
	applied := metav1.Condition{
		Type: conditionApplied, Status: metav1.ConditionTrue,
		Reason: "AppliedManifestWorkComplete", Message: "Apply manifest work complete",
	}

	for _, one := range manifests {
		if !meta.IsStatusConditionTrue(one.Conditions, conditionApplied) {
			applied.Status = metav1.ConditionFalse
			applied.Reason, applied.Message = "AppliedManifestWorkFailed", "Failed to apply manifest work"
		}

		if found := meta.FindStatusCondition(one.Conditions, conditionAvailable); found != nil {
			count[found.Status]++
		}
	}

	available := metav1.Condition{
		Type: conditionAvailable, Status: metav1.ConditionTrue, Reason: "ResourcesAvailable", Message: "All resources are available",
	}

	switch missing, unknown := count[metav1.ConditionFalse], count[metav1.ConditionUnknown]; {
	case missing > 0:
		available.Status, available.Reason = metav1.ConditionFalse, "ResourcesNotAvailable"
		available.Message = fmt.Sprintf("%d of %d resources are not available", missing, len(manifests))
	case unknown > 0:
		available.Status, available.Reason = metav1.ConditionUnknown, "ResourcesStatusUnknown"
		available.Message = fmt.Sprintf("%d of %d resources have unknown status", unknown, len(manifests))
	}

	return []metav1.Condition{applied, available}
}

// availability is what the agent says of one object after it has looked for it. It has no
// observedGeneration there.
func availability(served bool, err error) metav1.Condition {
	out := metav1.Condition{Type: conditionAvailable, Status: metav1.ConditionUnknown}

	switch {
	case !served:
		out.Reason, out.Message = "IncompleteResourceMeta", "Resource meta is incomplete"
	case apierrors.IsNotFound(err):
		out.Status, out.Reason, out.Message = metav1.ConditionFalse, "ResourceNotAvailable", "Resource is not available"
	case err != nil:
		out.Reason, out.Message = "FetchingResourceFailed", fmt.Sprintf("Failed to fetch resource: %v", err)
	default:
		out.Status, out.Reason, out.Message = metav1.ConditionTrue, "ResourceAvailable", "Resource is available"
	}

	return out
}

func (a *Agent) manifest(
	ctx context.Context, work *unstructured.Unstructured, ordinal int, result brought, before []manifestStatus,
) manifestStatus {
	told := manifestStatus{ResourceMeta: resourceMeta{
		Ordinal: ordinal, Group: result.gvr.Group, Version: result.gvr.Version, Kind: result.kind, Resource: result.gvr.Resource,
		Name: result.name, Namespace: result.namespace,
	}, Conditions: []metav1.Condition{}}

	for _, old := range before {
		if old.ResourceMeta == told.ResourceMeta {
			told = old
			told.Conditions = slices.Clone(old.Conditions)
		}
	}

	applied := metav1.Condition{
		Type: conditionApplied, Status: metav1.ConditionTrue, Reason: "AppliedManifestComplete", Message: "Apply manifest complete",
		ObservedGeneration: work.GetGeneration(),
	}
	if result.err != nil {
		applied.Status, applied.Reason = metav1.ConditionFalse, "AppliedManifestFailed"
		applied.Message = fmt.Sprintf("Failed to apply manifest: %v", result.err)
	}

	meta.SetStatusCondition(&told.Conditions, applied)

	if result.gvr.Resource == "" {
		meta.SetStatusCondition(&told.Conditions, availability(false, nil))

		return told
	}

	object, err := a.calls(result.resource).Get(ctx, result.name, metav1.GetOptions{})
	meta.SetStatusCondition(&told.Conditions, availability(true, err))

	if err == nil {
		feedback(work, &told, object, result.resource)
	}

	return told
}

// feedback reads the values that spec.manifestConfigs asks for.
func feedback(work *unstructured.Unstructured, told *manifestStatus, object *unstructured.Unstructured, at resource) {
	rules, _, _ := unstructured.NestedSlice(config(work, at), "feedbackRules")
	told.Feedback.Values = nil

	failed := ""

	for _, item := range rules {
		rule, _ := item.(map[string]any)
		paths, _, _ := unstructured.NestedSlice(rule, "jsonPaths")

		if rule["type"] == "WellKnownStatus" {
			paths = wellKnown(object.GetKind())
			if len(paths) == 0 {
				failed = fmt.Sprintf("cannot find the wellknown statuses for resource with gvk %s", object.GroupVersionKind())
			}
		}

		for _, path := range paths {
			entry, _ := path.(map[string]any)
			name, _ := entry["name"].(string)
			text, _ := entry["path"].(string)

			value, err := evaluate(name, text, object)
			if err != nil {
				failed = err.Error()
			} else if value != nil {
				told.Feedback.Values = append(told.Feedback.Values, *value)
			}
		}
	}

	synced := metav1.Condition{Type: conditionFeedback, Status: metav1.ConditionTrue, Reason: "StatusFeedbackSynced"}

	switch {
	case failed != "":
		synced.Status, synced.Reason = metav1.ConditionFalse, "StatusFeedbackSyncFailed"
		synced.Message = "Sync status feedback failed with error " + failed
	case len(rules) == 0:
		synced.Reason = "NoStatusFeedbackSynced"
	}

	meta.SetStatusCondition(&told.Conditions, synced)
}

// wellKnown are the paths that OCM knows of some kinds (ocm,
// pkg/work/spoke/statusfeedback/rules).
func wellKnown(kind string) []any {
	path := func(name, path string) any { return map[string]any{"name": name, "path": path} }

	switch kind {
	case "Deployment":
		return []any{
			path("ReadyReplicas", ".status.readyReplicas"), path("Replicas", ".status.replicas"),
			path("AvailableReplicas", ".status.availableReplicas"),
		}
	case "Job":
		return []any{
			path("JobComplete", `.status.conditions[?(@.type=="Complete")].status`), path("JobSucceeded", ".status.succeeded"),
		}
	case "Pod":
		return []any{path("PodReady", `.status.conditions[?(@.type=="Ready")].status`), path("PodPhase", ".status.phase")}
	default:
		return nil
	}
}

func evaluate(name, path string, object *unstructured.Unstructured) (*feedbackValue, error) {
	parsed := jsonpath.New(name).AllowMissingKeys(true)
	if err := parsed.Parse("{" + path + "}"); err != nil {
		return nil, fmt.Errorf("failed to parse json path %s of %s with error: %w", path, name, err)
	}

	results, err := parsed.FindResults(object.Object)
	if err != nil {
		return nil, fmt.Errorf("failed to find value for %s with error: %w", name, err)
	}

	if len(results) == 0 || len(results[0]) == 0 {
		return nil, nil //nolint:nilnil // no value is no error
	}

	switch value := results[0][0].Interface().(type) {
	case int64:
		return &feedbackValue{Name: name, Value: fieldValue{Type: "Integer", Integer: &value}}, nil
	case string:
		return &feedbackValue{Name: name, Value: fieldValue{Type: "String", String: &value}}, nil
	case bool:
		return &feedbackValue{Name: name, Value: fieldValue{Type: "Boolean", Boolean: &value}}, nil
	case nil:
		return nil, nil //nolint:nilnil // no value is no error
	default:
		return nil, fmt.Errorf("the type %T of the value for %s is not found", value, name)
	}
}
