// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

// putLease acquires, renews or releases a lease.
func (s *Server) putLease(r *http.Request) (response, error) {
	name := r.PathValue("name")

	body, err := decodeBody[openapi.LeaseRequest](r)
	if err != nil {
		return response{}, err
	}

	lease, err := s.store.PutLease(r.Context(), name, body.Holder, time.Duration(body.TtlSeconds)*time.Second)
	if err != nil {
		return response{}, err
	}

	if previous, isKnown := s.holders.Get(name); isKnown && previous == lease.Holder {
		requestFromContext(r.Context()).isQuiet = true
	}

	s.holders.Add(name, lease.Holder)

	lease.ExpiresInSeconds = max(lease.ExpiresInSeconds, 0)

	return response{status: http.StatusOK, body: lease}, nil
}
