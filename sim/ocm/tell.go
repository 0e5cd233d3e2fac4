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

// Condition types.
const (
	conditionApplied   = "Applied"
	conditionAvailable = "Available"
	conditionFeedback  = "StatusFeedbackSynced"
)

// status is the status of a ManifestWork.
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

// writeStatus updates the status of a ManifestWork if it has changed.
func (a *Agent) writeStatus(ctx context.Context, work *unstructured.Unstructured, results []applyResult) error {
	var before, after status

	if err := convertJSON(work.Object["status"], &before); err != nil {
		return fmt.Errorf("decode status: %w", err)
	}

	after.Conditions = slices.Clone(before.Conditions)

	for i, result := range results {
		report := a.reportManifest(ctx, work, i, result, before.ResourceStatus.Manifests)
		after.ResourceStatus.Manifests = append(after.ResourceStatus.Manifests, report)
	}

	for _, condition := range summarize(after.ResourceStatus.Manifests) {
		condition.ObservedGeneration = work.GetGeneration()
		meta.SetStatusCondition(&after.Conditions, condition)
	}

	var value map[string]any
	if err := convertJSON(after, &value); err != nil {
		return fmt.Errorf("encode status: %w", err)
	}

	if reflect.DeepEqual(work.Object["status"], value) {
		return nil
	}

	work.Object["status"] = value

	if _, err := a.works.UpdateStatus(ctx, work, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("update status: %w", err)
	}

	return nil
}

// convertJSON converts a value to another type: it encodes the value as JSON and decodes the JSON into to.
func convertJSON(from, to any) error {
	data, err := json.Marshal(from)
	if err != nil {
		return err
	}

	if unmarshal := json.Unmarshal(data, to); unmarshal != nil {
		return unmarshal
	}

	if value, ok := to.(*map[string]any); ok {
		convertNumbers(*value)
	}

	return nil
}

// convertNumbers converts all float64 values to int64, as they are stored in an unstructured object.
func convertNumbers(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = convertNumbers(v[key])
		}
	case []any:
		for i := range v {
			v[i] = convertNumbers(v[i])
		}
	case float64:
		return int64(v)
	}

	return value
}

// summarize returns the conditions of a ManifestWork with these manifests (ocm,
// pkg/work/spoke/conditions).
func summarize(manifests []manifestStatus) []metav1.Condition {
	count := map[metav1.ConditionStatus]int{}
	applied := metav1.Condition{
		Type: conditionApplied, Status: metav1.ConditionTrue,
		Reason: "AppliedManifestWorkComplete", Message: "Apply manifest work complete",
	}

	for _, manifest := range manifests {
		if !meta.IsStatusConditionTrue(manifest.Conditions, conditionApplied) {
			applied.Status = metav1.ConditionFalse
			applied.Reason, applied.Message = "AppliedManifestWorkFailed", "Failed to apply manifest work"
		}

		if found := meta.FindStatusCondition(manifest.Conditions, conditionAvailable); found != nil {
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

// served and notServed are the values of the parameter isServed.
const served, notServed = true, false

// availableCondition returns condition Available of one manifest. As in OCM, it has no
// observedGeneration. If isServed is false, the API server does not serve the manifest's kind. Otherwise
// err is the error of reading the object.
func availableCondition(isServed bool, err error) metav1.Condition {
	out := metav1.Condition{Type: conditionAvailable, Status: metav1.ConditionUnknown}

	switch {
	case !isServed:
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

func (a *Agent) reportManifest(
	ctx context.Context, work *unstructured.Unstructured, ordinal int, result applyResult, before []manifestStatus,
) manifestStatus {
	report := manifestStatus{ResourceMeta: resourceMeta{
		Ordinal: ordinal, Group: result.gvr.Group, Version: result.gvr.Version, Kind: result.kind, Resource: result.gvr.Resource,
		Name: result.name, Namespace: result.namespace,
	}, Conditions: []metav1.Condition{}}

	for _, old := range before {
		if old.ResourceMeta == report.ResourceMeta {
			report = old
			report.Conditions = slices.Clone(old.Conditions)
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

	meta.SetStatusCondition(&report.Conditions, applied)

	if result.gvr.Resource == "" {
		meta.SetStatusCondition(&report.Conditions, availableCondition(notServed, nil))

		return report
	}

	object, err := a.resourceClient(result.resource).Get(ctx, result.name, metav1.GetOptions{})
	meta.SetStatusCondition(&report.Conditions, availableCondition(served, err))

	if err == nil {
		setFeedback(work, &report, object, result.resource)
	}

	return report
}

// setFeedback reads the values that the feedback rules of spec.manifestConfigs select from an object.
func setFeedback(work *unstructured.Unstructured, report *manifestStatus, object *unstructured.Unstructured, target resource) {
	rules, _, _ := unstructured.NestedSlice(findManifestConfig(work, target), "feedbackRules")
	report.Feedback.Values = nil

	failed := ""

	for _, item := range rules {
		rule, _ := item.(map[string]any)
		paths, _, _ := unstructured.NestedSlice(rule, "jsonPaths")

		if rule["type"] == "WellKnownStatus" {
			paths = wellKnownPaths(object.GetKind())
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
				report.Feedback.Values = append(report.Feedback.Values, *value)
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

	meta.SetStatusCondition(&report.Conditions, synced)
}

// wellKnownPaths returns the paths of feedback rule WellKnownStatus for a kind, nil if OCM defines none
// (ocm, pkg/work/spoke/statusfeedback/rules).
func wellKnownPaths(kind string) []any {
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
		return nil, nil //nolint:nilnil // a missing value is not an error
	}

	switch value := results[0][0].Interface().(type) {
	case int64:
		return &feedbackValue{Name: name, Value: fieldValue{Type: "Integer", Integer: &value}}, nil
	case string:
		return &feedbackValue{Name: name, Value: fieldValue{Type: "String", String: &value}}, nil
	case bool:
		return &feedbackValue{Name: name, Value: fieldValue{Type: "Boolean", Boolean: &value}}, nil
	case nil:
		return nil, nil //nolint:nilnil // a missing value is not an error
	default:
		return nil, fmt.Errorf("the type %T of the value for %s is not found", value, name)
	}
}
