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

// mountRunnerProtocol mounts the private protocol of package protocol.
func (s *Server) mountRunnerProtocol(mux *http.ServeMux) {
	mux.HandleFunc("POST "+protocol.PathRegister, s.registerRunner)
	mux.HandleFunc("POST "+protocol.PathRemove, s.removeRegistration)
	mux.HandleFunc("POST "+protocol.PathToken, s.issueRunnerToken)
	mux.HandleFunc("POST "+protocol.PathSessions, s.withRunner(s.openSession))
	mux.HandleFunc("DELETE "+protocol.PathSessions+"/{session}", s.withRunner(s.closeSession))
	mux.HandleFunc("GET "+protocol.PathMessages, s.pollMessages)
	mux.HandleFunc("POST "+protocol.PathJobs+"/{job}/acquire", s.withRunner(s.acquireJob))
	mux.HandleFunc("POST "+protocol.PathJobs+"/{job}/renew", s.withRunner(s.renewJob))
	mux.HandleFunc("POST "+protocol.PathJobs+"/{job}/finish", s.withRunner(s.finishJob))
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if text, err := json.Marshal(body); err == nil && body != nil {
		_, _ = w.Write(text)
	}
}

func writeError(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, protocol.ErrorBody{Message: message})
}

func readJSON(w http.ResponseWriter, r *http.Request, result any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(result); err != nil {
		writeError(w, http.StatusBadRequest, "Problems parsing JSON")
		return false
	}
	return true
}

// findGrant returns the scope of the registration or removal token of a request. The scope must be
// that of address.
func (s *Server) findGrant(r *http.Request, address string, isRemoval bool) (scope, error) {
	kind, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	g := s.tokens[token]
	if !strings.EqualFold(kind, "RemoteAuth") || g == nil || g.isRemoval != isRemoval || !s.now().Before(g.expiresAt) {
		return scope{}, errors.New("http response code: NotFound from registration: the token is unknown or expired")
	}
	u, err := url.Parse(address)
	if err != nil {
		return scope{}, errors.New("the URL cannot be parsed")
	}
	path := strings.ToLower(strings.Trim(u.Path, "/"))
	if path != g.scope.String() {
		return scope{}, errors.New("http response code: NotFound from registration: the token is for another scope")
	}
	return g.scope, nil
}

func (s *Server) registerRunner(w http.ResponseWriter, r *http.Request) {
	var req protocol.RegisterRequest
	if !readJSON(w, r, &req) {
		return
	}
	s.lock()
	defer s.core.Mu.Unlock()
	if s.core.Occurs(s.core.Faults().RegistrationRefused) {
		writeError(w, http.StatusServiceUnavailable, "an injected fault rejects the registration")
		return
	}
	sc, err := s.findGrant(r, req.URL, forRegistration)
	if err != nil {
		writeError(w, http.StatusNotFound, err.Error())
		return
	}
	if text := checkRunnerName(req.Name); text != "" {
		writeError(w, http.StatusUnprocessableEntity, text)
		return
	}
	if !s.admitRegistration(sc) {
		writeError(w, http.StatusTooManyRequests, "too many runner registrations")
		return
	}
	group, found := s.findGroupByName(sc, req.Group)
	if !found {
		writeError(w, http.StatusNotFound, "could not find any self-hosted runner group named \""+req.Group+"\"")
		return
	}
	if old := s.findRunner(sc, req.Name); old != nil {
		if !req.Replace || old.isBusy() {
			writeError(w, http.StatusConflict, "a runner exists with the same name "+req.Name)
			return
		}
		s.unregisterRunner(old)
	}
	rn := s.newRunner(sc, req.Name, group)
	rn.ephemeral, rn.os = req.Ephemeral, "Linux"
	s.addRegistrationLabels(rn, req)
	blob, err := s.encodeConfig(rn, requestBaseURL(r), req.WorkFolder, req.DisableUpdate)
	if err != nil {
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	writeJSON(w, http.StatusCreated, protocol.RegisterResponse{EncodedConfig: blob})
}

func (s *Server) addRegistrationLabels(rn *runner, req protocol.RegisterRequest) {
	if !req.NoDefaultLabels {
		for _, name := range []string{"self-hosted", "Linux", "X64"} {
			s.addLabel(rn, name, readOnly)
		}
	}
	for _, name := range req.Labels {
		if name = strings.TrimSpace(name); name != "" {
			s.addLabel(rn, name, custom)
		}
	}
}

func (s *Server) findGroupByName(sc scope, name string) (*group, bool) {
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

func (s *Server) removeRegistration(w http.ResponseWriter, r *http.Request) {
	var req protocol.RemoveRequest
	if !readJSON(w, r, &req) {
		return
	}
	s.lock()
	defer s.core.Mu.Unlock()
	sc, err := s.findGrant(r, req.URL, forRemoval)
	if err != nil {
		writeError(w, http.StatusNotFound, err.Error())
		return
	}
	id, err := strconv.ParseInt(req.AgentID, 10, 64)
	rn := s.runners[id]
	switch {
	case err != nil || rn == nil || rn.scope != sc:
		writeError(w, http.StatusNotFound, "no such runner")
	case rn.isBusy():
		writeError(w, http.StatusUnprocessableEntity, "the runner is still running a job")
	default:
		s.unregisterRunner(rn)
		writeJSON(w, http.StatusNoContent, nil)
	}
}

// issueRunnerToken exchanges an assertion that is signed with the runner's key for an access token.
func (s *Server) issueRunnerToken(w http.ResponseWriter, r *http.Request) {
	var req protocol.TokenRequest
	if !readJSON(w, r, &req) {
		return
	}
	s.lock()
	defer s.core.Mu.Unlock()
	key, err := s.ensureRunnerKey()
	if err != nil {
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	claims, err := protocol.Verify(&key.PublicKey, req.Assertion)
	if err != nil || claims.Subject != req.ClientID {
		writeError(w, http.StatusUnauthorized, "the assertion is not signed by this runner")
		return
	}
	for _, rn := range s.runners {
		if rn.clientID != req.ClientID {
			continue
		}
		if rn.token == "" {
			rn.token = engine.RandomHex(24)
		}
		writeJSON(w, http.StatusOK, protocol.TokenResponse{AccessToken: rn.token})
		return
	}
	writeError(w, http.StatusNotFound, "the runner registration has been deleted from the server, please re-configure")
}

func (s *Server) findRunnerByToken(r *http.Request) *runner {
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

// withRunner returns a handler that finds the runner by its token and calls handle with the lock held.
func (s *Server) withRunner(handle func(http.ResponseWriter, *http.Request, *runner)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.lock()
		defer s.core.Mu.Unlock()
		rn := s.findRunnerByToken(r)
		if rn == nil {
			writeError(w, http.StatusUnauthorized, "the runner registration has been deleted from the server, please re-configure")
			return
		}
		handle(w, r, rn)
		s.advance(s.now())
		s.core.Wake()
	}
}

func (s *Server) openSession(w http.ResponseWriter, _ *http.Request, rn *runner) {
	if s.core.Occurs(s.core.Faults().RegistrationRefused) {
		writeError(w, http.StatusServiceUnavailable, "an injected fault rejects the session")
		return
	}
	if rn.session != "" {
		writeError(w, http.StatusConflict, "a session for this runner already exists")
		return
	}
	rn.session, rn.lastSeen = engine.NewUUID(), s.now()
	rn.os, rn.version = "Linux", runnerVersion
	writeJSON(w, http.StatusOK, protocol.SessionResponse{SessionID: rn.session})
}

func (s *Server) closeSession(w http.ResponseWriter, r *http.Request, rn *runner) {
	if rn.session != r.PathValue("session") {
		writeError(w, http.StatusNotFound, "no such session")
		return
	}
	if rn.job != nil && !rn.isBusy() {
		s.unassign(rn.job)
	}
	rn.session, rn.lastSeen = "", s.now()
	engine.Wake(rn.wake)
	writeJSON(w, http.StatusNoContent, nil)
}

// pollMessages responds when a job is assigned to the runner, or when the poll times out.
func (s *Server) pollMessages(w http.ResponseWriter, r *http.Request) {
	timeout := s.opts.Clock.After(s.opts.PollTimeout)
	session := r.URL.Query().Get("session")
	s.lock()
	rn := s.findRunnerByToken(r)
	if rn == nil || rn.session == "" || rn.session != session {
		s.core.Mu.Unlock()
		writeError(w, http.StatusUnauthorized, "no such session")
		return
	}
	rn.openPolls++
	s.advance(s.now())
	s.core.Mu.Unlock()
	message, isAlive := s.awaitJob(r.Context(), rn, session, timeout)
	s.core.Mu.Lock()
	rn.openPolls--
	rn.lastSeen = s.now()
	s.core.Mu.Unlock()
	s.core.Wake()
	switch {
	case !isAlive:
		writeError(w, http.StatusUnauthorized, "the session has ended")
	case message == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		writeJSON(w, http.StatusOK, message)
	}
}

// awaitJob returns the message for a job, or nil if the poll ends without a job. isAlive is false if
// the session has ended.
func (s *Server) awaitJob(
	ctx context.Context, rn *runner, session string, timeout <-chan time.Time,
) (message *protocol.Message, isAlive bool) {
	for {
		s.lock()
		isAlive = rn.session == session
		if j := rn.job; isAlive && j != nil && j.status == statusQueued {
			message = &protocol.Message{JobID: j.id, Name: j.name, Duration: j.duration, Command: j.command}
		}
		s.core.Mu.Unlock()
		if message != nil || !isAlive {
			return message, isAlive
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

// readJobRequest decodes a request about a job, and returns the job if it is assigned to the
// runner.
func (s *Server) readJobRequest(
	w http.ResponseWriter, r *http.Request, rn *runner,
) (assigned *job, request protocol.JobRequest, ok bool) {
	var req protocol.JobRequest
	if !readJSON(w, r, &req) {
		return nil, req, false
	}
	if rn.session == "" || req.SessionID != rn.session {
		writeError(w, http.StatusUnauthorized, "no such session")
		return nil, req, false
	}
	if rn.job == nil || strconv.FormatInt(rn.job.id, 10) != r.PathValue("job") {
		writeError(w, http.StatusNotFound, "the job is not assigned to this runner")
		return nil, req, false
	}
	rn.lastSeen = s.now()
	return rn.job, req, true
}

func (s *Server) acquireJob(w http.ResponseWriter, r *http.Request, rn *runner) {
	j, _, found := s.readJobRequest(w, r, rn)
	if !found {
		return
	}
	if j.status != statusQueued {
		writeError(w, http.StatusConflict, "the job is already acquired")
		return
	}
	s.startJob(j)
	writeJSON(w, http.StatusOK, protocol.JobResponse{})
}

func (s *Server) renewJob(w http.ResponseWriter, r *http.Request, rn *runner) {
	if j, _, found := s.readJobRequest(w, r, rn); found {
		writeJSON(w, http.StatusOK, protocol.JobResponse{Cancelled: j.cancelRequested})
	}
}

func (s *Server) finishJob(w http.ResponseWriter, r *http.Request, rn *runner) {
	j, req, found := s.readJobRequest(w, r, rn)
	if !found {
		return
	}
	conclusions := map[string]string{
		"succeeded": conclusionSuccess, "failed": conclusionFailure, "canceled": conclusionCancelled,
	}
	conclusion, ok := conclusions[req.Result]
	if !ok || j.status != statusInProgress {
		writeError(w, http.StatusUnprocessableEntity, "the result is unknown or the job is not running")
		return
	}
	s.completeJob(j, conclusion)
	s.finishRunner(rn)
	writeJSON(w, http.StatusOK, protocol.JobResponse{})
}
