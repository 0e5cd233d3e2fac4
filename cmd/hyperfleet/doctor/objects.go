// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
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
	// pageSize bounds the objects that one call brings.
	pageSize = 500
	// seenWithin is how soon an operator has looked at an object at the latest.
	seenWithin = time.Minute
)

// unwelcome are conditions that are a warning, and what they say then, the worst first; all
// others are steps, and Ready has the reason of the one that is not done.
func unwelcome() []metav1.Condition {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse

	return []metav1.Condition{
		{Type: infrav1.ConditionRolloutStopped, Status: yes},
		{Type: infrav1.ConditionIPPoolExhausted, Status: yes},
		{Type: bridgev1.ConditionHostedClusterDegraded, Status: yes},
		{Type: v1alpha1.ConditionDemandSourcesReady, Status: no},
		{Type: v1alpha1.ConditionAddressesFewerThanMachines, Status: yes},
		{Type: infrav1.ConditionAddressesFewerThanReplicas, Status: yes},
		{Type: infrav1.ConditionPrefixLengthGuessed, Status: yes},
		{Type: "InsecureTLS", Status: yes},
	}
}

// objects looks at all objects of an area: what ails them, and how many there are.
func (d *doctor) objects(ctx context.Context, area string, kinds []*kind) ([]Finding, int) {
	var (
		out     []Finding
		refused []string
		n       int
	)

	for _, crd := range kinds {
		found, count, err := d.objectsOf(ctx, crd)
		out = append(out, found...)
		n += count

		switch {
		case apierrors.IsForbidden(err):
			refused = append(refused, crd.Spec.Names.Plural)
		case err != nil && !apimeta.IsNoMatchError(err):
			d.unseen(crd.Spec.Names.Plural, err)
		}
	}

	if len(refused) > 0 {
		d.report.addf(Warning, "objects of "+area, "you may not list %s", strings.Join(refused, ", "))
	}

	return out, n
}

// objectsOf looks at all objects of a kind.
func (d *doctor) objectsOf(ctx context.Context, crd *kind) ([]Finding, int, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{
		Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Kind: crd.Spec.Names.ListKind,
	})

	options := &client.ListOptions{Limit: pageSize}
	if crd.Spec.Scope == apiextensionsv1.NamespaceScoped {
		options.Namespace = d.namespace
	}

	var (
		out     []Finding
		n       int
		reports = reports(crd)
	)

	for {
		if err := d.client.List(ctx, list, options); err != nil {
			return out, n, err
		}

		n += len(list.Items)

		for i := range list.Items {
			if found, ails := d.object(&list.Items[i], reports); ails {
				out = append(out, found)
			}
		}

		if options.Continue = list.GetContinue(); options.Continue == "" {
			break
		}
	}

	d.report.Objects[crd.Spec.Names.Kind] = n

	return out, n, nil
}

// reports says whether objects of a kind have conditions.
func reports(crd *kind) bool {
	for _, version := range crd.Spec.Versions {
		if version.Schema != nil && version.Schema.OpenAPIV3Schema != nil {
			_, ok := version.Schema.OpenAPIV3Schema.Properties["status"].Properties["conditions"]

			return ok
		}
	}

	return false
}

// object says what ails an object, if anything does.
func (d *doctor) object(o *unstructured.Unstructured, reports bool) (Finding, bool) {
	about := Finding{Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
	about.Subject = about.Kind + " " + strings.TrimPrefix(about.Namespace+"/"+about.Name, "/")

	conditions := conditionsOf(o)
	ready := apimeta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	stalled := apimeta.FindStatusCondition(conditions, v1alpha1.ConditionStalled)
	leaving := o.GetDeletionTimestamp()

	found := func(level Level, since time.Time, reason, message string) (Finding, bool) {
		about.Level, about.Reason, about.Message = level, reason, message
		// A condition that the kind's schema gives is as old as Unix.
		if since.Unix() == 0 {
			since = o.GetCreationTimestamp().Time
		}

		if !since.IsZero() {
			seconds := max(d.now.Sub(since).Seconds(), 0)
			about.ForSeconds = &seconds
		}

		return about, true
	}

	switch {
	case stalled != nil && stalled.Status == metav1.ConditionTrue:
		return found(Problem, stalled.LastTransitionTime.Time, stalled.Reason, stalled.Message)
	case leaving != nil && d.long(leaving.Time):
		reason, message := "Deleting", "it is to be deleted, and nobody has said what it waits for: finalizers "+
			strings.Join(o.GetFinalizers(), ", ")
		if ready != nil && ready.Status != metav1.ConditionTrue {
			reason, message = ready.Reason, "it is to be deleted: "+ready.Message
		}

		return found(Problem, leaving.Time, reason, message)
	case leaving != nil || !reports || over(o):
		return Finding{}, false
	case ready == nil && d.now.Sub(o.GetCreationTimestamp().Time) > seenWithin:
		return found(Problem, o.GetCreationTimestamp().Time, "NotSeen", "no operator has looked at it yet: is one running?")
	case ready != nil && ready.Status != metav1.ConditionTrue && d.long(ready.LastTransitionTime.Time):
		return found(Problem, ready.LastTransitionTime.Time, ready.Reason, ready.Message)
	}

	for _, one := range unwelcome() {
		if c := apimeta.FindStatusCondition(conditions, one.Type); c != nil && c.Status == one.Status {
			return found(Warning, c.LastTransitionTime.Time, one.Type, strings.TrimSuffix(c.Reason+": "+c.Message, ": "))
		}
	}

	return Finding{}, false
}

// long says whether what has begun then takes longer than it may.
func (d *doctor) long(since time.Time) bool { return d.now.Sub(since) > d.waiting }

// over says whether it is a CI job that waits for no machine: it runs, has ended, or waits
// for somebody to approve of it.
func over(o *unstructured.Unstructured) bool {
	state, _, _ := unstructured.NestedString(o.Object, "spec", "state")

	return o.GetKind() == "RunnerJob" && v1alpha1.JobState(state) != v1alpha1.JobQueued
}

// conditionsOf are the object's; those that can't be read are as good as not there.
func conditionsOf(o *unstructured.Unstructured) []metav1.Condition {
	raw, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")

	var out []metav1.Condition

	for _, one := range raw {
		var c metav1.Condition

		fields, ok := one.(map[string]any)
		if ok && runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &c) == nil {
			out = append(out, c)
		}
	}

	return out
}
