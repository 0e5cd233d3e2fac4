// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// Limits of the Stacks API.
const (
	maxKey                = 80
	maxBatch              = 1000
	maxMetadata           = 100
	maxSeconds            = 3600
	defaultSeconds        = 900
	maxNotifications      = 100
	maxNotificationDetail = 256
	maxDetail             = 4 << 10
	defaultPageSize       = 100
)

// formatTime formats a time as Buildkite does. It returns nil for the zero time.
func formatTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

func (s *Server) registerStack(c *call) response {
	var body struct {
		Key      *string            `json:"key"`
		Type     *string            `json:"type"`
		QueueKey *string            `json:"queue_key"`
		Metadata *map[string]string `json:"metadata"`
	}
	if out := c.decodeBody(&body); out != nil {
		return *out
	}
	if body.Key == nil || body.Type == nil || body.QueueKey == nil || body.Metadata == nil {
		return newViolation(http.StatusUnprocessableEntity, "key, type, queue_key and metadata are required")
	}
	if len(*body.Key) > maxKey || !regexp.MustCompile(`^[A-Za-z0-9_-]+$`).MatchString(*body.Key) {
		return newViolation(http.StatusUnprocessableEntity, "Key is invalid")
	}
	if *body.Type != "custom" {
		return newViolation(http.StatusUnprocessableEntity, "Type must be custom")
	}
	if out := checkMetadata(*body.Metadata); out != nil {
		return *out
	}
	q := s.findQueue(*body.QueueKey)
	if q == nil {
		return newError(http.StatusNotFound, "No cluster queue found")
	}
	status := http.StatusOK
	st := s.stacks[*body.Key]
	if st == nil {
		if len(s.stacks) >= s.opts.StackLimit {
			return newError(http.StatusForbidden, "Stack limit exceeded for the organization")
		}
		status = http.StatusCreated
		st = &stack{uuid: engine.NewUUID(), key: *body.Key}
		s.stacks[st.key] = st
	}
	st.queue, st.metadata, st.lastSeen = q.key, *body.Metadata, c.now
	return response{status: status, body: map[string]any{
		"id": st.uuid, "organization_uuid": s.orgUUID, "key": st.key, "type": "custom",
		"cluster_queue_key": st.queue, "metadata": st.metadata, "last_connected_on": formatTime(c.now), "state": "connected",
	}}
}

func checkMetadata(metadata map[string]string) *response {
	for key, value := range metadata {
		if len(metadata) > maxMetadata || utf8.RuneCountInString(key) > 64 || utf8.RuneCountInString(value) > 256 {
			out := newViolation(http.StatusUnprocessableEntity, "Metadata is invalid")
			return &out
		}
	}
	return nil
}

func (s *Server) deregisterStack(c *call) response {
	delete(s.stacks, c.stack.key)
	return response{status: http.StatusNoContent}
}

// listScheduledJobs lists the scheduled jobs of a queue, oldest first. A cursor is the number of
// the last job in base64.
func (s *Server) listScheduledJobs(c *call) response {
	query := c.r.URL.Query()
	if !query.Has("queue_key") {
		return newViolation(http.StatusBadRequest, "queue_key is required")
	}
	q := s.findQueue(query.Get("queue_key"))
	if q == nil {
		return newError(http.StatusNotFound, "No cluster queue found")
	}
	size, after := defaultPageSize, int64(0)
	if query.Has("limit") {
		limit, err := strconv.Atoi(query.Get("limit"))
		if err != nil || limit < 1 || limit > maxBatch {
			return newViolation(http.StatusBadRequest, "limit must be a positive integer, at most 1000")
		}
		size = limit
	}
	if query.Has("after") {
		raw, err := base64.StdEncoding.DecodeString(query.Get("after"))
		if err == nil {
			after, err = strconv.ParseInt(string(raw), 10, 64)
		}
		if err != nil {
			return newViolation(http.StatusBadRequest, "after is not a cursor")
		}
	}
	jobs, hasMore, cursor := []map[string]any{}, false, any(nil)
	for _, j := range s.jobOrder {
		if j.queue != q || j.state != stateScheduled || j.id <= after {
			continue
		}
		if len(jobs) == size {
			hasMore = true
			break
		}
		jobs = append(jobs, j.encodeMetadata())
		cursor = base64.StdEncoding.EncodeToString([]byte(strconv.FormatInt(j.id, 10)))
	}
	return newOK(map[string]any{
		"jobs": jobs, "page_info": map[string]any{"has_next_page": hasMore, "end_cursor": cursor},
		"cluster_queue": map[string]any{"id": q.uuid, "dispatch_paused": q.paused},
	})
}

func (j *job) encodeMetadata() map[string]any {
	return map[string]any{
		"id": j.uuid, "priority": 0, "agent_query_rules": j.rules,
		"scheduled_at": formatTime(j.createdAt), "runnable_at": formatTime(j.runnableAt),
		"pipeline": map[string]any{"slug": j.build.pipeline.slug, "uuid": j.build.pipeline.uuid},
		"build":    map[string]any{"number": j.build.number, "branch": "main", "uuid": j.build.uuid},
		"step":     map[string]any{"key": j.stepKey},
	}
}

// uuids is a list of jobs in a body.
type uuids struct {
	JobUUIDs *[]string `json:"job_uuids"`
}

func (u uuids) validate() *response {
	if u.JobUUIDs == nil || len(*u.JobUUIDs) == 0 || len(*u.JobUUIDs) > maxBatch {
		out := newViolation(http.StatusBadRequest, "job_uuids must be an array of 1 to 1000 UUIDs")
		return &out
	}
	return nil
}

// parseLifetime checks a lifetime in seconds. If it is nil, parseLifetime returns the default.
func parseLifetime(given *int, name string) (time.Duration, *response) {
	if given == nil {
		return defaultSeconds * time.Second, nil
	}
	if *given < 1 || *given > maxSeconds {
		out := newViolation(http.StatusBadRequest, name+" must be 1 to 3600")
		return 0, &out
	}
	return time.Duration(*given) * time.Second, nil
}

// reserveJobs reserves scheduled jobs, and extends the stack's own reservations.
func (s *Server) reserveJobs(c *call) response {
	var body struct {
		uuids

		Seconds *int `json:"reservation_expiry_seconds"`
	}
	if out := c.decodeBody(&body); out != nil {
		return *out
	}
	if out := body.validate(); out != nil {
		return *out
	}
	lifetime, out := parseLifetime(body.Seconds, "reservation_expiry_seconds")
	if out != nil {
		return *out
	}
	reserved, notReserved := []string{}, []string{}
	for _, id := range *body.JobUUIDs {
		j := s.jobs[id]
		if j == nil || j.state != stateScheduled && (j.state != stateReserved || j.stack != c.stack.key) {
			notReserved = append(notReserved, id)
			continue
		}
		j.state, j.stack, j.reservedUntil = stateReserved, c.stack.key, c.now.Add(lifetime)
		reserved = append(reserved, id)
	}
	return newOK(map[string]any{"reserved": reserved, "not_reserved": notReserved})
}

// createAcquisitionTokens creates a token for each job that the stack has reserved. A token is
// valid at most until its reservation expires.
func (s *Server) createAcquisitionTokens(c *call) response {
	var body struct {
		uuids

		Seconds *int `json:"token_lifetime_seconds"`
	}
	if out := c.decodeBody(&body); out != nil {
		return *out
	}
	if out := body.validate(); out != nil {
		return *out
	}
	lifetime, out := parseLifetime(body.Seconds, "token_lifetime_seconds")
	if out != nil {
		return *out
	}
	issued, notIssued := []map[string]any{}, []string{}
	for _, id := range *body.JobUUIDs {
		j := s.jobs[id]
		if j == nil || j.state != stateReserved || j.stack != c.stack.key {
			notIssued = append(notIssued, id)
			continue
		}
		expires := c.now.Add(lifetime)
		if j.reservedUntil.Before(expires) {
			expires = j.reservedUntil
		}
		token := "bkjat_" + engine.RandomHex(24)
		s.tokens[token] = grant{job: j, isAcquisition: true, expiresAt: expires}
		issued = append(issued, map[string]any{"job_uuid": id, "job_acquisition_token": token, "expires_at": formatTime(expires)})
	}
	return response{
		status: http.StatusCreated, delay: s.core.Faults().JITDelay,
		body: map[string]any{"job_acquisition_tokens": issued, "not_issued": notIssued},
	}
}

// getStates returns the states of jobs. It omits unknown jobs.
func (s *Server) getStates(c *call) response {
	var body uuids
	if out := c.decodeBody(&body); out != nil {
		return *out
	}
	if out := body.validate(); out != nil {
		return *out
	}
	states := map[string]string{}
	for _, id := range *body.JobUUIDs {
		if j := s.jobs[id]; j != nil {
			states[id] = j.state
		}
	}
	return newOK(map[string]any{"states": states})
}

func (s *Server) getJob(c *call) response {
	j := s.jobs[c.r.PathValue("id")]
	if j == nil {
		return newError(http.StatusNotFound, "No job found")
	}
	return newOK(map[string]any{"id": j.uuid, "env": s.newEnvironment(j), "command": j.script()})
}

// finishByStack completes a job that no agent has.
func (s *Server) finishByStack(c *call) response {
	var body struct {
		ExitStatus *int    `json:"exit_status"`
		Detail     *string `json:"detail"`
	}
	if out := c.decodeBody(&body); out != nil {
		return *out
	}
	if body.Detail == nil || len(*body.Detail) > maxDetail {
		return newViolation(http.StatusUnprocessableEntity, "detail is required and must have at most 4 KB")
	}
	j := s.jobs[c.r.PathValue("id")]
	if j == nil {
		return newError(http.StatusNotFound, "No job found")
	}
	if j.isFinished() || j.hasAgent() {
		return newError(http.StatusUnprocessableEntity, "Job can't be finished by a stack in state "+j.state)
	}
	status := -1
	if body.ExitStatus != nil {
		status = *body.ExitStatus
	}
	s.endJob(j, stateFinished, status)
	return newOK(map[string]any{})
}

func (s *Server) addNotifications(c *call) response {
	var body struct {
		Notifications []struct {
			JobUUID   string     `json:"job_uuid"`
			Detail    string     `json:"detail"`
			Timestamp *time.Time `json:"timestamp"`
		} `json:"notifications"`
	}
	if out := c.decodeBody(&body); out != nil {
		return *out
	}
	if len(body.Notifications) == 0 || len(body.Notifications) > maxBatch {
		return newViolation(http.StatusBadRequest, "notifications must be an array of 1 to 1000")
	}
	failed := []map[string]any{}
	for i, note := range body.Notifications {
		j := s.jobs[note.JobUUID]
		var reason string
		switch {
		case j == nil:
			reason = "job not found"
		case note.Detail == "":
			reason = "detail is required"
		case utf8.RuneCountInString(note.Detail) > maxNotificationDetail:
			reason = fmt.Sprintf("detail exceeds its length limit of %d", maxNotificationDetail)
		case j.notifications >= maxNotifications:
			reason = "job stack notification count exceeded"
		case note.Timestamp != nil && (note.Timestamp.After(c.now) || note.Timestamp.Before(j.createdAt)):
			reason = "timestamp is out of range"
		default:
			j.notifications++
			continue
		}
		failed = append(failed, map[string]any{"error": reason, "indexes": []int{i}})
	}
	return newOK(map[string]any{"errors": failed})
}

// getMetrics returns the metrics of the cluster: https://buildkite.com/docs/apis/agent-api/metrics.
func (s *Server) getMetrics(*call) response {
	type count struct {
		Scheduled int `json:"scheduled"`
		Running   int `json:"running"`
		Waiting   int `json:"waiting"`
		Total     int `json:"total"`
	}
	var all count
	byQueue := map[string]*count{}
	for _, q := range s.queues {
		byQueue[q.key] = &count{}
	}
	for _, j := range s.jobOrder {
		for _, sum := range []*count{&all, byQueue[j.queue.key]} {
			switch {
			case j.isFinished():
				continue
			case j.hasAgent():
				sum.Running++
			case j.state == stateBlocked:
				sum.Waiting++
			default:
				sum.Scheduled++
			}
			sum.Total++
		}
	}
	busy := 0
	for _, a := range s.agents {
		if a.job != nil {
			busy++
		}
	}
	return newOK(map[string]any{
		"agents": map[string]any{
			"idle": len(s.agents) - busy, "busy": busy, "total": len(s.agents), "queues": map[string]any{},
		},
		"jobs": map[string]any{
			"scheduled": all.Scheduled, "running": all.Running, "waiting": all.Waiting, "total": all.Total, "queues": byQueue,
		},
		"organization": map[string]any{"slug": s.opts.Organization},
	})
}
