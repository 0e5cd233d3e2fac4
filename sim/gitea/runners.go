// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// activeFor is how long a runner shows as active after it spoke of a job (RunnerIdleTime).
const activeFor = 10 * time.Second

// runner is one registered runner.
type runner struct {
	id                                      int64
	uuid, token, name, description, version string
	place                                   string // owner/name, owner, or "" for the instance
	labels                                  []string
	ephemeral, disabled                     bool
	online, active                          time.Time // last heard of, and last of a job
	running                                 *job
	worked                                  bool // has had its one job
}

func (s *Server) online(r *runner) bool {
	return !r.online.IsZero() && s.now().Sub(r.online) <= s.opts.OnlineFor
}

func (s *Server) busy(r *runner) bool {
	return s.online(r) && !r.active.IsZero() && s.now().Sub(r.active) <= activeFor || s.core.Chance(s.core.Faults().DeleteBusy)
}

// serves tells whether the runner may be given jobs of a repository.
func (r *runner) serves(repo *repository) bool {
	return r.place == "" || strings.EqualFold(r.place, repo.owner()) || strings.EqualFold(r.place, repo.path)
}

// takes tells whether the runner may be given the job.
func (r *runner) takes(j *job) bool {
	return r.serves(j.repo) && !slices.ContainsFunc(j.labels, func(label string) bool { return !slices.Contains(r.labels, label) })
}

// runnerJSON is a runner as the server tells it.
func (s *Server) runnerJSON(r *runner) map[string]any {
	busy := s.busy(r)
	if s.opts.Forgejo {
		status := "offline"
		switch {
		case busy:
			status = "active"
		case s.online(r):
			status = "idle"
		}
		out := map[string]any{
			"id": r.id, "uuid": r.uuid, "name": r.name, "description": r.description, "version": r.version, "status": status,
			"labels": append([]string{}, r.labels...), "ephemeral": r.ephemeral, "owner_id": 0, "repo_id": 0,
		}
		switch {
		case strings.Contains(r.place, "/"):
			out["repo_id"] = s.repositoryBy(r.place).id
		case r.place != "":
			out["owner_id"] = 2
		}
		return out
	}
	status := "offline"
	if s.online(r) {
		status = "online"
	}
	labels := make([]map[string]any, 0, len(r.labels))
	for i, label := range r.labels {
		labels = append(labels, map[string]any{"id": i, "name": label, "type": "custom"})
	}
	return map[string]any{
		"id": r.id, "name": r.name, "status": status, "busy": busy, "disabled": r.disabled, "ephemeral": r.ephemeral, "labels": labels,
	}
}

func (s *Server) answerRunners(c *call) reply {
	var found []map[string]any
	for _, id := range slices.Sorted(maps.Keys(s.runners)) {
		if r := s.runners[id]; c.place == "" || strings.EqualFold(r.place, c.place) {
			found = append(found, s.runnerJSON(r))
		}
	}
	list := page(c, found)
	if s.opts.Forgejo {
		return reply{status: http.StatusOK, body: list, header: map[string]string{"X-Total-Count": strconv.Itoa(len(found))}}
	}
	return ok(map[string]any{"runners": list, "total_count": len(found)})
}

// runnerOf finds the runner of a call, if it belongs to the call's scope.
func (s *Server) runnerOf(c *call) *runner {
	r := s.runners[c.id()]
	if r == nil || c.place != "" && !strings.EqualFold(r.place, c.place) {
		return nil
	}
	return r
}

func (s *Server) answerRunner(c *call) reply {
	r := s.runnerOf(c)
	if r == nil {
		return notFound()
	}
	return ok(s.runnerJSON(r))
}

func (s *Server) answerEditRunner(c *call) reply {
	r := s.runnerOf(c)
	if r == nil {
		return notFound()
	}
	if _, given := c.body["disabled"].(bool); !given {
		return fail(http.StatusUnprocessableEntity, "[Disabled]: Required")
	}
	r.disabled = c.flag("disabled")
	return ok(s.runnerJSON(r))
}

// answerDeleteRunner removes any runner, as the servers do. A job that it runs is orphaned:
// that is a breach, for no caller should do so.
func (s *Server) answerDeleteRunner(c *call) reply {
	r := s.runnerOf(c)
	if r == nil {
		return notFound()
	}
	if r.running != nil {
		s.violate("request", c.r, "runner "+strconv.FormatInt(r.id, 10)+" runs a job")
	}
	delete(s.runners, r.id)
	return reply{status: http.StatusNoContent}
}

// answerMakeRunner: POST .../actions/runners of Forgejo.
func (s *Server) answerMakeRunner(c *call) reply {
	if c.text("name") == "" {
		return fail(http.StatusUnprocessableEntity, "[Name]: Required")
	}
	r := s.newRunner(c.text("name"), c.place)
	r.description, r.ephemeral = c.text("description"), c.flag("ephemeral")
	if !r.ephemeral {
		s.violate("request", c.r, "the runner is not ephemeral")
	}
	return reply{status: http.StatusCreated, body: map[string]any{"id": r.id, "uuid": r.uuid, "token": r.token}}
}

// newRunner makes a runner. A name that is taken is nothing to the servers.
func (s *Server) newRunner(name, place string) *runner {
	s.ids.runner++
	s.registered++
	r := &runner{id: s.ids.runner, uuid: engine.UUID(), token: engine.Hex(20), name: name, place: place}
	s.runners[r.id] = r
	return r
}

// answerRegistrationToken gives the scope's token, which stays good.
func (s *Server) answerRegistrationToken(c *call) reply {
	place := strings.ToLower(c.place)
	s.registration[place] = cmp.Or(s.registration[place], engine.Hex(20))
	return ok(map[string]string{"token": s.registration[place]})
}
