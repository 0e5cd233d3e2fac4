// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
	"github.com/hyperfleet/hyperfleet/sim/github/protocol"
)

// runnerRoutes adds the private protocol of package protocol.
func (s *Server) runnerRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST "+protocol.PathRegister, s.runnerRegister)
	mux.HandleFunc("POST "+protocol.PathRemove, s.runnerRemove)
	mux.HandleFunc("POST "+protocol.PathToken, s.runnerToken)
	mux.HandleFunc("POST "+protocol.PathSessions, s.withRunner(s.sessionOpen))
	mux.HandleFunc("DELETE "+protocol.PathSessions+"/{session}", s.withRunner(s.sessionClose))
	mux.HandleFunc("GET "+protocol.PathMessages, s.runnerMessages)
	mux.HandleFunc("POST "+protocol.PathJobs+"/{job}/acquire", s.withRunner(s.jobAcquire))
	mux.HandleFunc("POST "+protocol.PathJobs+"/{job}/renew", s.withRunner(s.jobRenew))
	mux.HandleFunc("POST "+protocol.PathJobs+"/{job}/finish", s.withRunner(s.jobFinish))
}

func sendJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if text, err := json.Marshal(body); err == nil && body != nil {
		_, _ = w.Write(text)
	}
}

func refuse(w http.ResponseWriter, status int, message string) {
	sendJSON(w, status, protocol.Fault{Message: message})
}

func readJSON(w http.ResponseWriter, r *http.Request, into any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(into); err != nil {
		refuse(w, http.StatusBadRequest, "Problems parsing JSON")
		return false
	}
	return true
}

// grantFor checks a registration or removal token against the URL's scope.
func (s *Server) grantFor(r *http.Request, address string, remove bool) (scope, error) {
	kind, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	given := s.tokens[token]
	if !strings.EqualFold(kind, "RemoteAuth") || given == nil || given.remove != remove || !s.now().Before(given.expires) {
		return scope{}, errors.New("http response code: NotFound from registration: the token is unknown or expired")
	}
	u, err := url.Parse(address)
	if err != nil {
		return scope{}, errors.New("the URL cannot be parsed")
	}
	place := strings.ToLower(strings.Trim(u.Path, "/"))
	if place != given.scope.String() {
		return scope{}, errors.New("http response code: NotFound from registration: the token is for another place")
	}
	return given.scope, nil
}

func (s *Server) runnerRegister(w http.ResponseWriter, r *http.Request) {
	var req protocol.RegisterRequest
	if !readJSON(w, r, &req) {
		return
	}
	s.lock()
	defer s.core.Mu.Unlock()
	if s.core.Chance(s.core.Faults().RegistrationRefuse) {
		refuse(w, http.StatusServiceUnavailable, "registration is refused by a fault")
		return
	}
	sc, err := s.grantFor(r, req.URL, false)
	if err != nil {
		refuse(w, http.StatusNotFound, err.Error())
		return
	}
	if text := checkRunnerName(req.Name); text != "" {
		refuse(w, http.StatusUnprocessableEntity, text)
		return
	}
	if !s.admitRegistration(sc) {
		refuse(w, http.StatusTooManyRequests, "too many runner registrations")
		return
	}
	group, found := s.groupByName(sc, req.Group)
	if !found {
		refuse(w, http.StatusNotFound, "could not find any self-hosted runner group named \""+req.Group+"\"")
		return
	}
	if old := s.findRunner(sc, req.Name); old != nil {
		if !req.Replace || old.busy() {
			refuse(w, http.StatusConflict, "a runner exists with the same name "+req.Name)
			return
		}
		s.removeRunner(old)
	}
	rn := s.newRunner(sc, req.Name, group)
	rn.ephemeral, rn.os = req.Ephemeral, "Linux"
	s.labelRegistered(rn, req)
	blob, err := s.encodeConfig(rn, hostOf(r), req.WorkFolder, req.DisableUpdate)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	sendJSON(w, http.StatusCreated, protocol.RegisterReply{EncodedConfig: blob})
}

func (s *Server) labelRegistered(rn *runner, req protocol.RegisterRequest) {
	if !req.NoDefaultLabels {
		for _, name := range []string{"self-hosted", "Linux", "X64"} {
			s.addLabel(rn, name, true)
		}
	}
	for _, name := range req.Labels {
		if name = strings.TrimSpace(name); name != "" {
			s.addLabel(rn, name, false)
		}
	}
}

func (s *Server) groupByName(sc scope, name string) (*group, bool) {
	if name == "" || strings.EqualFold(name, defaultGroupName) {
		return nil, true
	}
	for _, g := range s.groups {
		if g.scope == sc && strings.EqualFold(g.name, name) {
			return g, true
		}
	}
	return nil, false
}

func (s *Server) runnerRemove(w http.ResponseWriter, r *http.Request) {
	var req protocol.RemoveRequest
	if !readJSON(w, r, &req) {
		return
	}
	s.lock()
	defer s.core.Mu.Unlock()
	sc, err := s.grantFor(r, req.URL, true)
	if err != nil {
		refuse(w, http.StatusNotFound, err.Error())
		return
	}
	id, err := strconv.ParseInt(req.AgentID, 10, 64)
	rn := s.runners[id]
	switch {
	case err != nil || rn == nil || rn.scope != sc:
		refuse(w, http.StatusNotFound, "no such runner")
	case rn.busy():
		refuse(w, http.StatusUnprocessableEntity, "the runner is still running a job")
	default:
		s.removeRunner(rn)
		sendJSON(w, http.StatusNoContent, nil)
	}
}

// runnerToken trades an assertion signed with the runner's key for a token.
func (s *Server) runnerToken(w http.ResponseWriter, r *http.Request) {
	var req protocol.TokenRequest
	if !readJSON(w, r, &req) {
		return
	}
	s.lock()
	defer s.core.Mu.Unlock()
	key, err := s.key()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	claims, err := protocol.Verify(&key.PublicKey, req.Assertion)
	if err != nil || claims.Subject != req.ClientID {
		refuse(w, http.StatusUnauthorized, "the assertion is not signed by this runner")
		return
	}
	for _, rn := range s.runners {
		if rn.clientID != req.ClientID {
			continue
		}
		if rn.token == "" {
			rn.token = engine.Hex(24)
		}
		sendJSON(w, http.StatusOK, protocol.TokenReply{AccessToken: rn.token})
		return
	}
	refuse(w, http.StatusNotFound, "the runner registration has been deleted from the server, please re-configure")
}

func (s *Server) runnerByToken(r *http.Request) *runner {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" {
		return nil
	}
	for _, rn := range s.runners {
		if rn.token == token {
			return rn
		}
	}
	return nil
}

// withRunner finds the runner by its token and runs fn under the lock.
func (s *Server) withRunner(fn func(http.ResponseWriter, *http.Request, *runner)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.lock()
		defer s.core.Mu.Unlock()
		rn := s.runnerByToken(r)
		if rn == nil {
			refuse(w, http.StatusUnauthorized, "the runner registration has been deleted from the server, please re-configure")
			return
		}
		fn(w, r, rn)
		s.advance(s.now())
		s.core.Kick()
	}
}

func (s *Server) sessionOpen(w http.ResponseWriter, _ *http.Request, rn *runner) {
	if s.core.Chance(s.core.Faults().RegistrationRefuse) {
		refuse(w, http.StatusServiceUnavailable, "the session is refused by a fault")
		return
	}
	if rn.session != "" {
		refuse(w, http.StatusConflict, "a session for this runner already exists")
		return
	}
	rn.session, rn.lastSeen = engine.UUID(), s.now()
	rn.os, rn.version = "Linux", runnerVersion
	sendJSON(w, http.StatusOK, protocol.SessionReply{SessionID: rn.session})
}

func (s *Server) sessionClose(w http.ResponseWriter, r *http.Request, rn *runner) {
	if rn.session != r.PathValue("session") {
		refuse(w, http.StatusNotFound, "no such session")
		return
	}
	if rn.job != nil && !rn.busy() {
		s.unassign(rn.job)
	}
	rn.session, rn.lastSeen = "", s.now()
	engine.Poke(rn.wake)
	sendJSON(w, http.StatusNoContent, nil)
}

// runnerMessages holds the poll until a job is offered.
func (s *Server) runnerMessages(w http.ResponseWriter, r *http.Request) {
	timeout := s.opts.Clock.After(s.opts.PollTimeout)
	session := r.URL.Query().Get("session")
	s.lock()
	rn := s.runnerByToken(r)
	if rn == nil || rn.session == "" || rn.session != session {
		s.core.Mu.Unlock()
		refuse(w, http.StatusUnauthorized, "no such session")
		return
	}
	rn.polls++
	s.advance(s.now())
	s.core.Mu.Unlock()
	message, alive := s.awaitJob(r.Context(), rn, session, timeout)
	s.core.Mu.Lock()
	rn.polls--
	rn.lastSeen = s.now()
	s.core.Mu.Unlock()
	s.core.Kick()
	switch {
	case !alive:
		refuse(w, http.StatusUnauthorized, "the session is over")
	case message == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		sendJSON(w, http.StatusOK, message)
	}
}

// awaitJob returns an offer, or nil when the poll ends; alive is false when the
// session is gone.
func (s *Server) awaitJob(
	ctx context.Context, rn *runner, session string, timeout <-chan time.Time,
) (message *protocol.Message, alive bool) {
	for {
		s.lock()
		alive = rn.session == session
		if j := rn.job; alive && j != nil && j.status == statusQueued {
			message = &protocol.Message{JobID: j.id, Name: j.name, Duration: j.duration, Command: j.command}
		}
		s.core.Mu.Unlock()
		if message != nil || !alive {
			return message, alive
		}
		select {
		case <-rn.wake:
		case <-timeout:
			return nil, true
		case <-ctx.Done():
			return nil, true
		case <-s.core.Done():
			return nil, true
		}
	}
}

// runnerJob reads the request and finds the runner's own job in it.
func (s *Server) runnerJob(w http.ResponseWriter, r *http.Request, rn *runner) (*job, protocol.JobRequest, bool) {
	var req protocol.JobRequest
	if !readJSON(w, r, &req) {
		return nil, req, false
	}
	if rn.session == "" || req.SessionID != rn.session {
		refuse(w, http.StatusUnauthorized, "no such session")
		return nil, req, false
	}
	if rn.job == nil || strconv.FormatInt(rn.job.id, 10) != r.PathValue("job") {
		refuse(w, http.StatusNotFound, "the job is not assigned to this runner")
		return nil, req, false
	}
	rn.lastSeen = s.now()
	return rn.job, req, true
}

func (s *Server) jobAcquire(w http.ResponseWriter, r *http.Request, rn *runner) {
	j, _, found := s.runnerJob(w, r, rn)
	if !found {
		return
	}
	if j.status != statusQueued {
		refuse(w, http.StatusConflict, "the job is already acquired")
		return
	}
	s.start(j)
	sendJSON(w, http.StatusOK, protocol.JobReply{})
}

func (s *Server) jobRenew(w http.ResponseWriter, r *http.Request, rn *runner) {
	if j, _, found := s.runnerJob(w, r, rn); found {
		sendJSON(w, http.StatusOK, protocol.JobReply{Cancelled: j.cancel})
	}
}

func (s *Server) jobFinish(w http.ResponseWriter, r *http.Request, rn *runner) {
	j, req, found := s.runnerJob(w, r, rn)
	if !found {
		return
	}
	conclusions := map[string]string{
		"succeeded": conclusionSuccess, "failed": conclusionFailure, "canceled": conclusionCancelled,
	}
	conclusion, known := conclusions[req.Result]
	if !known || j.status != statusInProgress {
		refuse(w, http.StatusUnprocessableEntity, "the result is unknown or the job is not running")
		return
	}
	s.complete(j, conclusion)
	s.runnerDone(rn)
	sendJSON(w, http.StatusOK, protocol.JobReply{})
}
