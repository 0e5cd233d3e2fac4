// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"encoding/json"
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
		if !readControl(w, r, &spec) {
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
		if !readControl(w, r, &faults) {
			return
		}
		if err := s.SetFaults(faults); err != nil {
			refuse(w, http.StatusUnprocessableEntity, err.Error())
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /sim/webhook", func(w http.ResponseWriter, r *http.Request) {
		var target control.WebhookTarget
		if readControl(w, r, &target) {
			s.SetWebhook(target)
			w.WriteHeader(http.StatusNoContent)
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
		w.WriteHeader(http.StatusNoContent)
	}
}

func readControl(w http.ResponseWriter, r *http.Request, into any) bool {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		refuse(w, http.StatusBadRequest, "read the body: "+err.Error())
		return false
	}
	return true
}

func sendJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if text, err := json.Marshal(body); err == nil {
		_, _ = w.Write(text)
	}
}

func refuse(w http.ResponseWriter, status int, message string) {
	sendJSON(w, status, map[string]string{"message": message})
}
