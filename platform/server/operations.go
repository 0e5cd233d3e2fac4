// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"k8s.io/utils/ptr"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

// The generated interface has the operations on /resources. Requests to collections of kinds and
// below parents use the same operations. The request's scope says which resources the path names.
// The parameters that the generated code reads from the path are ignored.

// ListResources returns a page of resources.
func (s *Server) ListResources(w http.ResponseWriter, r *http.Request, params openapi.ListResourcesParams) {
	out, err := s.listResources(r.Context(), requestFromContext(r.Context()).scope, params)
	s.writeResponse(w, r, out, err)
}

// CreateResource creates a resource.
func (s *Server) CreateResource(w http.ResponseWriter, r *http.Request) {
	handleBody(s, w, r, s.createResource)
}

// GetResource returns a resource.
func (s *Server) GetResource(w http.ResponseWriter, r *http.Request, _ string, params openapi.GetResourceParams) {
	out, err := s.getResource(r.Context(), requestFromContext(r.Context()).scope, ptr.Deref(params.Search, ""))
	s.writeResponse(w, r, out, err)
}

// PatchResource changes a resource.
func (s *Server) PatchResource(w http.ResponseWriter, r *http.Request, _ string) {
	handleBody(s, w, r, s.patchResource)
}

// DeleteResource requests the deletion of a resource.
func (s *Server) DeleteResource(w http.ResponseWriter, r *http.Request, _ string) {
	out, err := s.deleteResource(r.Context(), requestFromContext(r.Context()).scope)
	s.writeResponse(w, r, out, err)
}

// ForceDeleteResource removes a resource that is being deleted.
func (s *Server) ForceDeleteResource(w http.ResponseWriter, r *http.Request, _ string) {
	handleBody(s, w, r, s.forceDeleteResource)
}

// ListResourceStatuses returns the statuses that adapters have reported for a resource.
func (s *Server) ListResourceStatuses(
	w http.ResponseWriter, r *http.Request, _ string, params openapi.ListResourceStatusesParams,
) {
	out, err := s.listStatuses(r.Context(), requestFromContext(r.Context()).scope, params)
	s.writeResponse(w, r, out, err)
}

// PutResourceStatus stores an adapter's report on a resource.
func (s *Server) PutResourceStatus(w http.ResponseWriter, r *http.Request, _ string) {
	handleBody(s, w, r, s.putStatus)
}

// ListChanges returns the changes after a cursor.
func (s *Server) ListChanges(w http.ResponseWriter, r *http.Request, params openapi.ListChangesParams) {
	out, err := s.listChanges(r.Context(), params)
	s.writeResponse(w, r, out, err)
}

// PutLease acquires, renews or releases a lease.
func (s *Server) PutLease(w http.ResponseWriter, r *http.Request, name string) {
	handleBody(s, w, r, func(ctx context.Context, _ scope, body openapi.LeaseRequest) (response, error) {
		return s.putLease(ctx, name, body)
	})
}

// handleBody decodes the body of a request and calls the operation with it.
func handleBody[T any](
	s *Server, w http.ResponseWriter, r *http.Request, do func(context.Context, scope, T) (response, error),
) {
	var body T
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		s.writeError(w, r, newMalformed(fmt.Errorf("decode JSON body: %w", err)))

		return
	}

	out, err := do(r.Context(), requestFromContext(r.Context()).scope, body)
	s.writeResponse(w, r, out, err)
}

// writeResponse writes the response of an operation, or its error.
func (s *Server) writeResponse(w http.ResponseWriter, r *http.Request, out response, err error) {
	if err == nil {
		err = out.write(w)
	}

	if err != nil {
		s.writeError(w, r, err)
	}
}

// response is the result of every operation: a status, and a body unless the status is 204.
type response struct {
	status int
	body   any
}

func (a response) write(w http.ResponseWriter) error {
	w.Header().Set("Cache-Control", "no-store")

	if a.body == nil {
		w.WriteHeader(a.status)

		return nil
	}

	var body bytes.Buffer
	if err := json.NewEncoder(&body).Encode(a.body); err != nil {
		return fmt.Errorf("encode response: %w", err)
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status)

	_, err := body.WriteTo(w)

	return err
}
