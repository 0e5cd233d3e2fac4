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

// maxBody bounds request bodies.
const maxBody = 4 << 20

// Simulator is what the control API drives. Its methods may be called at the same time.
type Simulator interface {
	State() State
	Violations() []Violation
	Queue(spec JobSpec) ([]Job, error)
	Approve(job int64) error
	Cancel(job int64) error
	SetFaults(faults Faults) error
}

// Handler serves the control API for a simulator, whose webhooks setWebhook points at a
// target. It answers 400 to what it cannot read, unknown fields among them, 404 to jobs
// that are not there and 422 to what the simulator refuses, with the reason in "message".
func Handler(sim Simulator, setWebhook func(WebhookTarget) error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sim/state", func(w http.ResponseWriter, _ *http.Request) {
		send(w, http.StatusOK, sim.State())
	})
	mux.HandleFunc("GET /sim/violations", func(w http.ResponseWriter, _ *http.Request) {
		send(w, http.StatusOK, append([]Violation{}, sim.Violations()...))
	})
	mux.HandleFunc("POST /sim/jobs", func(w http.ResponseWriter, r *http.Request) {
		var jobs []Job
		if take(w, r, func(spec JobSpec) (err error) { jobs, err = sim.Queue(spec); return err }) {
			send(w, http.StatusCreated, jobs)
		}
	})
	mux.HandleFunc("POST /sim/jobs/{id}/approve", onJob(sim.Approve))
	mux.HandleFunc("POST /sim/jobs/{id}/cancel", onJob(sim.Cancel))
	mux.HandleFunc("POST /sim/faults", func(w http.ResponseWriter, r *http.Request) {
		if take(w, r, sim.SetFaults) {
			w.WriteHeader(http.StatusNoContent)
		}
	})
	mux.HandleFunc("POST /sim/webhook", func(w http.ResponseWriter, r *http.Request) {
		if take(w, r, setWebhook) {
			w.WriteHeader(http.StatusNoContent)
		}
	})
	return mux
}

// onJob does something to the job that the path names.
func onJob(act func(int64) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		if err == nil {
			err = act(id)
		}
		if err != nil {
			refuse(w, http.StatusNotFound, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// take reads a body and hands it over. When either fails it answers, and is false.
func take[T any](w http.ResponseWriter, r *http.Request, use func(T) error) bool {
	var value T
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&value)
	if err == nil {
		if _, end := decoder.Token(); !errors.Is(end, io.EOF) {
			err = errors.New("something follows the JSON value")
		}
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, errors.New("read the body: "+err.Error()))
		return false
	}
	if err := use(value); err != nil {
		refuse(w, http.StatusUnprocessableEntity, err)
		return false
	}
	return true
}

func refuse(w http.ResponseWriter, status int, err error) {
	send(w, status, map[string]string{"message": err.Error()})
}

func send(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if text, err := json.Marshal(body); err == nil {
		_, _ = w.Write(text)
	}
}
