// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// toAPI converts a stored resource to the resource that the API returns.
func (s *Server) toAPI(r store.Resource) openapi.Resource {
	out := openapi.Resource{
		CreatedBy: r.CreatedBy, CreatedTime: r.CreatedTime, DeletedBy: r.DeletedBy, DeletedTime: r.DeletedTime,
		Generation: r.Generation, Href: s.buildHref(r.Kind, r.ID, r.OwnerKind, r.OwnerID), Id: r.ID, Kind: r.Kind,
		Labels: r.Labels, Name: r.Name, Spec: map[string]any{},
		Status:  openapi.ResourceStatus{Conditions: []openapi.ResourceCondition{}},
		Tenancy: r.Tenancy, UpdatedBy: r.UpdatedBy, UpdatedTime: r.UpdatedTime,
	}

	// The column has the type jsonb, so the spec always decodes.
	_ = json.Unmarshal(r.Spec, &out.Spec)

	if r.OwnerID != "" {
		out.OwnerReferences = &openapi.ResourceReference{
			Id: r.OwnerID, Kind: r.OwnerKind, Href: s.buildHref(r.OwnerKind, r.OwnerID, "", ""),
		}
	}

	if len(r.References) > 0 {
		out.References = map[string][]openapi.ResourceReference{}
	}

	for refType, targets := range r.References {
		list := make([]openapi.ResourceReference, 0, len(targets))
		for _, ref := range targets {
			list = append(list, openapi.ResourceReference{Id: ref.ID, Kind: ref.Kind, Href: s.buildHref(ref.Kind, ref.ID, "", "")})
		}

		out.References[refType] = list
	}

	out.Status.Conditions = append(out.Status.Conditions, r.Conditions...)

	return out
}

// buildHref returns the path of a resource, which is below its owner if it has one. If the kind is
// no longer registered, the path is below /resources.
func (s *Server) buildHref(kind, id, ownerKind, ownerID string) string {
	found := s.registry.ByKind(kind)
	if found == nil {
		return BasePath + "/resources/" + id
	}

	if owner := s.registry.ByKind(ownerKind); owner != nil && ownerID != "" {
		return BasePath + "/" + owner.Plural + "/" + ownerID + "/" + found.Plural + "/" + id
	}

	return BasePath + "/" + found.Plural + "/" + id
}
