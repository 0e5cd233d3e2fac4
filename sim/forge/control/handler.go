// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
)

// maxBody is the maximum size of a request body in bytes.
const maxBody = 4 << 20

// Simulator is a simulator that the control API controls. Its methods may be called concurrently.
type Simulator interface {
	State() State
	Violations() []Violation
	Queue(spec JobSpec) ([]Job, error)
	Approve(job int64) error
	Cancel(job int64) error
	SetFaults(faults Faults) error
}

// NewHandler returns the handler of a simulator's control API. The handler calls setWebhook to set
// the target of the webhooks. It responds with 400 to a body that it cannot decode or that has an
// unknown field, with 404 if a job cannot be approved or cancelled, and with 422 to a request that
// the simulator rejects. The field "message" of these responses holds the reason.
func NewHandler(sim Simulator, setWebhook func(WebhookTarget) error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sim/state", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, sim.State())
	})
	mux.HandleFunc("GET /sim/violations", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, append([]Violation{}, sim.Violations()...))
	})
	mux.HandleFunc("POST /sim/jobs", func(w http.ResponseWriter, r *http.Request) {
		var jobs []Job
		if applyBody(w, r, func(spec JobSpec) (err error) { jobs, err = sim.Queue(spec); return err }) {
			writeJSON(w, http.StatusCreated, jobs)
		}
	})
	mux.HandleFunc("POST /sim/jobs/{id}/approve", newJobHandler(sim.Approve))
	mux.HandleFunc("POST /sim/jobs/{id}/cancel", newJobHandler(sim.Cancel))
	mux.HandleFunc("POST /sim/faults", func(w http.ResponseWriter, r *http.Request) {
		if applyBody(w, r, sim.SetFaults) {
			w.WriteHeader(http.StatusNoContent)
		}
	})
	mux.HandleFunc("POST /sim/webhook", func(w http.ResponseWriter, r *http.Request) {
		if applyBody(w, r, setWebhook) {
			w.WriteHeader(http.StatusNoContent)
		}
	})
	return mux
}

// newJobHandler returns a handler that calls act with the id of the job in the path.
func newJobHandler(act func(int64) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		if err == nil {
			err = act(id)
		}
		if err != nil {
			writeError(w, http.StatusNotFound, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// applyBody decodes a body and calls apply with the value. If either fails, it writes the error
// response and returns false.
func applyBody[T any](w http.ResponseWriter, r *http.Request, apply func(T) error) bool {
	var value T
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&value)
	if err == nil {
		if _, end := decoder.Token(); !errors.Is(end, io.EOF) {
			err = errors.New("unexpected data after the JSON value")
		}
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, errors.New("decode body: "+err.Error()))
		return false
	}
	if err := apply(value); err != nil {
		writeError(w, http.StatusUnprocessableEntity, err)
		return false
	}
	return true
}

func writeError(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, map[string]string{"message": err.Error()})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if text, err := json.Marshal(body); err == nil {
		_, _ = w.Write(text)
	}
}
