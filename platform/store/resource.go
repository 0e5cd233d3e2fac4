// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/utils/ptr"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// Resource is a stored resource of any kind.
type Resource struct {
	// ID is a UUID; Insert gives one of version 7 to a resource without.
	ID   string
	Kind string
	// Name is the kind's own below one owner and in one tenancy, until the resource is
	// gone for good.
	Name string
	// Spec is a JSON object.
	Spec    json.RawMessage
	Labels  map[string]string
	Tenancy map[string]string
	// Generation begins at 1.
	Generation  int32
	CreatedTime time.Time
	UpdatedTime time.Time
	// DeletedTime is when deletion was asked for; nil if it was not.
	DeletedTime *time.Time
	CreatedBy   string
	UpdatedBy   string
	DeletedBy   string
	// OwnerID and OwnerKind are empty for a resource without owner.
	OwnerID   string
	OwnerKind string
	// References by type, in the order that they were given in.
	References map[string][]Ref
	// Conditions by type, in alphabetical order.
	Conditions []openapi.ResourceCondition
}

// Deleting tells whether deletion was asked for.
func (r Resource) Deleting() bool { return r.DeletedTime != nil }

// Ref is one reference to another resource, which may be gone.
type Ref struct {
	ID   string `json:"id"`
	Kind string `json:"kind"`
}

// InboundRef is a reference seen from its target. SourceDeleting: the source's own deletion
// was asked for.
type InboundRef = db.InboundReferencesRow

// maxTenancy bounds the JSON of a tenancy in bytes: it is part of the index of names,
// whose entries have at most some 2,700 bytes.
const maxTenancy = 1024

// stored is the resource as it comes back from the database: times in UTC and with
// microseconds, conditions by type, no nil maps.
func (r Resource) stored() Resource {
	r.CreatedTime, r.UpdatedTime = storedTime(r.CreatedTime), storedTime(r.UpdatedTime)

	if r.DeletedTime != nil {
		r.DeletedTime = new(storedTime(*r.DeletedTime))
	}

	r.Labels, r.Tenancy = orEmpty(r.Labels), orEmpty(r.Tenancy)
	r.Conditions = storedConditions(r.Conditions)

	return r
}

// storedTime is a time as PostgreSQL keeps it.
func storedTime(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

func storedConditions(conditions []openapi.ResourceCondition) []openapi.ResourceCondition {
	kept := slices.Clone(conditions)
	for i := range kept {
		kept[i].CreatedTime = storedTime(kept[i].CreatedTime)
		kept[i].LastUpdatedTime = storedTime(kept[i].LastUpdatedTime)
		kept[i].LastTransitionTime = storedTime(kept[i].LastTransitionTime)
	}

	slices.SortFunc(kept, func(a, b openapi.ResourceCondition) int { return cmp.Compare(a.Type, b.Type) })

	return kept
}

func orEmpty(values map[string]string) map[string]string {
	if values == nil {
		return map[string]string{}
	}

	return values
}

// byType gives conditions by their type.
func byType(conditions []openapi.ResourceCondition) (db.Conditions, error) {
	out := make(db.Conditions, len(conditions))

	for _, condition := range storedConditions(conditions) {
		if _, twice := out[condition.Type]; twice {
			return nil, fmt.Errorf("store conditions: %s is there twice", condition.Type)
		}

		out[condition.Type] = condition
	}

	return out, nil
}

func fromRow(row *db.ResourceRow) Resource {
	r := Resource{
		ID: row.ID, Kind: row.Kind, Name: row.Name, Spec: row.Spec, Labels: row.Labels, Tenancy: row.Tenancy,
		Generation: row.Generation, CreatedTime: row.CreatedTime, UpdatedTime: row.UpdatedTime, DeletedTime: row.DeletedTime,
		CreatedBy: row.CreatedBy, UpdatedBy: row.UpdatedBy, DeletedBy: row.DeletedBy,
		OwnerID: ptr.Deref(row.OwnerID, ""), OwnerKind: ptr.Deref(row.OwnerKind, ""),
	}

	for _, condition := range row.Conditions {
		// One that another version of the program has written since may be later.
		if at := row.Reported[condition.Type]; at.After(condition.LastUpdatedTime) {
			condition.LastUpdatedTime = at
		}

		r.Conditions = append(r.Conditions, condition)
	}

	for _, ref := range row.Refs {
		if r.References == nil {
			r.References = map[string][]Ref{}
		}

		r.References[ref.Type] = append(r.References[ref.Type], Ref{ID: ref.ID, Kind: ref.Kind})
	}

	return r.stored()
}

func fromRows(rows []db.ResourceRow) []Resource {
	resources := make([]Resource, 0, len(rows))
	for i := range rows {
		resources = append(resources, fromRow(&rows[i]))
	}

	return resources
}

func toPointer(s string) *string {
	if s == "" {
		return nil
	}

	return &s
}
