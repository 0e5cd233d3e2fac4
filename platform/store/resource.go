// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

// Resource is a stored resource of any kind.
type Resource struct {
	// ID is a UUID. Insert sets a UUID of version 7 if it is empty.
	ID   string
	Kind string
	// Name is unique among the resources of a kind with the same owner and tenancy. It can be used
	// again after the resource was removed.
	Name string
	// Spec is a JSON object.
	Spec    json.RawMessage
	Labels  map[string]string
	Tenancy map[string]string
	// Generation begins at 1.
	Generation  int32
	CreatedTime time.Time
	UpdatedTime time.Time
	// DeletedTime is when the deletion was requested. It is nil if it was not.
	DeletedTime *time.Time
	CreatedBy   string
	UpdatedBy   string
	DeletedBy   string
	// OwnerID and OwnerKind are empty for a resource without an owner.
	OwnerID   string
	OwnerKind string
	// References are the references by type, in the order in which they were set.
	References map[string][]Ref `db:"-"`
	// Conditions are sorted by type.
	Conditions []openapi.ResourceCondition `db:"-"`
}

// IsDeleting returns true if the deletion of the resource was requested.
func (r Resource) IsDeleting() bool { return r.DeletedTime != nil }

// Ref is a reference to another resource, which may have been removed.
type Ref struct {
	ID   string `json:"id"`
	Kind string `json:"kind"`
}

// InboundRef is a reference as its target sees it.
type InboundRef struct {
	SourceID, SourceKind, Type string
	// SourceDeleting is true if the deletion of the source was requested.
	SourceDeleting bool
}

// maxTenancy is the maximum size of a tenancy's JSON in bytes. The tenancy is part of the index of
// names, whose entries have at most about 2,700 bytes.
const maxTenancy = 1024

// normalize returns the resource as the database would return it: times are in UTC with
// microseconds, conditions are sorted by type, and no map is nil.
func (r Resource) normalize() Resource {
	r.CreatedTime, r.UpdatedTime = normalizeTime(r.CreatedTime), normalizeTime(r.UpdatedTime)

	if r.DeletedTime != nil {
		r.DeletedTime = new(normalizeTime(*r.DeletedTime))
	}

	r.Labels, r.Tenancy = orEmpty(r.Labels), orEmpty(r.Tenancy)
	r.Conditions = normalizeConditions(r.Conditions)

	return r
}

// normalizeTime returns a time as PostgreSQL stores it.
func normalizeTime(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

func normalizeConditions(conditions []openapi.ResourceCondition) []openapi.ResourceCondition {
	normalized := slices.Clone(conditions)
	for i := range normalized {
		normalized[i].CreatedTime = normalizeTime(normalized[i].CreatedTime)
		normalized[i].LastUpdatedTime = normalizeTime(normalized[i].LastUpdatedTime)
		normalized[i].LastTransitionTime = normalizeTime(normalized[i].LastTransitionTime)
	}

	slices.SortFunc(normalized, func(a, b openapi.ResourceCondition) int { return cmp.Compare(a.Type, b.Type) })

	return normalized
}

func orEmpty(values map[string]string) map[string]string {
	if values == nil {
		return map[string]string{}
	}

	return values
}

// conditionsByType returns conditions by type. It returns an error if a type is listed more than
// once.
func conditionsByType(conditions []openapi.ResourceCondition) (map[string]openapi.ResourceCondition, error) {
	out := make(map[string]openapi.ResourceCondition, len(conditions))

	for _, condition := range normalizeConditions(conditions) {
		if _, isDuplicate := out[condition.Type]; isDuplicate {
			return nil, fmt.Errorf("store conditions: %s is listed more than once", condition.Type)
		}

		out[condition.Type] = condition
	}

	return out, nil
}

// resourceColumns has a column for each field of resourceRow. They are listed by name, so that a replica of an earlier
// version keeps working while a later version adds columns.
const resourceColumns = `r.id, r.kind, r.name, r.spec, r.labels, r.tenancy, r.generation,
	coalesce(r.owner_id::text, '') as owner_id, coalesce(r.owner_kind, '') as owner_kind,
	r.conditions as conditions_by_type, r.reported, r.refs,
	r.created_time, r.updated_time, r.deleted_time, r.created_by, r.updated_by, r.deleted_by`

// resourceRow is a row of the view resource_rows.
type resourceRow struct {
	Resource

	ConditionsByType map[string]openapi.ResourceCondition
	// Reported has the times at which unchanged conditions were last reported, by type.
	Reported map[string]time.Time
	Refs     []struct {
		Ref

		Type string `json:"type"`
	}
}

func toResource(from pgx.CollectableRow) (Resource, error) {
	row, err := pgx.RowToStructByName[resourceRow](from)
	r := row.Resource

	for _, condition := range row.ConditionsByType {
		// If another version of the program has written the condition since, its time may be later.
		if reportedTime := row.Reported[condition.Type]; reportedTime.After(condition.LastUpdatedTime) {
			condition.LastUpdatedTime = reportedTime
		}

		r.Conditions = append(r.Conditions, condition)
	}

	for _, ref := range row.Refs {
		if r.References == nil {
			r.References = map[string][]Ref{}
		}

		r.References[ref.Type] = append(r.References[ref.Type], ref.Ref)
	}

	return r.normalize(), err
}

func toPointer(s string) *string {
	if s == "" {
		return nil
	}

	return &s
}
