// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

const (
	// maxLabels of a resource.
	maxLabels = 64
	// maxAhead and maxOld bound the time of a report.
	maxAhead = 5 * time.Minute
	maxOld   = 30 * time.Minute
	// maxConditions of a report, and the longest of their texts.
	maxConditions = 100
	maxType       = 100
	maxReason     = 1024
	maxMessage    = 32 << 10
	maxAdapter    = 63
)

// checkLabels holds labels to the rules of Kubernetes.
func checkLabels(labels map[string]string) []entity.FieldError {
	var wrong []entity.FieldError

	if len(labels) > maxLabels {
		wrong = append(wrong, entity.FieldError{Field: "labels", Message: fmt.Sprintf("has more than %d", maxLabels)})
	}

	for key, value := range labels {
		for _, what := range validation.IsQualifiedName(key) {
			wrong = append(wrong, entity.FieldError{Field: "labels." + key, Message: "key: " + what})
		}

		for _, what := range validation.IsValidLabelValue(value) {
			wrong = append(wrong, entity.FieldError{Field: "labels." + key, Message: what})
		}
	}

	return wrong
}

// checkReferences holds references to the rules of their kind. Whether the targets are
// there is for the store to say.
func checkReferences(
	kind *entity.Kind, references map[string][]openapi.ResourceReference,
) (map[string][]store.Ref, []entity.FieldError) {
	var wrong []entity.FieldError

	out := map[string][]store.Ref{}

	for refType, targets := range references {
		at := "references." + refType

		rule, known := kind.Reference(refType)
		if !known {
			wrong = append(wrong, entity.FieldError{Field: at, Message: "is not a type of reference of " + kind.Kind})

			continue
		}

		if rule.Max > 0 && len(targets) > rule.Max {
			wrong = append(wrong, entity.FieldError{Field: at, Message: fmt.Sprintf("has more than %d", rule.Max)})
		}

		seen := map[string]bool{}

		for i, ref := range targets {
			id := canonical(ref.Id)
			field := fmt.Sprintf("%s[%d]", at, i)

			if seen[id] {
				wrong = append(wrong, entity.FieldError{Field: field, Message: "is there twice"})
			}

			if ref.Kind != "" && ref.Kind != rule.TargetKind {
				wrong = append(wrong, entity.FieldError{Field: field + ".kind", Message: "has to be " + rule.TargetKind})
			}

			seen[id] = true
			out[refType] = append(out[refType], store.Ref{ID: id, Kind: rule.TargetKind})
		}
	}

	for _, rule := range kind.References {
		if len(references[rule.RefType]) < rule.Min {
			wrong = append(wrong, entity.FieldError{
				Field: "references." + rule.RefType, Message: fmt.Sprintf("has fewer than %d", rule.Min),
			})
		}
	}

	return out, wrong
}

// checkReport says what is wrong with a report, whatever the resource is.
func checkReport(report openapi.StatusReport, now time.Time) []entity.FieldError {
	var wrong []entity.FieldError

	say := func(field, format string, args ...any) {
		wrong = append(wrong, entity.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
	}

	if len(report.Adapter) > maxAdapter || len(validation.IsDNS1123Label(report.Adapter)) > 0 {
		say("adapter", "has to be of small letters, digits and dashes, at most %d", maxAdapter)
	}

	if report.ObservedGeneration < 1 {
		say("observed_generation", "has to be 1 or more")
	}

	switch {
	case report.ObservedTime.After(now.Add(maxAhead)):
		say("observed_time", "is more than %s ahead: look at the clock", maxAhead)
	case report.ObservedTime.Before(now.Add(-maxOld)):
		say("observed_time", "is more than %s old", maxOld)
	}

	if len(report.Conditions) > maxConditions {
		say("conditions", "has more than %d", maxConditions)
	}

	seen := map[string]bool{}

	for i, one := range report.Conditions {
		at := fmt.Sprintf("conditions[%d]", i)

		if one.Type == "" || len(one.Type) > maxType {
			say(at+".type", "has to have 1 to %d bytes", maxType)
		}

		if seen[one.Type] {
			say(at+".type", "%.100s is there twice", one.Type)
		}

		if one.Status != conditions.True && one.Status != conditions.False && one.Status != conditions.Unknown {
			say(at+".status", "has to be True, False or Unknown")
		}

		if len(one.Reason) > maxReason || len(one.Message) > maxMessage {
			say(at, "has a reason of more than %d bytes or a message of more than %d", maxReason, maxMessage)
		}

		seen[one.Type] = true
	}

	for _, needed := range []string{conditions.Available, conditions.Applied, conditions.Health} {
		if !seen[needed] {
			say("conditions", "%s is missing", needed)
		}
	}

	return wrong
}
