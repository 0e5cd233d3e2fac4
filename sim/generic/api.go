// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"time"
)

// maxBody is the maximum size of a request body in bytes.
const maxBody = 64 << 10

// Job is the job that a command receives.
type Job struct {
	ID       string        `json:"id"`
	Source   string        `json:"source"`
	Name     string        `json:"name"`
	Labels   []string      `json:"labels"`
	Duration time.Duration `json:"duration"`          // nanoseconds that the job takes
	Command  string        `json:"command,omitempty"` // the command is run instead of waiting
}

// StartRequest names the host that runs a job.
type StartRequest struct {
	By string `json:"by"`
}

// FinishRequest holds the result of a job.
type FinishRequest struct {
	Conclusion string `json:"conclusion"` // success, failure or cancelled
}

// newHandler returns the handler of the calls of commands.
func (s *Server) newHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /jobs/{id}", s.newCallHandler("get", s.getJob))
	mux.HandleFunc("POST /jobs/{id}/started", s.newCallHandler("started", s.startCallJob))
	mux.HandleFunc("POST /jobs/{id}/finished", s.newCallHandler("finished", s.finishCallJob))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.core.Mu.Lock()
		defer s.core.Mu.Unlock()
		s.addViolation("unknown-path", r, "the simulator does not serve this call")
		writeError(w, http.StatusNotImplemented, "the simulator does not serve this call")
	})
	return mux
}

// response is a response. violation is the violation of the contract by the caller, or empty.
type response struct {
	status    int
	body      any
	violation string
}

// newCallHandler returns a handler that counts a request, injects faults, and calls handle with the
// lock held.
func (s *Server) newCallHandler(name string, handle func(*http.Request, *job) response) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.core.Mu.Lock()
		defer s.core.Mu.Unlock()
		s.core.Requests[name]++
		if s.core.Occurs(s.core.Faults().ServerError) {
			writeError(w, http.StatusBadGateway, "an injected fault")
			return
		}
		key := r.PathValue("id")
		j := s.findJob(func(j *job) bool { return j.Key == key })
		if j == nil {
			s.addViolation("request", r, "there is no job "+key)
			writeError(w, http.StatusNotFound, "there is no job "+key)
			return
		}
		out := handle(r, j)
		if out.violation != "" {
			s.addViolation("request", r, out.violation)
			writeError(w, out.status, out.violation)
			return
		}
		writeJSON(w, out.status, out.body)
	}
}

func (s *Server) getJob(_ *http.Request, j *job) response {
	return response{status: http.StatusOK, body: Job{
		ID: j.Key, Source: j.Repo, Name: j.Name, Labels: slices.Clone(j.Labels), Duration: j.duration, Command: j.command,
	}}
}

func (s *Server) startCallJob(r *http.Request, j *job) response {
	var req StartRequest
	if err := decodeStrict(r, &req); err != nil {
		return response{status: http.StatusBadRequest, violation: err.Error()}
	}
	if err := s.startJob(j, req.By); err != nil {
		return s.newConflict(j, err)
	}
	return response{status: http.StatusNoContent}
}

func (s *Server) finishCallJob(r *http.Request, j *job) response {
	var req FinishRequest
	if err := decodeStrict(r, &req); err != nil {
		return response{status: http.StatusBadRequest, violation: err.Error()}
	}
	if !slices.Contains([]string{conclusionSuccess, conclusionFailure, conclusionCancelled}, req.Conclusion) {
		return response{status: http.StatusBadRequest, violation: "conclusion must be success, failure or cancelled"}
	}
	if err := s.finishJob(j, req.Conclusion); err != nil {
		return s.newConflict(j, err)
	}
	return response{status: http.StatusNoContent}
}

// newConflict responds to a call that the state of the job does not allow. If the job was
// cancelled, the call is not a violation, because its command does not know about the cancellation.
func (s *Server) newConflict(j *job, err error) response {
	if j.Conclusion == conclusionCancelled {
		return response{status: http.StatusConflict, body: errorBody{Message: err.Error()}}
	}
	return response{status: http.StatusConflict, violation: err.Error()}
}

// decodeStrict decodes one JSON object without unknown fields.
func decodeStrict(r *http.Request, target any) error {
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != "application/json" {
		return errors.New("the Content-Type of the body is not application/json")
	}
	decoder := json.NewDecoder(io.LimitReader(r.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(target); err != nil {
		return errors.New("decode body: " + err.Error())
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected data after the JSON object")
	}
	return nil
}

type errorBody struct {
	Message string `json:"message"`
}

func writeError(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, errorBody{message})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	if body == nil {
		w.WriteHeader(status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if text, err := json.Marshal(body); err == nil {
		_, _ = w.Write(text)
	}
}
