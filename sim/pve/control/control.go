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

// State is everything the cluster holds, and how much of it.
type State struct {
	pve.State

	Counts Counts `json:"counts"`
}

// Counts leaves out what was there from the start.
type Counts struct {
	VMs          int `json:"vms"`
	Running      int `json:"running"`
	ISOs         int `json:"isos"`
	TasksRunning int `json:"tasksRunning"`
}

// Floor is the fastest possible run of identical jobs on this cluster.
type Floor struct {
	Input   pve.FloorInput `json:"input"`
	Seconds float64        `json:"seconds"`
}

const maxBody = 1 << 20

// Handler serves the control API of a simulator.
func Handler(s *pve.Server) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sim/state", func(w http.ResponseWriter, _ *http.Request) { send(w, StateOf(s)) })
	mux.HandleFunc("GET /sim/calls", func(w http.ResponseWriter, _ *http.Request) { send(w, s.Counts()) })
	mux.HandleFunc("GET /sim/violations", func(w http.ResponseWriter, _ *http.Request) { send(w, s.Violations()) })
	mux.HandleFunc("GET /sim/faults", func(w http.ResponseWriter, _ *http.Request) { send(w, s.Faults()) })
	mux.HandleFunc("DELETE /sim/faults", func(w http.ResponseWriter, _ *http.Request) {
		s.ClearFaults()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /sim/faults", func(w http.ResponseWriter, r *http.Request) { addFaults(s, w, r) })
	mux.HandleFunc("GET /sim/floor", func(w http.ResponseWriter, r *http.Request) { floor(s, w, r) })
	mux.HandleFunc("GET /sim/vm/{id}/log", func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.Atoi(r.PathValue("id"))
		if err != nil {
			http.Error(w, "the id of a VM is a number", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, s.Console(id))
	})
	return mux
}

// StateOf is what GET /sim/state answers.
func StateOf(s *pve.Server) State {
	out := State{State: s.Snapshot()}
	for _, v := range out.Made() {
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

func send(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) //nolint:errchkjson // plain structs; a reader that has gone is no matter
}

func addFaults(s *pve.Server, w http.ResponseWriter, r *http.Request) {
	var rules []pve.Fault
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&rules); err != nil {
		http.Error(w, fmt.Sprintf("want a list of faults: %s", err), http.StatusBadRequest)
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

func floor(s *pve.Server, w http.ResponseWriter, r *http.Request) {
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
	in := s.FloorInput(jobs, job)
	send(w, Floor{Input: in, Seconds: pve.Floor(in).Seconds()})
}
