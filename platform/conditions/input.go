// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

// What adapters say of a resource.
const (
	Available = "Available"
	Applied   = "Applied"
	Health    = "Health"
	Finalized = "Finalized"
)

// Values of a condition's status.
const (
	True    = "True"
	False   = "False"
	Unknown = "Unknown"
)

// Reasons of Reconciled and LastKnownReconciled.
const (
	ReasonAll          = "ReconciledAll"
	ReasonMissing      = "ReconciledMissingAdapters"
	ReasonFailed       = "ReconciledFailedAdapters"
	ReasonWaiting      = "ReconciledWaitingForChildren"
	ReasonReference    = "ReferenceMissing"
	ReasonNeverYet     = "NeverReconciled"
	ReasonLastKnown    = "LastKnownAll"
	ReasonLastKnownBad = "LastKnownFailedAdapters"
)

// Input is all that the conditions follow from.
type Input struct {
	// Generation of the resource, 1 or more.
	Generation int32
	// UpdatedTime is when the generation became what it is.
	UpdatedTime time.Time
	// Deleting tells that deletion was asked for.
	Deleting bool
	// Required are the adapters that count.
	Required []string
	// Statuses are the newest reports of adapters, one each, in any order. Those of other
	// adapters are left aside.
	Statuses []openapi.AdapterStatus
	// Children counts all that are below the resource, also those that are being deleted.
	Children int
	// Missing are the references without a target, oldest first or not.
	Missing []MissingReference
	// Previous are the conditions that the resource has.
	Previous []openapi.ResourceCondition
}

// MissingReference is a reference whose target is gone or going.
type MissingReference struct {
	// Type of the reference, ID of the target; ID is empty where too few references are
	// left.
	Type, ID string
	// Since is when it went, zero if nobody knows any more.
	Since time.Time
}

// Condition finds a condition by its type.
func Condition(list []openapi.ResourceCondition, conditionType string) (openapi.ResourceCondition, bool) {
	for _, one := range list {
		if one.Type == conditionType {
			return one, true
		}
	}

	return openapi.ResourceCondition{}, false
}

// Reported finds what a report says under a type; empty if it says nothing.
func Reported(status openapi.AdapterStatus, conditionType string) openapi.AdapterCondition {
	for _, one := range status.Conditions {
		if one.Type == conditionType {
			return one
		}
	}

	return openapi.AdapterCondition{}
}
