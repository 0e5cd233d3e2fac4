// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

// Condition types in the reports of adapters.
const (
	Available = "Available"
	Applied   = "Applied"
	Health    = "Health"
	Finalized = "Finalized"
)

// Values of the status of a condition.
const (
	True    = "True"
	False   = "False"
	Unknown = "Unknown"
)

// Reasons of Reconciled and LastKnownReconciled.
const (
	ReasonReconciledAll      = "ReconciledAll"
	ReasonMissingAdapters    = "ReconciledMissingAdapters"
	ReasonFailedAdapters     = "ReconciledFailedAdapters"
	ReasonWaitingForChildren = "ReconciledWaitingForChildren"
	ReasonReferenceMissing   = "ReferenceMissing"
	// ReasonDatabaseRestored means that the reports were dropped and that no adapter has reported since then.
	ReasonDatabaseRestored = "ReconciledDatabaseRestored"
	ReasonNeverReconciled  = "NeverReconciled"
	ReasonLastKnownAll     = "LastKnownAll"
	ReasonLastKnownFailed  = "LastKnownFailedAdapters"
)

// Input is everything that the conditions of a resource depend on.
type Input struct {
	// Generation is the generation of the resource. It is 1 or greater.
	Generation int32
	// UpdatedTime is when the resource got its current generation.
	UpdatedTime time.Time
	// Deleting is true if the deletion of the resource was requested.
	Deleting bool
	// Required are the names of the kind's required adapters.
	Required []string
	// Statuses are the newest reports of adapters, one per adapter, in any order. Reports of
	// adapters that are not required are ignored.
	Statuses []openapi.AdapterStatus
	// Children is the number of child resources, including those that are being deleted.
	Children int
	// Missing are the references without a target, in any order.
	Missing []MissingReference
	// Previous are the conditions that the resource has now.
	Previous []openapi.ResourceCondition
}

// MissingReference is a reference whose target does not exist or is being deleted.
type MissingReference struct {
	// Type is the type of the reference, ID the ID of its target. ID is empty if the resource has
	// fewer references of this type than its kind requires.
	Type, ID string
	// Since is when the target was deleted. It is zero if that time is unknown.
	Since time.Time
}

// Condition returns the condition of a type, and false if the list has none.
func Condition(list []openapi.ResourceCondition, conditionType string) (openapi.ResourceCondition, bool) {
	for _, condition := range list {
		if condition.Type == conditionType {
			return condition, true
		}
	}

	return openapi.ResourceCondition{}, false
}

// FindReported returns the condition of a type in a report. The result is empty if the report has none.
func FindReported(status openapi.AdapterStatus, conditionType string) openapi.AdapterCondition {
	for _, condition := range status.Conditions {
		if condition.Type == conditionType {
			return condition
		}
	}

	return openapi.AdapterCondition{}
}
