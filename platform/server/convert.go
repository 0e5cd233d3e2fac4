// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// resourceBody is a resource as the API returns it. Its spec is the text of the database, because decoded
// JSON takes many times the memory of its text.
type resourceBody struct {
	openapi.Resource

	Spec json.RawMessage `json:"spec"`
}

func (s *Server) toAPI(r store.Resource) (resourceBody, error) {
	out := s.newBody(r)

	status, err := json.Marshal(out.Status)
	if err != nil {
		return out, fmt.Errorf("encode status of %s: %w", r.ID, err)
	}

	desired := out.Resource
	desired.Status = openapi.ResourceStatus{}

	rest, err := json.Marshal(desired)
	if err != nil {
		return out, fmt.Errorf("encode resource %s: %w", r.ID, err)
	}

	out.Etag = `"` + digest(out.Spec, rest) + "." + digest(status) + `"`

	return out, nil
}

// digest returns the first 72 bits of a SHA-256 of texts.
func digest(texts ...[]byte) string {
	hash := sha256.New()

	for _, text := range texts {
		sum := sha256.Sum256(text)
		hash.Write(sum[:])
	}

	return base64.RawURLEncoding.EncodeToString(hash.Sum(nil)[:9])
}

// newBody returns the resource without its ETag.
func (s *Server) newBody(r store.Resource) resourceBody {
	out := openapi.Resource{
		CreatedBy: r.CreatedBy, CreatedTime: r.CreatedTime, DeletedBy: r.DeletedBy, DeletedTime: r.DeletedTime,
		Generation: r.Generation, Href: s.buildHref(r.Kind, r.ID, r.OwnerKind, r.OwnerID), Id: r.ID, Kind: r.Kind,
		Labels: r.Labels, Name: r.Name,
		Status:  openapi.ResourceStatus{Conditions: []openapi.ResourceCondition{}},
		Tenancy: r.Tenancy, UpdatedBy: r.UpdatedBy, UpdatedTime: r.UpdatedTime,
	}

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

	return resourceBody{out, r.Spec}
}

func (s *Server) newResponse(status int, r store.Resource) (response, error) {
	body, err := s.toAPI(r)

	return response{status: status, body: body, etag: body.Etag}, err
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
