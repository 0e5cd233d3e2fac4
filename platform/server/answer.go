// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
)

// answer is what every operation gives: a status and, but for 204, a body.
type answer struct {
	status int
	body   any
}

func (a answer) write(w http.ResponseWriter) error {
	w.Header().Set("Cache-Control", "no-store")

	if a.body == nil {
		w.WriteHeader(a.status)

		return nil
	}

	var body bytes.Buffer
	if err := json.NewEncoder(&body).Encode(a.body); err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status)

	_, err := body.WriteTo(w)

	return err
}

// What follows makes answer the answer of every operation of the generated interface.

// VisitListChangesResponse answers ListChanges.
func (a answer) VisitListChangesResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitPutLeaseResponse answers PutLease.
func (a answer) VisitPutLeaseResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitListResourcesResponse answers ListResources.
func (a answer) VisitListResourcesResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitCreateResourceResponse answers CreateResource.
func (a answer) VisitCreateResourceResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitDeleteResourceResponse answers DeleteResource.
func (a answer) VisitDeleteResourceResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitGetResourceResponse answers GetResource.
func (a answer) VisitGetResourceResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitPatchResourceResponse answers PatchResource.
func (a answer) VisitPatchResourceResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitForceDeleteResourceResponse answers ForceDeleteResource.
func (a answer) VisitForceDeleteResourceResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitListResourceStatusesResponse answers ListResourceStatuses.
func (a answer) VisitListResourceStatusesResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitPutResourceStatusResponse answers PutResourceStatus.
func (a answer) VisitPutResourceStatusResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitListKindResponse answers ListKind.
func (a answer) VisitListKindResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitCreateKindResponse answers CreateKind.
func (a answer) VisitCreateKindResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitDeleteKindResponse answers DeleteKind.
func (a answer) VisitDeleteKindResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitGetKindResponse answers GetKind.
func (a answer) VisitGetKindResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitPatchKindResponse answers PatchKind.
func (a answer) VisitPatchKindResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitForceDeleteKindResponse answers ForceDeleteKind.
func (a answer) VisitForceDeleteKindResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitListKindStatusesResponse answers ListKindStatuses.
func (a answer) VisitListKindStatusesResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitPutKindStatusResponse answers PutKindStatus.
func (a answer) VisitPutKindStatusResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitListChildrenResponse answers ListChildren.
func (a answer) VisitListChildrenResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitCreateChildResponse answers CreateChild.
func (a answer) VisitCreateChildResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitDeleteChildResponse answers DeleteChild.
func (a answer) VisitDeleteChildResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitGetChildResponse answers GetChild.
func (a answer) VisitGetChildResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitPatchChildResponse answers PatchChild.
func (a answer) VisitPatchChildResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitForceDeleteChildResponse answers ForceDeleteChild.
func (a answer) VisitForceDeleteChildResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitListChildStatusesResponse answers ListChildStatuses.
func (a answer) VisitListChildStatusesResponse(w http.ResponseWriter) error { return a.write(w) }

// VisitPutChildStatusResponse answers PutChildStatus.
func (a answer) VisitPutChildStatusResponse(w http.ResponseWriter) error { return a.write(w) }
