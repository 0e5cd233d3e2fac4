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

// maxEvents of one message.
const maxEvents = 50

// setSession is the one listener of a set.
type setSession struct {
	id, owner    string
	token        string
	tokenExpires time.Time
	seen         time.Time
	polls        int
	acknowledged int64 // the last message
}

type setMessage struct {
	id   int64
	body string
}

// changed wakes held polls. The lock is held.
func (set *scaleSet) changed() {
	close(set.wake)
	set.wake = make(chan struct{})
}

func (c *setCall) sessionJSON(session *setSession) map[string]any {
	return map[string]any{
		"sessionId": session.id, "ownerName": session.owner, "runnerScaleSet": c.setJSON(c.set),
		"messageQueueUrl":         hostOf(c.r) + pathQueue + "?sessionId=" + session.id,
		"messageQueueAccessToken": session.token, "statistics": c.s.countSet(c.set),
	}
}

func (c *setCall) renew(session *setSession) {
	session.token, session.tokenExpires = engine.Hex(24), c.now.Add(c.s.opts.ScaleSets.QueueTokenLife)
	session.seen = c.now
}

func (c *setCall) openSession() {
	var req struct {
		SessionID string `json:"sessionId"`
		Owner     string `json:"ownerName"`
	}
	if !c.read(&req) {
		return
	}
	if req.Owner == "" {
		c.violate(errors.New("ownerName of the session is empty"))
		exception(c.w, http.StatusBadRequest, "VssPropertyValidationException", "ownerName is missing")
		return
	}
	if c.set.session != nil {
		exception(c.w, http.StatusConflict, "RunnerScaleSetSessionConflictException",
			"The actions runner scaleset "+c.set.name+" already has an active session for owner "+c.set.session.owner+".")
		return
	}
	c.set.session = &setSession{id: engine.UUID(), owner: req.Owner}
	c.renew(c.set.session)
	sendJSON(c.w, http.StatusOK, c.sessionJSON(c.set.session))
}

func (c *setCall) refreshSession() {
	if c.set.session == nil || c.set.session.id != c.r.PathValue("session") {
		exception(c.w, http.StatusNotFound, "RunnerAdminException", "runner referenced a session ID that doesn't exist in redis")
		return
	}
	c.renew(c.set.session)
	sendJSON(c.w, http.StatusOK, c.sessionJSON(c.set.session))
}

func (c *setCall) closeSession() {
	if c.set.session == nil || c.set.session.id != c.r.PathValue("session") {
		exception(c.w, http.StatusBadRequest, "RunnerScaleSetSessionExpiredException",
			"The session identifier "+c.r.PathValue("session")+" is not valid.")
		return
	}
	c.set.session = nil
	c.set.changed()
	sendJSON(c.w, http.StatusNoContent, nil)
}

// setByQueueToken finds the set whose session the caller holds. The lock is held.
func (s *Server) setByQueueToken(r *http.Request) *scaleSet {
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	for _, set := range s.scaling.sets {
		if bearer && set.session != nil && set.session.token == token && s.now().Before(set.session.tokenExpires) {
			set.session.seen = s.now()
			return set
		}
	}
	return nil
}

// queueCall checks a call with a queue's token, and leaves the server locked if it is good.
func (s *Server) queueCall(w http.ResponseWriter, r *http.Request, name string) *scaleSet {
	s.lock()
	s.core.Requests["scaleset "+name]++
	if s.core.Chance(s.core.Faults().ServerError) {
		s.core.Mu.Unlock()
		exception(w, http.StatusInternalServerError, "VssServiceException", "an error by a fault")
		return nil
	}
	set := s.setByQueueToken(r)
	if set != nil && s.core.Chance(s.core.Faults().SessionLost) {
		set.lose(true)
		set = nil
	}
	if set == nil {
		s.core.Mu.Unlock()
		exception(w, http.StatusUnauthorized, "VssUnauthorizedException", "the message queue token is unknown or expired")
	}
	return set
}

// LoseSession ends the session of a scale set as an outage would; with messages, what was
// not acknowledged is lost too. It tells whether there is such a set.
func (s *Server) LoseSession(name string, messages bool) bool {
	s.lock()
	defer s.core.Mu.Unlock()
	set := s.setByName(name)
	if set != nil {
		set.lose(messages)
	}
	return set != nil
}

// Capacity gives what a scale set was last asked with.
func (s *Server) Capacity(name string) int {
	s.lock()
	defer s.core.Mu.Unlock()
	if set := s.setByName(name); set != nil {
		return set.capacity
	}
	return 0
}

func (s *Server) setByName(name string) *scaleSet {
	for _, set := range s.scaling.sets {
		if strings.EqualFold(set.name, name) {
			return set
		}
	}
	return nil
}

func (set *scaleSet) lose(messages bool) {
	set.session = nil
	if messages {
		set.events, set.queue = nil, nil
	}
	set.changed()
}

// pollQueue holds the call until there is a message that the caller has not seen.
func (s *Server) pollQueue(w http.ResponseWriter, r *http.Request) {
	timeout := s.opts.Clock.After(s.opts.PollTimeout)
	capacity, err := strconv.Atoi(r.Header.Get("X-Scalesetmaxcapacity"))
	if err != nil || capacity < 0 {
		s.violate("request", r.Method, r.URL.Path, fmt.Errorf("X-ScaleSetMaxCapacity is %q", r.Header.Get("X-Scalesetmaxcapacity")))
	}
	if got := r.Header.Get("Accept"); got != "application/json; api-version="+apiVersion {
		s.violate("request", r.Method, r.URL.Path, fmt.Errorf("header Accept is %q", got))
	}
	last, _ := strconv.ParseInt(r.URL.Query().Get("lastMessageId"), 10, 64)
	set := s.queueCall(w, r, "message")
	if set == nil {
		return
	}
	session := set.session
	if session.id != r.URL.Query().Get("sessionId") {
		s.violateLocked("request", r.Method, r.URL.Path, errors.New("the query of the queue's address is lost"))
	}
	if last < session.acknowledged {
		s.violateLocked("request", r.Method, r.URL.Path, fmt.Errorf("lastMessageId is %d after %d", last, session.acknowledged))
	}
	set.capacity = capacity
	session.polls++
	s.advance(s.now())
	s.core.Mu.Unlock()
	s.hold(w, r, set, session, last, timeout)
}

func (s *Server) hold(
	w http.ResponseWriter, r *http.Request, set *scaleSet, session *setSession, last int64, timeout <-chan time.Time,
) {
	defer func() {
		s.core.Mu.Lock()
		defer s.core.Mu.Unlock()
		session.polls--
		session.seen = s.now()
		s.core.Kick()
	}()
	for {
		s.lock()
		alive, message, wake := set.session == session, set.next(last), set.wake
		counts := s.countSet(set)
		s.core.Mu.Unlock()
		switch {
		case !alive:
			exception(w, http.StatusUnauthorized, "VssUnauthorizedException", "the session is over")
			return
		case message != nil:
			sendJSON(w, http.StatusOK, map[string]any{
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

// next gives the first message after last, made of waiting events if there is none. The
// lock is held.
func (set *scaleSet) next(last int64) *setMessage {
	for i := range set.queue {
		if set.queue[i].id > last {
			return &set.queue[i]
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
	set.queue = append(set.queue, setMessage{set.lastID, string(text)})
	return &set.queue[len(set.queue)-1]
}

// acknowledge forgets a message; by a fault it comes again.
func (s *Server) acknowledge(w http.ResponseWriter, r *http.Request) {
	set := s.queueCall(w, r, "acknowledge")
	if set == nil {
		return
	}
	defer s.core.Mu.Unlock()
	id, err := strconv.ParseInt(r.PathValue("message"), 10, 64)
	if err != nil {
		s.violateLocked("request", r.Method, r.URL.Path, fmt.Errorf("message id: %w", err))
	}
	set.session.acknowledged = max(set.session.acknowledged, id)
	for i, message := range set.queue {
		if message.id != id {
			continue
		}
		if s.core.Chance(s.core.Faults().MessageRepeated) {
			var events []map[string]any
			if json.Unmarshal([]byte(message.body), &events) == nil {
				set.events = append(events, set.events...)
			}
		}
		set.queue = slices.Delete(set.queue, i, i+1)
		set.changed()
		break
	}
	w.WriteHeader(http.StatusNoContent)
}

// acquireJobs takes offered jobs, those that are still available.
func (s *Server) acquireJobs(w http.ResponseWriter, r *http.Request) {
	if got := r.URL.Query().Get("api-version"); got != apiVersion {
		s.violate("request", r.Method, r.URL.Path, fmt.Errorf("api-version is %q, want %s", got, apiVersion))
	}
	var ids []int64
	if !s.readStrict(w, r, &ids) {
		return
	}
	set := s.queueCall(w, r, "acquirejobs")
	if set == nil {
		return
	}
	defer s.core.Mu.Unlock()
	got := []int64{}
	for _, j := range s.queue {
		if j.set == set && j.offer.state == offered && slices.Contains(ids, j.offer.request) {
			got = append(got, j.offer.request)
			j.offer.state = acquired
		}
	}
	sendJSON(w, http.StatusOK, map[string]any{"count": len(got), "value": got})
	s.advance(s.now())
}

// Abandon opens a session of a scale set that nobody uses, as a listener leaves it that died.
func (s *Server) Abandon(name string) error {
	s.lock()
	defer s.core.Mu.Unlock()
	set := s.setByName(name)
	if set == nil || set.session != nil {
		return fmt.Errorf("abandon a session of scale set %q: there is no such set, or it has a listener", name)
	}
	set.session = &setSession{id: engine.UUID(), owner: "gone", token: engine.Hex(24), seen: s.now()}
	s.core.Kick()
	return nil
}
