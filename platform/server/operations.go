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

// The generated interface has the operations on /resources. Those on collections of kinds
// and below parents come in here, too: which resources a path names is in the request's
// scope, not in what the generated code has read of the path.

// ListResources answers a page of them.
func (s *Server) ListResources(w http.ResponseWriter, r *http.Request, params openapi.ListResourcesParams) {
	out, err := s.list(r.Context(), about(r.Context()).scope, params)
	s.reply(w, r, out, err)
}

// CreateResource makes one.
func (s *Server) CreateResource(w http.ResponseWriter, r *http.Request) { withBody(s, w, r, s.create) }

// GetResource answers one.
func (s *Server) GetResource(w http.ResponseWriter, r *http.Request, _ string, params openapi.GetResourceParams) {
	out, err := s.get(r.Context(), about(r.Context()).scope, ptr.Deref(params.Search, ""))
	s.reply(w, r, out, err)
}

// PatchResource changes one.
func (s *Server) PatchResource(w http.ResponseWriter, r *http.Request, _ string) {
	withBody(s, w, r, s.patch)
}

// DeleteResource asks for the deletion of one.
func (s *Server) DeleteResource(w http.ResponseWriter, r *http.Request, _ string) {
	out, err := s.remove(r.Context(), about(r.Context()).scope)
	s.reply(w, r, out, err)
}

// ForceDeleteResource removes one that is being deleted.
func (s *Server) ForceDeleteResource(w http.ResponseWriter, r *http.Request, _ string) {
	withBody(s, w, r, s.forceDelete)
}

// ListResourceStatuses answers the reports on one.
func (s *Server) ListResourceStatuses(
	w http.ResponseWriter, r *http.Request, _ string, params openapi.ListResourceStatusesParams,
) {
	out, err := s.statuses(r.Context(), about(r.Context()).scope, params)
	s.reply(w, r, out, err)
}

// PutResourceStatus takes a report on one.
func (s *Server) PutResourceStatus(w http.ResponseWriter, r *http.Request, _ string) {
	withBody(s, w, r, s.report)
}

// ListChanges answers what happened after a cursor.
func (s *Server) ListChanges(w http.ResponseWriter, r *http.Request, params openapi.ListChangesParams) {
	out, err := s.changes(r.Context(), params)
	s.reply(w, r, out, err)
}

// PutLease gives, renews or takes back a lease.
func (s *Server) PutLease(w http.ResponseWriter, r *http.Request, name string) {
	withBody(s, w, r, func(ctx context.Context, _ scope, ask openapi.LeaseRequest) (answer, error) {
		return s.lease(ctx, name, ask)
	})
}

// withBody answers an operation that takes a body.
func withBody[T any](
	s *Server, w http.ResponseWriter, r *http.Request, do func(context.Context, scope, T) (answer, error),
) {
	var body T
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		s.fail(w, r, malformed(fmt.Errorf("read JSON body: %w", err)))

		return
	}

	out, err := do(r.Context(), about(r.Context()).scope, body)
	s.reply(w, r, out, err)
}

// reply writes an answer, or what went wrong.
func (s *Server) reply(w http.ResponseWriter, r *http.Request, out answer, err error) {
	if err == nil {
		err = out.write(w)
	}

	if err != nil {
		s.fail(w, r, err)
	}
}

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
