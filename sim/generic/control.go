// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic

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
		sendJSON(w, http.StatusOK, append([]control.Violation{}, s.Violations()...))
	})
	mux.HandleFunc("POST /sim/jobs", func(w http.ResponseWriter, r *http.Request) {
		var spec control.JobSpec
		if err := readStrict(r, &spec); err != nil {
			refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		jobs, err := s.Queue(spec)
		if err != nil {
			refuse(w, http.StatusUnprocessableEntity, err.Error())
			return
		}
		sendJSON(w, http.StatusCreated, jobs)
	})
	mux.HandleFunc("POST /sim/jobs/{id}/approve", controlJob(s.Approve))
	mux.HandleFunc("POST /sim/jobs/{id}/cancel", controlJob(s.Cancel))
	mux.HandleFunc("POST /sim/faults", set(s.SetFaults))
	mux.HandleFunc("POST /sim/webhook", set(s.SetWebhook))
	return mux
}

func controlJob(act func(int64) error) http.HandlerFunc {
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

// set reads a body and hands it over.
func set[T any](use func(T) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var value T
		if err := readStrict(r, &value); err != nil {
			refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		if err := use(value); err != nil {
			refuse(w, http.StatusUnprocessableEntity, err.Error())
			return
		}
		sendJSON(w, http.StatusNoContent, nil)
	}
}
