// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// controlRoutes serves the control API of package control.
func (s *Server) controlRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sim/state", func(w http.ResponseWriter, _ *http.Request) { s.write(w, ok(s.State())) })
	mux.HandleFunc("GET /sim/violations", func(w http.ResponseWriter, _ *http.Request) {
		s.write(w, ok(append([]control.Violation{}, s.Violations()...)))
	})
	mux.HandleFunc("POST /sim/jobs", func(w http.ResponseWriter, r *http.Request) {
		var spec control.JobSpec
		if !s.readControl(w, r, &spec) {
			return
		}
		jobs, err := s.Queue(spec)
		if err != nil {
			s.write(w, fail(http.StatusUnprocessableEntity, err.Error()))
			return
		}
		s.write(w, reply{status: http.StatusCreated, body: jobs})
	})
	mux.HandleFunc("POST /sim/jobs/{id}/approve", s.controlJob(s.Approve))
	mux.HandleFunc("POST /sim/jobs/{id}/cancel", s.controlJob(s.Cancel))
	mux.HandleFunc("POST /sim/faults", func(w http.ResponseWriter, r *http.Request) {
		var faults control.Faults
		if !s.readControl(w, r, &faults) {
			return
		}
		if err := s.SetFaults(faults); err != nil {
			s.write(w, fail(http.StatusUnprocessableEntity, err.Error()))
			return
		}
		s.write(w, reply{status: http.StatusNoContent})
	})
	mux.HandleFunc("POST /sim/webhook", func(w http.ResponseWriter, r *http.Request) {
		var target control.WebhookTarget
		if s.readControl(w, r, &target) {
			s.SetWebhook(target)
			s.write(w, reply{status: http.StatusNoContent})
		}
	})
	return mux
}

func (s *Server) controlJob(act func(int64) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		if err == nil {
			err = act(id)
		}
		if err != nil {
			s.write(w, fail(http.StatusNotFound, err.Error()))
			return
		}
		s.write(w, reply{status: http.StatusNoContent})
	}
}

func (s *Server) readControl(w http.ResponseWriter, r *http.Request, into any) bool {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		s.write(w, fail(http.StatusBadRequest, "parse body: "+err.Error()))
		return false
	}
	return true
}
