// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

const (
	// maxLabels is the maximum number of labels of a resource.
	maxLabels = 64
	// maxAhead and maxOld limit the difference between the observed time of a report and the
	// server's time.
	maxAhead = 5 * time.Minute
	maxOld   = 30 * time.Minute
	// maxConditions is the maximum number of conditions in a report. The next three are the maximum
	// lengths of their texts in bytes.
	maxConditions    = 100
	maxTypeLength    = 100
	maxReasonLength  = 1024
	maxMessageLength = 32 << 10
	maxAdapterLength = 63
)

// configErrors collects what is wrong with a configuration.
type configErrors []error

func (m *configErrors) addIf(isInvalid bool, text string) {
	if isInvalid {
		*m = append(*m, errors.New(text))
	}
}

// fieldErrors collects what is wrong with a request, by field.
type fieldErrors []entity.FieldError

func (f *fieldErrors) addf(field, format string, args ...any) {
	*f = append(*f, entity.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
}

// err returns nil if there are no errors.
func (f *fieldErrors) err() error {
	if len(*f) == 0 {
		return nil
	}

	return newInvalid(*f...)
}

func (f *fieldErrors) validateLabels(labels map[string]string) {
	if len(labels) > maxLabels {
		f.addf("labels", "has more than %d labels", maxLabels)
	}

	for key, value := range labels {
		for _, message := range validation.IsQualifiedName(key) {
			f.addf("labels."+key, "key: %s", message)
		}

		for _, message := range validation.IsValidLabelValue(value) {
			f.addf("labels."+key, "%s", message)
		}
	}
}

// validateReferences validates references by the rules of their kind, and converts them. The store
// checks whether the targets exist.
func (f *fieldErrors) validateReferences(
	kind *entity.Kind, references map[string][]openapi.ResourceReference,
) map[string][]store.Ref {
	out := map[string][]store.Ref{}

	for refType, targets := range references {
		path := "references." + refType

		rule, isKnown := kind.ReferenceRule(refType)
		if !isKnown {
			f.addf(path, "is not a reference type of %s", kind.Kind)

			continue
		}

		if rule.Max > 0 && len(targets) > rule.Max {
			f.addf(path, "has more than %d targets", rule.Max)
		}

		seen := map[string]bool{}

		for i, ref := range targets {
			id := canonicalID(ref.Id)
			field := fmt.Sprintf("%s[%d]", path, i)

			if seen[id] {
				f.addf(field, "is listed more than once")
			}

			if ref.Kind != "" && ref.Kind != rule.TargetKind {
				f.addf(field+".kind", "has to be %s", rule.TargetKind)
			}

			seen[id] = true
			out[refType] = append(out[refType], store.Ref{ID: id, Kind: rule.TargetKind})
		}
	}

	for _, rule := range kind.References {
		if len(references[rule.RefType]) < rule.Min {
			f.addf("references."+rule.RefType, "has fewer than %d targets", rule.Min)
		}
	}

	return out
}

// validateReport validates a report without regard to its resource.
func (f *fieldErrors) validateReport(report openapi.StatusReport, now time.Time) {
	if len(report.Adapter) > maxAdapterLength || len(validation.IsDNS1123Label(report.Adapter)) > 0 {
		f.addf("adapter", "has to consist of at most %d lower-case letters, digits and dashes", maxAdapterLength)
	}

	if report.ObservedGeneration < 1 {
		f.addf("observed_generation", "has to be 1 or more")
	}

	switch {
	case report.ObservedTime.After(now.Add(maxAhead)):
		f.addf("observed_time", "is more than %s in the future: check the clock", maxAhead)
	case report.ObservedTime.Before(now.Add(-maxOld)):
		f.addf("observed_time", "is more than %s old", maxOld)
	}

	if len(report.Conditions) > maxConditions {
		f.addf("conditions", "has more than %d conditions", maxConditions)
	}

	seen := map[string]bool{}

	for i, condition := range report.Conditions {
		path := fmt.Sprintf("conditions[%d]", i)

		if condition.Type == "" || len(condition.Type) > maxTypeLength {
			f.addf(path+".type", "has to have 1 to %d bytes", maxTypeLength)
		}

		if seen[condition.Type] {
			f.addf(path+".type", "%.100s is listed more than once", condition.Type)
		}

		if condition.Status != conditions.True && condition.Status != conditions.False && condition.Status != conditions.Unknown {
			f.addf(path+".status", "has to be True, False or Unknown")
		}

		if len(condition.Reason) > maxReasonLength || len(condition.Message) > maxMessageLength {
			f.addf(path, "has a reason of more than %d bytes or a message of more than %d", maxReasonLength, maxMessageLength)
		}

		seen[condition.Type] = true
	}

	for _, required := range []string{conditions.Available, conditions.Applied, conditions.Health} {
		if !seen[required] {
			f.addf("conditions", "%s is missing", required)
		}
	}
}
