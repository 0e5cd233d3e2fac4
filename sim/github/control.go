// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"net/http"
	"strconv"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// controlRoutes serves the control API of package control.
func (s *Server) controlRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sim/state", func(w http.ResponseWriter, _ *http.Request) {
		sendJSON(w, http.StatusOK, s.State())
	})
	mux.HandleFunc("GET /sim/violations", func(w http.ResponseWriter, _ *http.Request) {
		list := s.Violations()
		if list == nil {
			list = []control.Violation{}
		}
		sendJSON(w, http.StatusOK, list)
	})
	mux.HandleFunc("POST /sim/jobs", func(w http.ResponseWriter, r *http.Request) {
		var spec control.JobSpec
		if !readJSON(w, r, &spec) {
			return
		}
		jobs, err := s.Queue(spec)
		if err != nil {
			refuse(w, http.StatusUnprocessableEntity, err.Error())
			return
		}
		sendJSON(w, http.StatusCreated, jobs)
	})
	mux.HandleFunc("POST /sim/jobs/{id}/approve", s.controlJob(s.Approve))
	mux.HandleFunc("POST /sim/jobs/{id}/cancel", s.controlJob(s.Cancel))
	mux.HandleFunc("POST /sim/faults", func(w http.ResponseWriter, r *http.Request) {
		var faults control.Faults
		if !readJSON(w, r, &faults) {
			return
		}
		if err := s.SetFaults(faults); err != nil {
			refuse(w, http.StatusUnprocessableEntity, err.Error())
			return
		}
		sendJSON(w, http.StatusNoContent, nil)
	})
	mux.HandleFunc("POST /sim/webhook", func(w http.ResponseWriter, r *http.Request) {
		var target control.WebhookTarget
		if readJSON(w, r, &target) {
			s.SetWebhook(target)
			sendJSON(w, http.StatusNoContent, nil)
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
			refuse(w, http.StatusNotFound, err.Error())
			return
		}
		sendJSON(w, http.StatusNoContent, nil)
	}
}
