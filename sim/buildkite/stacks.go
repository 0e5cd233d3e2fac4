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

// Bounds of the Stacks API.
const (
	maxKey          = 80
	maxBatch        = 1000
	maxMetadata     = 100
	maxSeconds      = 3600
	defaultSeconds  = 900
	maxNotes        = 100
	maxNote         = 256
	maxDetail       = 4 << 10
	defaultPageSize = 100
)

// stamp writes a time as Buildkite does; the zero time is null.
func stamp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

func (s *Server) registerStack(c *call) reply {
	var body struct {
		Key      *string            `json:"key"`
		Type     *string            `json:"type"`
		QueueKey *string            `json:"queue_key"`
		Metadata *map[string]string `json:"metadata"`
	}
	if out := c.read(&body); out != nil {
		return *out
	}
	if body.Key == nil || body.Type == nil || body.QueueKey == nil || body.Metadata == nil {
		return breach(http.StatusUnprocessableEntity, "key, type, queue_key and metadata are required")
	}
	if len(*body.Key) > maxKey || !regexp.MustCompile(`^[A-Za-z0-9_-]+$`).MatchString(*body.Key) {
		return breach(http.StatusUnprocessableEntity, "Key is invalid")
	}
	if *body.Type != "custom" {
		return breach(http.StatusUnprocessableEntity, "Type is not for third parties: use custom")
	}
	if out := checkMetadata(*body.Metadata); out != nil {
		return *out
	}
	into := s.queueOf(*body.QueueKey)
	if into == nil {
		return fail(http.StatusNotFound, "No cluster queue found")
	}
	status := http.StatusOK
	known := s.stacks[*body.Key]
	if known == nil {
		if len(s.stacks) >= s.opts.StackLimit {
			return fail(http.StatusForbidden, "Stack limit exceeded for the organization")
		}
		status = http.StatusCreated
		known = &stack{uuid: engine.UUID(), key: *body.Key}
		s.stacks[known.key] = known
	}
	known.queue, known.metadata, known.seen = into.key, *body.Metadata, c.now
	return reply{status: status, body: map[string]any{
		"id": known.uuid, "organization_uuid": s.orgUUID, "key": known.key, "type": "custom",
		"cluster_queue_key": known.queue, "metadata": known.metadata, "last_connected_on": stamp(c.now), "state": "connected",
	}}
}

func checkMetadata(metadata map[string]string) *reply {
	for key, value := range metadata {
		if len(metadata) > maxMetadata || utf8.RuneCountInString(key) > 64 || utf8.RuneCountInString(value) > 256 {
			out := breach(http.StatusUnprocessableEntity, "Metadata is invalid")
			return &out
		}
	}
	return nil
}

func (s *Server) deregisterStack(c *call) reply {
	delete(s.stacks, c.stack.key)
	return reply{status: http.StatusNoContent}
}

// scheduledJobs lists, oldest first. A cursor is the number of the last job in base64.
func (s *Server) scheduledJobs(c *call) reply {
	query := c.r.URL.Query()
	if !query.Has("queue_key") {
		return breach(http.StatusBadRequest, "queue_key is required")
	}
	from := s.queueOf(query.Get("queue_key"))
	if from == nil {
		return fail(http.StatusNotFound, "No cluster queue found")
	}
	size, after := defaultPageSize, int64(0)
	if query.Has("limit") {
		limit, err := strconv.Atoi(query.Get("limit"))
		if err != nil || limit < 1 || limit > maxBatch {
			return breach(http.StatusBadRequest, "limit must be a positive integer, at most 1000")
		}
		size = limit
	}
	if query.Has("after") {
		raw, err := base64.StdEncoding.DecodeString(query.Get("after"))
		if err == nil {
			after, err = strconv.ParseInt(string(raw), 10, 64)
		}
		if err != nil {
			return breach(http.StatusBadRequest, "after is not a cursor")
		}
	}
	jobs, more, cursor := []map[string]any{}, false, any(nil)
	for _, j := range s.order {
		if j.queue != from || j.state != stateScheduled || j.id <= after {
			continue
		}
		if len(jobs) == size {
			more = true
			break
		}
		jobs = append(jobs, j.metadata())
		cursor = base64.StdEncoding.EncodeToString([]byte(strconv.FormatInt(j.id, 10)))
	}
	return ok(map[string]any{
		"jobs": jobs, "page_info": map[string]any{"has_next_page": more, "end_cursor": cursor},
		"cluster_queue": map[string]any{"id": from.uuid, "dispatch_paused": from.paused},
	})
}

func (j *job) metadata() map[string]any {
	return map[string]any{
		"id": j.uuid, "priority": 0, "agent_query_rules": j.rules, "scheduled_at": stamp(j.created), "runnable_at": stamp(j.runnable),
		"pipeline": map[string]any{"slug": j.build.pipeline.slug, "uuid": j.build.pipeline.uuid},
		"build":    map[string]any{"number": j.build.number, "branch": "main", "uuid": j.build.uuid},
		"step":     map[string]any{"key": j.stepKey},
	}
}

// uuids is a list of jobs in a body.
type uuids struct {
	JobUUIDs *[]string `json:"job_uuids"`
}

func (u uuids) check() *reply {
	if u.JobUUIDs == nil || len(*u.JobUUIDs) == 0 || len(*u.JobUUIDs) > maxBatch {
		out := breach(http.StatusBadRequest, "job_uuids must be an array of 1 to 1000 UUIDs")
		return &out
	}
	return nil
}

// seconds checks a lifetime and gives its default.
func seconds(given *int, name string) (time.Duration, *reply) {
	if given == nil {
		return defaultSeconds * time.Second, nil
	}
	if *given < 1 || *given > maxSeconds {
		out := breach(http.StatusBadRequest, name+" must be 1 to 3600")
		return 0, &out
	}
	return time.Duration(*given) * time.Second, nil
}

// batchReserve reserves jobs that are scheduled, and extends the stack's own reservations.
func (s *Server) batchReserve(c *call) reply {
	var body struct {
		uuids

		Seconds *int `json:"reservation_expiry_seconds"`
	}
	if out := c.read(&body); out != nil {
		return *out
	}
	if out := body.check(); out != nil {
		return *out
	}
	life, out := seconds(body.Seconds, "reservation_expiry_seconds")
	if out != nil {
		return *out
	}
	reserved, not := []string{}, []string{}
	for _, id := range *body.JobUUIDs {
		j := s.jobs[id]
		if j == nil || j.state != stateScheduled && (j.state != stateReserved || j.stack != c.stack.key) {
			not = append(not, id)
			continue
		}
		j.state, j.stack, j.reservedUntil = stateReserved, c.stack.key, c.now.Add(life)
		reserved = append(reserved, id)
	}
	return ok(map[string]any{"reserved": reserved, "not_reserved": not})
}

// acquisitionTokens issues a token for each job that the stack has reserved. It ends with
// the reservation.
func (s *Server) acquisitionTokens(c *call) reply {
	var body struct {
		uuids

		Seconds *int `json:"token_lifetime_seconds"`
	}
	if out := c.read(&body); out != nil {
		return *out
	}
	if out := body.check(); out != nil {
		return *out
	}
	life, out := seconds(body.Seconds, "token_lifetime_seconds")
	if out != nil {
		return *out
	}
	issued, not := []map[string]any{}, []string{}
	for _, id := range *body.JobUUIDs {
		j := s.jobs[id]
		if j == nil || j.state != stateReserved || j.stack != c.stack.key {
			not = append(not, id)
			continue
		}
		expires := c.now.Add(life)
		if j.reservedUntil.Before(expires) {
			expires = j.reservedUntil
		}
		token := "bkjat_" + engine.Hex(24)
		s.tokens[token] = grant{job: j, acquire: true, expires: expires}
		issued = append(issued, map[string]any{"job_uuid": id, "job_acquisition_token": token, "expires_at": stamp(expires)})
	}
	return reply{
		status: http.StatusCreated, delay: s.core.Faults().JITDelay,
		body: map[string]any{"job_acquisition_tokens": issued, "not_issued": not},
	}
}

// getStates leaves out jobs that it does not know.
func (s *Server) getStates(c *call) reply {
	var body uuids
	if out := c.read(&body); out != nil {
		return *out
	}
	if out := body.check(); out != nil {
		return *out
	}
	states := map[string]string{}
	for _, id := range *body.JobUUIDs {
		if j := s.jobs[id]; j != nil {
			states[id] = j.state
		}
	}
	return ok(map[string]any{"states": states})
}

func (s *Server) getJob(c *call) reply {
	j := s.jobs[c.r.PathValue("id")]
	if j == nil {
		return fail(http.StatusNotFound, "No job found")
	}
	return ok(map[string]any{"id": j.uuid, "env": s.env(j), "command": j.script()})
}

// finishByStack ends a job that no agent has.
func (s *Server) finishByStack(c *call) reply {
	var body struct {
		ExitStatus *int    `json:"exit_status"`
		Detail     *string `json:"detail"`
	}
	if out := c.read(&body); out != nil {
		return *out
	}
	if body.Detail == nil || len(*body.Detail) > maxDetail {
		return breach(http.StatusUnprocessableEntity, "detail is required, of at most 4 KB")
	}
	j := s.jobs[c.r.PathValue("id")]
	if j == nil {
		return fail(http.StatusNotFound, "No job found")
	}
	if j.over() || j.taken() {
		return fail(http.StatusUnprocessableEntity, "Job can't be finished by a stack in state "+j.state)
	}
	exit := -1
	if body.ExitStatus != nil {
		exit = *body.ExitStatus
	}
	s.end(j, stateFinished, exit)
	return ok(map[string]any{})
}

func (s *Server) notifications(c *call) reply {
	var body struct {
		Notifications []struct {
			JobUUID   string     `json:"job_uuid"`
			Detail    string     `json:"detail"`
			Timestamp *time.Time `json:"timestamp"`
		} `json:"notifications"`
	}
	if out := c.read(&body); out != nil {
		return *out
	}
	if len(body.Notifications) == 0 || len(body.Notifications) > maxBatch {
		return breach(http.StatusBadRequest, "notifications must be an array of 1 to 1000")
	}
	failed := []map[string]any{}
	for i, note := range body.Notifications {
		j := s.jobs[note.JobUUID]
		var why string
		switch {
		case j == nil:
			why = "job not found"
		case note.Detail == "":
			why = "detail is required"
		case utf8.RuneCountInString(note.Detail) > maxNote:
			why = fmt.Sprintf("detail exceeds its length limit of %d", maxNote)
		case j.notes >= maxNotes:
			why = "job stack notification count exceeded"
		case note.Timestamp != nil && (note.Timestamp.After(c.now) || note.Timestamp.Before(j.created)):
			why = "timestamp is out of range"
		default:
			j.notes++
			continue
		}
		failed = append(failed, map[string]any{"error": why, "indexes": []int{i}})
	}
	return ok(map[string]any{"errors": failed})
}

// metrics: https://buildkite.com/docs/apis/agent-api/metrics.
func (s *Server) metrics(*call) reply {
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
	for _, j := range s.order {
		for _, sum := range []*count{&all, byQueue[j.queue.key]} {
			switch {
			case j.over():
				continue
			case j.taken():
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
	return ok(map[string]any{
		"agents": map[string]any{
			"idle": len(s.agents) - busy, "busy": busy, "total": len(s.agents), "queues": map[string]any{},
		},
		"jobs": map[string]any{
			"scheduled": all.Scheduled, "running": all.Running, "waiting": all.Waiting, "total": all.Total, "queues": byQueue,
		},
		"organization": map[string]any{"slug": s.opts.Organization},
	})
}
