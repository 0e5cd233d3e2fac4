// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// State is the state of the cluster with its counts.
type State struct {
	pve.State

	Counts Counts `json:"counts"`
}

// Counts counts the objects that did not exist from the start.
type Counts struct {
	VMs          int `json:"vms"`
	Running      int `json:"running"`
	ISOs         int `json:"isos"`
	TasksRunning int `json:"tasksRunning"`
}

// Floor is the fastest possible run of identical jobs on the cluster.
type Floor struct {
	Input   pve.FloorInput `json:"input"`
	Seconds float64        `json:"seconds"`
}

const maxBody = 1 << 20

// Handler returns the handler of a simulator's control API.
func Handler(s *pve.Server) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sim/state", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, NewState(s)) })
	mux.HandleFunc("GET /sim/calls", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Counts()) })
	mux.HandleFunc("GET /sim/violations", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Violations()) })
	mux.HandleFunc("GET /sim/faults", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Faults()) })
	mux.HandleFunc("DELETE /sim/faults", func(w http.ResponseWriter, _ *http.Request) {
		s.ClearFaults()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /sim/faults", func(w http.ResponseWriter, r *http.Request) { addFaults(s, w, r) })
	mux.HandleFunc("GET /sim/floor", func(w http.ResponseWriter, r *http.Request) { serveFloor(s, w, r) })
	mux.HandleFunc("GET /sim/vm/{id}/log", func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.Atoi(r.PathValue("id"))
		if err != nil {
			http.Error(w, "the id of a VM must be a number", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, s.Console(id))
	})
	return mux
}

// NewState returns the response of GET /sim/state.
func NewState(s *pve.Server) State {
	out := State{State: s.Snapshot()}
	for _, v := range out.CreatedVMs() {
		out.Counts.VMs++
		if v.Status == "running" {
			out.Counts.Running++
		}
	}
	out.Counts.ISOs = len(out.ISOs())
	for _, t := range out.Tasks {
		if t.Exit == "" {
			out.Counts.TasksRunning++
		}
	}
	return out
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) //nolint:errchkjson // plain structs; the client may have disconnected
}

func addFaults(s *pve.Server, w http.ResponseWriter, r *http.Request) {
	var rules []pve.Fault
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&rules); err != nil {
		http.Error(w, fmt.Sprintf("decode faults: want a JSON list: %s", err), http.StatusBadRequest)
		return
	}
	for _, f := range rules {
		if err := f.Validate(); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	for _, f := range rules {
		s.AddFault(f)
	}
	w.WriteHeader(http.StatusNoContent)
}

func serveFloor(s *pve.Server, w http.ResponseWriter, r *http.Request) {
	jobs, err := strconv.Atoi(r.URL.Query().Get("jobs"))
	if err != nil || jobs < 0 {
		http.Error(w, "jobs must be a number, such as jobs=20", http.StatusBadRequest)
		return
	}
	job, err := time.ParseDuration(r.URL.Query().Get("job"))
	if err != nil {
		http.Error(w, "job must be a duration, such as job=90s", http.StatusBadRequest)
		return
	}
	input := s.FloorInput(jobs, job)
	writeJSON(w, Floor{Input: input, Seconds: pve.Floor(input).Seconds()})
}
