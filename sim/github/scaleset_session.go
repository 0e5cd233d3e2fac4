// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// maxEvents is the maximum number of events in one message.
const maxEvents = 50

// setSession is the session of the one listener of a set.
type setSession struct {
	id, owner        string
	token            string
	tokenExpires     time.Time
	lastSeen         time.Time
	openPolls        int
	lastAcknowledged int64 // the last message
}

type setMessage struct {
	id   int64
	body string
}

// wakePolls wakes the open polls. The lock is held.
func (set *scaleSet) wakePolls() {
	close(set.wake)
	set.wake = make(chan struct{})
}

func (c *setCall) encodeSession(session *setSession) map[string]any {
	return map[string]any{
		"sessionId": session.id, "ownerName": session.owner, "runnerScaleSet": c.encodeSet(c.set),
		"messageQueueUrl":         requestBaseURL(c.r) + pathQueue + "?sessionId=" + session.id,
		"messageQueueAccessToken": session.token, "statistics": c.s.countSet(c.set),
	}
}

func (c *setCall) renewToken(session *setSession) {
	session.token, session.tokenExpires = engine.RandomHex(24), c.now.Add(c.s.opts.ScaleSets.QueueTokenLifetime)
	session.lastSeen = c.now
}

func (c *setCall) openSession() {
	var req struct {
		SessionID string `json:"sessionId"`
		Owner     string `json:"ownerName"`
	}
	if !c.readBody(&req) {
		return
	}
	if req.Owner == "" {
		c.addViolation(errors.New("ownerName of the session is empty"))
		writeException(c.w, http.StatusBadRequest, "VssPropertyValidationException", "ownerName is missing")
		return
	}
	if c.set.session != nil {
		writeException(c.w, http.StatusConflict, "RunnerScaleSetSessionConflictException",
			"The actions runner scaleset "+c.set.name+" already has an active session for owner "+c.set.session.owner+".")
		return
	}
	c.set.session = &setSession{id: engine.NewUUID(), owner: req.Owner}
	c.renewToken(c.set.session)
	writeJSON(c.w, http.StatusOK, c.encodeSession(c.set.session))
}

func (c *setCall) refreshSession() {
	if c.set.session == nil || c.set.session.id != c.r.PathValue("session") {
		writeException(c.w, http.StatusNotFound, "RunnerAdminException", "runner referenced a session ID that doesn't exist in redis")
		return
	}
	c.renewToken(c.set.session)
	writeJSON(c.w, http.StatusOK, c.encodeSession(c.set.session))
}

func (c *setCall) closeSession() {
	if c.set.session == nil || c.set.session.id != c.r.PathValue("session") {
		writeException(c.w, http.StatusBadRequest, "RunnerScaleSetSessionExpiredException",
			"The session identifier "+c.r.PathValue("session")+" is not valid.")
		return
	}
	c.set.session = nil
	c.set.wakePolls()
	writeJSON(c.w, http.StatusNoContent, nil)
}

// findSetByToken returns the set whose session has the token of the request. The lock is held.
func (s *Server) findSetByToken(r *http.Request) *scaleSet {
	token, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	for _, set := range s.scaling.sets {
		if isBearer && set.session != nil && set.session.token == token && s.now().Before(set.session.tokenExpires) {
			set.session.lastSeen = s.now()
			return set
		}
	}
	return nil
}

// authenticateQueue checks the message queue token of a call and returns its set with the server
// locked. If the token is invalid or a fault occurs, it writes the response, unlocks the server and
// returns nil.
func (s *Server) authenticateQueue(w http.ResponseWriter, r *http.Request, name string) *scaleSet {
	s.lock()
	s.core.Requests["scaleset "+name]++
	if s.core.Occurs(s.core.Faults().ServerError) {
		s.core.Mu.Unlock()
		writeException(w, http.StatusInternalServerError, "VssServiceException", "an injected fault")
		return nil
	}
	set := s.findSetByToken(r)
	if set != nil && s.core.Occurs(s.core.Faults().SessionLost) {
		set.endSession(loseMessages)
		set = nil
	}
	if set == nil {
		s.core.Mu.Unlock()
		writeException(w, http.StatusUnauthorized, "VssUnauthorizedException", "the message queue token is unknown or expired")
	}
	return set
}

// LoseSession ends the session of a scale set, as an outage does. If isLosingMessages is true, the set also
// loses the messages that were not acknowledged. LoseSession returns false if there is no such set.
func (s *Server) LoseSession(name string, isLosingMessages bool) bool {
	s.lock()
	defer s.core.Mu.Unlock()
	set := s.findSetByName(name)
	if set != nil {
		set.endSession(isLosingMessages)
	}
	return set != nil
}

// Capacity returns the capacity of the last poll of a scale set.
func (s *Server) Capacity(name string) int {
	s.lock()
	defer s.core.Mu.Unlock()
	if set := s.findSetByName(name); set != nil {
		return set.capacity
	}
	return 0
}

func (s *Server) findSetByName(name string) *scaleSet {
	for _, set := range s.scaling.sets {
		if strings.EqualFold(set.name, name) {
			return set
		}
	}
	return nil
}

// loseMessages is the value of endSession with which the set also loses the messages that were not acknowledged.
const loseMessages = true

func (set *scaleSet) endSession(isLosingMessages bool) {
	set.session = nil
	if isLosingMessages {
		set.events, set.messages = nil, nil
	}
	set.wakePolls()
}

// pollQueue responds when there is a message that the caller has not received, or when the poll
// times out.
func (s *Server) pollQueue(w http.ResponseWriter, r *http.Request) {
	timeout := s.opts.Clock.After(s.opts.PollTimeout)
	capacity, err := strconv.Atoi(r.Header.Get("X-Scalesetmaxcapacity"))
	if err != nil || capacity < 0 {
		s.addViolation("request", r.Method, r.URL.Path,
			fmt.Errorf("X-ScaleSetMaxCapacity is %q", r.Header.Get("X-Scalesetmaxcapacity")))
	}
	if got := r.Header.Get("Accept"); got != "application/json; api-version="+apiVersion {
		s.addViolation("request", r.Method, r.URL.Path, fmt.Errorf("header Accept is %q", got))
	}
	last, _ := strconv.ParseInt(r.URL.Query().Get("lastMessageId"), 10, 64)
	set := s.authenticateQueue(w, r, "message")
	if set == nil {
		return
	}
	session := set.session
	if session.id != r.URL.Query().Get("sessionId") {
		s.addViolationLocked("request", r.Method, r.URL.Path, errors.New("the query of the queue's URL is missing"))
	}
	if last < session.lastAcknowledged {
		s.addViolationLocked("request", r.Method, r.URL.Path,
			fmt.Errorf("lastMessageId is %d after %d", last, session.lastAcknowledged))
	}
	set.capacity = capacity
	session.openPolls++
	s.advance(s.now())
	s.core.Mu.Unlock()
	s.holdPoll(w, r, set, session, last, timeout)
}

func (s *Server) holdPoll(
	w http.ResponseWriter, r *http.Request, set *scaleSet, session *setSession, last int64, timeout <-chan time.Time,
) {
	defer func() {
		s.core.Mu.Lock()
		defer s.core.Mu.Unlock()
		session.openPolls--
		session.lastSeen = s.now()
		s.core.Wake()
	}()
	for {
		s.lock()
		isAlive, message, wake := set.session == session, set.nextMessage(last), set.wake
		counts := s.countSet(set)
		s.core.Mu.Unlock()
		switch {
		case !isAlive:
			writeException(w, http.StatusUnauthorized, "VssUnauthorizedException", "the session has ended")
			return
		case message != nil:
			writeJSON(w, http.StatusOK, map[string]any{
				"messageId": message.id, "messageType": "RunnerScaleSetJobMessages", "body": message.body, "statistics": counts,
			})
			return
		}
		select {
		case <-wake:
		case <-timeout:
			w.WriteHeader(http.StatusAccepted)
			return
		case <-r.Context().Done():
			return
		case <-s.core.Done():
			w.WriteHeader(http.StatusAccepted)
			return
		}
	}
}

// nextMessage returns the first message after last. If there is none, it creates a message from the
// waiting events. It returns nil if there are no events. The lock is held.
func (set *scaleSet) nextMessage(last int64) *setMessage {
	for i := range set.messages {
		if set.messages[i].id > last {
			return &set.messages[i]
		}
	}
	if len(set.events) == 0 {
		return nil
	}
	events := set.events[:min(len(set.events), maxEvents)]
	text, err := json.Marshal(events)
	if err != nil {
		return nil
	}
	set.events = slices.Clone(set.events[len(events):])
	set.lastID = max(set.lastID, last) + 1
	set.messages = append(set.messages, setMessage{set.lastID, string(text)})
	return &set.messages[len(set.messages)-1]
}

// acknowledgeMessage deletes a message. A fault may add its events to the queue again.
func (s *Server) acknowledgeMessage(w http.ResponseWriter, r *http.Request) {
	set := s.authenticateQueue(w, r, "acknowledge")
	if set == nil {
		return
	}
	defer s.core.Mu.Unlock()
	id, err := strconv.ParseInt(r.PathValue("message"), 10, 64)
	if err != nil {
		s.addViolationLocked("request", r.Method, r.URL.Path, fmt.Errorf("parse message id: %w", err))
	}
	set.session.lastAcknowledged = max(set.session.lastAcknowledged, id)
	for i, message := range set.messages {
		if message.id != id {
			continue
		}
		if s.core.Occurs(s.core.Faults().MessageRepeated) {
			var events []map[string]any
			if json.Unmarshal([]byte(message.body), &events) == nil {
				set.events = append(events, set.events...)
			}
		}
		set.messages = slices.Delete(set.messages, i, i+1)
		set.wakePolls()
		break
	}
	w.WriteHeader(http.StatusNoContent)
}

// acquireJobs acquires the offered jobs of a list that are still available.
func (s *Server) acquireJobs(w http.ResponseWriter, r *http.Request) {
	if got := r.URL.Query().Get("api-version"); got != apiVersion {
		s.addViolation("request", r.Method, r.URL.Path, fmt.Errorf("api-version is %q, want %s", got, apiVersion))
	}
	var ids []int64
	if !s.readStrict(w, r, &ids) {
		return
	}
	set := s.authenticateQueue(w, r, "acquirejobs")
	if set == nil {
		return
	}
	defer s.core.Mu.Unlock()
	got := []int64{}
	for _, j := range s.queue {
		if j.set == set && j.offer.state == offerOpen && slices.Contains(ids, j.offer.requestID) {
			got = append(got, j.offer.requestID)
			j.offer.state = offerAcquired
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"count": len(got), "value": got})
	s.advance(s.now())
}

// AddAbandonedSession opens a session of a scale set without a listener, as a listener that crashed
// leaves it.
func (s *Server) AddAbandonedSession(name string) error {
	s.lock()
	defer s.core.Mu.Unlock()
	set := s.findSetByName(name)
	if set == nil || set.session != nil {
		return fmt.Errorf("add abandoned session of scale set %q: there is no such set, or it has a session", name)
	}
	set.session = &setSession{id: engine.NewUUID(), owner: "gone", token: engine.RandomHex(24), lastSeen: s.now()}
	s.core.Wake()
	return nil
}
