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

// mistakes are what is wrong with a configuration.
type mistakes []error

// when notes one where something is so.
func (m *mistakes) when(bad bool, text string) {
	if bad {
		*m = append(*m, errors.New(text))
	}
}

// faults are what is wrong with a request, by field.
type faults []entity.FieldError

func (f *faults) sayf(field, format string, args ...any) {
	*f = append(*f, entity.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
}

// err is nil if nothing is wrong.
func (f *faults) err() error {
	if len(*f) == 0 {
		return nil
	}

	return invalid(*f...)
}

// labels holds labels to the rules of Kubernetes.
func (f *faults) labels(labels map[string]string) {
	if len(labels) > maxLabels {
		f.sayf("labels", "has more than %d", maxLabels)
	}

	for key, value := range labels {
		for _, what := range validation.IsQualifiedName(key) {
			f.sayf("labels."+key, "key: %s", what)
		}

		for _, what := range validation.IsValidLabelValue(value) {
			f.sayf("labels."+key, "%s", what)
		}
	}
}

// references holds references to the rules of their kind. Whether the targets are there is
// for the store to say.
func (f *faults) references(kind *entity.Kind, references map[string][]openapi.ResourceReference) map[string][]store.Ref {
	out := map[string][]store.Ref{}

	for refType, targets := range references {
		at := "references." + refType

		rule, known := kind.Reference(refType)
		if !known {
			f.sayf(at, "is not a type of reference of %s", kind.Kind)

			continue
		}

		if rule.Max > 0 && len(targets) > rule.Max {
			f.sayf(at, "has more than %d", rule.Max)
		}

		seen := map[string]bool{}

		for i, ref := range targets {
			id := canonical(ref.Id)
			field := fmt.Sprintf("%s[%d]", at, i)

			if seen[id] {
				f.sayf(field, "is there twice")
			}

			if ref.Kind != "" && ref.Kind != rule.TargetKind {
				f.sayf(field+".kind", "has to be %s", rule.TargetKind)
			}

			seen[id] = true
			out[refType] = append(out[refType], store.Ref{ID: id, Kind: rule.TargetKind})
		}
	}

	for _, rule := range kind.References {
		if len(references[rule.RefType]) < rule.Min {
			f.sayf("references."+rule.RefType, "has fewer than %d", rule.Min)
		}
	}

	return out
}

// report says what is wrong with a report, whatever the resource is.
func (f *faults) report(report openapi.StatusReport, now time.Time) {
	if len(report.Adapter) > maxAdapter || len(validation.IsDNS1123Label(report.Adapter)) > 0 {
		f.sayf("adapter", "has to be of small letters, digits and dashes, at most %d", maxAdapter)
	}

	if report.ObservedGeneration < 1 {
		f.sayf("observed_generation", "has to be 1 or more")
	}

	switch {
	case report.ObservedTime.After(now.Add(maxAhead)):
		f.sayf("observed_time", "is more than %s ahead: look at the clock", maxAhead)
	case report.ObservedTime.Before(now.Add(-maxOld)):
		f.sayf("observed_time", "is more than %s old", maxOld)
	}

	if len(report.Conditions) > maxConditions {
		f.sayf("conditions", "has more than %d", maxConditions)
	}

	seen := map[string]bool{}

	for i, one := range report.Conditions {
		at := fmt.Sprintf("conditions[%d]", i)

		if one.Type == "" || len(one.Type) > maxType {
			f.sayf(at+".type", "has to have 1 to %d bytes", maxType)
		}

		if seen[one.Type] {
			f.sayf(at+".type", "%.100s is there twice", one.Type)
		}

		if one.Status != conditions.True && one.Status != conditions.False && one.Status != conditions.Unknown {
			f.sayf(at+".status", "has to be True, False or Unknown")
		}

		if len(one.Reason) > maxReason || len(one.Message) > maxMessage {
			f.sayf(at, "has a reason of more than %d bytes or a message of more than %d", maxReason, maxMessage)
		}

		seen[one.Type] = true
	}

	for _, needed := range []string{conditions.Available, conditions.Applied, conditions.Health} {
		if !seen[needed] {
			f.sayf("conditions", "%s is missing", needed)
		}
	}
}
