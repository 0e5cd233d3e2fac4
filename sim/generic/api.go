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

// maxBody bounds what callers send.
const maxBody = 64 << 10

// Job is what a command is told to do.
type Job struct {
	ID       string        `json:"id"`
	Source   string        `json:"source"`
	Name     string        `json:"name"`
	Labels   []string      `json:"labels"`
	Duration time.Duration `json:"duration"`          // nanoseconds that it takes
	Command  string        `json:"command,omitempty"` // run in place of waiting
}

// Started says who does a job.
type Started struct {
	By string `json:"by"`
}

// Finished says how a job went.
type Finished struct {
	Conclusion string `json:"conclusion"` // success, failure or cancelled
}

// routes serves what commands call.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /jobs/{id}", s.call("get", s.answerJob))
	mux.HandleFunc("POST /jobs/{id}/started", s.call("started", s.answerStarted))
	mux.HandleFunc("POST /jobs/{id}/finished", s.call("finished", s.answerFinished))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.core.Mu.Lock()
		defer s.core.Mu.Unlock()
		s.violate("unknown-path", r, "there is no such call")
		refuse(w, http.StatusNotImplemented, "there is no such call")
	})
	return mux
}

// answer is a reply; a breach is the caller's, and becomes a violation.
type answer struct {
	status int
	body   any
	breach string
}

// call counts a request, injects faults, and answers it under the lock.
func (s *Server) call(name string, handle func(*http.Request, *job) answer) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.core.Mu.Lock()
		defer s.core.Mu.Unlock()
		s.core.Requests[name]++
		if s.core.Chance(s.core.Faults().ServerError) {
			refuse(w, http.StatusBadGateway, "an injected fault")
			return
		}
		key := r.PathValue("id")
		j := s.find(func(j *job) bool { return j.Key == key })
		if j == nil {
			s.violate("request", r, "there is no job "+key)
			refuse(w, http.StatusNotFound, "there is no job "+key)
			return
		}
		out := handle(r, j)
		if out.breach != "" {
			s.violate("request", r, out.breach)
			refuse(w, out.status, out.breach)
			return
		}
		sendJSON(w, out.status, out.body)
	}
}

func (s *Server) answerJob(_ *http.Request, j *job) answer {
	return answer{status: http.StatusOK, body: Job{
		ID: j.Key, Source: j.Repo, Name: j.Name, Labels: slices.Clone(j.Labels), Duration: j.duration, Command: j.command,
	}}
}

func (s *Server) answerStarted(r *http.Request, j *job) answer {
	var said Started
	if err := readStrict(r, &said); err != nil {
		return answer{status: http.StatusBadRequest, breach: err.Error()}
	}
	if err := s.begin(j, said.By); err != nil {
		return s.tooLate(j, err)
	}
	return answer{status: http.StatusNoContent}
}

func (s *Server) answerFinished(r *http.Request, j *job) answer {
	var said Finished
	if err := readStrict(r, &said); err != nil {
		return answer{status: http.StatusBadRequest, breach: err.Error()}
	}
	if !slices.Contains([]string{success, failure, cancelled}, said.Conclusion) {
		return answer{status: http.StatusBadRequest, breach: "conclusion must be success, failure or cancelled"}
	}
	if err := s.end(j, said.Conclusion); err != nil {
		return s.tooLate(j, err)
	}
	return answer{status: http.StatusNoContent}
}

// tooLate answers a call about a job that is not in the state for it. That a job was
// cancelled its command cannot know.
func (s *Server) tooLate(j *job, err error) answer {
	if j.Conclusion == cancelled {
		return answer{status: http.StatusConflict, body: fault{Message: err.Error()}}
	}
	return answer{status: http.StatusConflict, breach: err.Error()}
}

// readStrict reads one JSON object without unknown fields.
func readStrict(r *http.Request, into any) error {
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != "application/json" {
		return errors.New("the body is not application/json by its Content-Type")
	}
	decoder := json.NewDecoder(io.LimitReader(r.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return errors.New("the body cannot be read: " + err.Error())
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the end of the body's JSON object")
	}
	return nil
}

type fault struct {
	Message string `json:"message"`
}

func refuse(w http.ResponseWriter, status int, message string) { sendJSON(w, status, fault{message}) }

func sendJSON(w http.ResponseWriter, status int, body any) {
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
