// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
)

const (
	// pageSize is the maximum number of objects that one list request returns.
	pageSize = 500
	// firstReconcileTimeout is the time within which an operator sets the condition Ready of a new object.
	firstReconcileTimeout = time.Minute
)

// warningConditions returns the conditions that are a warning if they have the given status, and the given reason if
// there is one, the most severe first. The other conditions are steps towards Ready, and Ready has the reason of the
// step that is not done.
func warningConditions() []metav1.Condition {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse

	return []metav1.Condition{
		{Type: infrav1.ConditionRolloutStopped, Status: yes},
		{Type: infrav1.ConditionIPPoolExhausted, Status: yes},
		{Type: bridgev1.ConditionHostedClusterDegraded, Status: yes},
		{Type: v1alpha1.ConditionDemandSourcesReady, Status: no},
		{Type: v1alpha1.ConditionAddressesFewerThanMachines, Status: yes},
		{Type: infrav1.ConditionAddressesFewerThanReplicas, Status: yes},
		{Type: infrav1.ConditionPrefixLengthGuessed, Status: yes},
		{Type: "Connected", Status: yes, Reason: v1alpha1.ReasonConnectedWithWarnings},
		{Type: "InsecureTLS", Status: yes},
	}
}

// checkObjects checks all objects of an area. It returns the findings, the number of objects, and the namespaces with
// objects that an operator has to reconcile. It reports missing permissions itself.
func (d *doctor) checkObjects(
	ctx context.Context, area string, kinds []*resourceDefinition,
) (findings []Finding, objectCount int, namespacesWithObjects []string) {
	var forbidden []string

	namespaces := map[string]bool{}

	for _, crd := range kinds {
		found, count, err := d.checkObjectsOf(ctx, crd, namespaces)
		findings = append(findings, found...)
		objectCount += count

		switch {
		case apierrors.IsForbidden(err):
			forbidden = append(forbidden, crd.Spec.Names.Plural)
		case err != nil && !apimeta.IsNoMatchError(err):
			d.reportUnreadable(crd.Spec.Names.Plural, err)
		}
	}

	if len(forbidden) > 0 {
		d.report.addf(Warning, "objects of "+area, "no permission to list %s", strings.Join(forbidden, ", "))
	}

	return findings, objectCount, slices.Sorted(maps.Keys(namespaces))
}

// checkObjectsOf checks all objects of one resource type. It returns the findings and the number of objects, and adds the
// namespaces of objects with conditions to namespaces.
func (d *doctor) checkObjectsOf(
	ctx context.Context, crd *resourceDefinition, namespaces map[string]bool,
) ([]Finding, int, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{
		Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Kind: crd.Spec.Names.ListKind,
	})

	options := &client.ListOptions{Limit: pageSize}
	if crd.Spec.Scope == apiextensionsv1.NamespaceScoped {
		options.Namespace = d.namespace
	}

	var (
		out               []Finding
		n                 int
		expectsConditions = hasConditions(crd)
	)

	for {
		if err := d.client.List(ctx, list, options); err != nil {
			return out, n, err
		}

		n += len(list.Items)

		for i := range list.Items {
			if namespace := list.Items[i].GetNamespace(); expectsConditions && namespace != "" {
				namespaces[namespace] = true
			}

			if finding, ok := d.checkObject(&list.Items[i], expectsConditions); ok {
				out = append(out, finding)
			}
		}

		if options.Continue = list.GetContinue(); options.Continue == "" {
			break
		}
	}

	d.report.Objects[crd.Spec.Names.Kind] = n

	return out, n, nil
}

// hasConditions reports whether the status of a resource type has conditions.
func hasConditions(crd *resourceDefinition) bool {
	for _, version := range crd.Spec.Versions {
		if version.Schema != nil && version.Schema.OpenAPIV3Schema != nil {
			_, ok := version.Schema.OpenAPIV3Schema.Properties["status"].Properties["conditions"]

			return ok
		}
	}

	return false
}

// checkObject returns the most severe finding about an object, and false if there is none. expectsConditions
// tells that the operator sets conditions on objects of this resource type.
func (d *doctor) checkObject(o *unstructured.Unstructured, expectsConditions bool) (Finding, bool) {
	finding := Finding{Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
	finding.Subject = finding.Kind + " " + strings.TrimPrefix(finding.Namespace+"/"+finding.Name, "/")

	conditions := parseConditions(o)
	ready := apimeta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	stalled := apimeta.FindStatusCondition(conditions, v1alpha1.ConditionStalled)
	deletedAt := o.GetDeletionTimestamp()

	newFinding := func(level Level, since time.Time, reason, message string) (Finding, bool) {
		finding.Level, finding.Reason, finding.Message = level, v1alpha1.CurrentReason(reason), message
		// A condition that is a default of the CRD's schema has the Unix epoch as its transition time.
		if since.Unix() == 0 {
			since = o.GetCreationTimestamp().Time
		}

		if !since.IsZero() {
			seconds := max(d.now.Sub(since).Seconds(), 0)
			finding.ForSeconds = &seconds
		}

		return finding, true
	}

	switch {
	case stalled != nil && stalled.Status == metav1.ConditionTrue:
		return newFinding(Problem, stalled.LastTransitionTime.Time, stalled.Reason, stalled.Message)
	case deletedAt != nil && d.isOverdue(deletedAt.Time):
		reason, message := "Deleting", "the object is being deleted, and no condition tells what the deletion waits for: finalizers "+
			strings.Join(o.GetFinalizers(), ", ")
		if ready != nil && ready.Status != metav1.ConditionTrue {
			reason, message = ready.Reason, "the object is being deleted: "+ready.Message
		}

		return newFinding(Problem, deletedAt.Time, reason, message)
	case deletedAt != nil || !expectsConditions || needsNoMachine(o):
		return Finding{}, false
	case ready == nil && d.now.Sub(o.GetCreationTimestamp().Time) > firstReconcileTimeout:
		return newFinding(Problem, o.GetCreationTimestamp().Time, "NotReconciled",
			"no operator has reconciled the object yet: check that an operator is running")
	case ready != nil && ready.Status != metav1.ConditionTrue && d.isOverdue(ready.LastTransitionTime.Time):
		return newFinding(Problem, ready.LastTransitionTime.Time, ready.Reason, ready.Message)
	}

	for _, warning := range warningConditions() {
		c := apimeta.FindStatusCondition(conditions, warning.Type)
		if c != nil && c.Status == warning.Status && (warning.Reason == "" || c.Reason == warning.Reason) {
			return newFinding(Warning, c.LastTransitionTime.Time, warning.Type, strings.TrimSuffix(c.Reason+": "+c.Message, ": "))
		}
	}

	return Finding{}, false
}

// isOverdue reports whether more than maxWait has passed since the given time.
func (d *doctor) isOverdue(since time.Time) bool { return d.now.Sub(since) > d.maxWait }

// needsNoMachine reports whether the object is a RunnerJob that waits for no machine, because it runs, has
// completed, or waits for an approval.
func needsNoMachine(o *unstructured.Unstructured) bool {
	state, _, _ := unstructured.NestedString(o.Object, "spec", "state")

	return o.GetKind() == "RunnerJob" && v1alpha1.JobState(state) != v1alpha1.JobQueued
}

// parseConditions returns the conditions of an object. It skips conditions that are malformed.
func parseConditions(o *unstructured.Unstructured) []metav1.Condition {
	raw, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")

	var out []metav1.Condition

	for _, item := range raw {
		var c metav1.Condition

		fields, ok := item.(map[string]any)
		if ok && runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &c) == nil {
			out = append(out, c)
		}
	}

	return out
}
