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

// activeDuration is how long a runner is active after its last call for a job (RunnerIdleTime).
const activeDuration = 10 * time.Second

// runner is one registered runner.
type runner struct {
	id                                      int64
	uuid, token, name, description, version string
	scope                                   string // owner/name, owner, or "" for the instance
	labels                                  []string
	ephemeral, disabled                     bool
	onlineAt, activeAt                      time.Time // last call, and last call for a job
	job                                     *job
	hasRunJob                               bool // whether the runner has had its one job
}

func (s *Server) isOnline(r *runner) bool {
	return !r.onlineAt.IsZero() && s.now().Sub(r.onlineAt) <= s.opts.OnlineTimeout
}

func (s *Server) isBusy(r *runner) bool {
	return s.isOnline(r) && !r.activeAt.IsZero() && s.now().Sub(r.activeAt) <= activeDuration ||
		s.core.Occurs(s.core.Faults().DeleteBusy)
}

// serves reports whether the runner may run jobs of a repository.
func (r *runner) serves(repo *repository) bool {
	return r.scope == "" || strings.EqualFold(r.scope, repo.owner()) || strings.EqualFold(r.scope, repo.path)
}

// canRun reports whether the runner may run a job.
func (r *runner) canRun(j *job) bool {
	return r.serves(j.repo) && !slices.ContainsFunc(j.labels, func(label string) bool { return !slices.Contains(r.labels, label) })
}

// encodeRunner returns a runner as the server represents it.
func (s *Server) encodeRunner(r *runner) map[string]any {
	isBusy := s.isBusy(r)
	if s.opts.Forgejo {
		status := "offline"
		switch {
		case isBusy:
			status = "active"
		case s.isOnline(r):
			status = "idle"
		}
		out := map[string]any{
			"id": r.id, "uuid": r.uuid, "name": r.name, "description": r.description, "version": r.version, "status": status,
			"labels": append([]string{}, r.labels...), "ephemeral": r.ephemeral, "owner_id": 0, "repo_id": 0,
		}
		switch {
		case strings.Contains(r.scope, "/"):
			out["repo_id"] = s.findRepository(r.scope).id
		case r.scope != "":
			out["owner_id"] = 2
		}
		return out
	}
	status := "offline"
	if s.isOnline(r) {
		status = "online"
	}
	labels := make([]map[string]any, 0, len(r.labels))
	for i, label := range r.labels {
		labels = append(labels, map[string]any{"id": i, "name": label, "type": "custom"})
	}
	return map[string]any{
		"id": r.id, "name": r.name, "status": status, "busy": isBusy, "disabled": r.disabled,
		"ephemeral": r.ephemeral, "labels": labels,
	}
}

func (s *Server) listRunners(c *call) response {
	var found []map[string]any
	for _, id := range slices.Sorted(maps.Keys(s.runners)) {
		if r := s.runners[id]; c.scope == "" || strings.EqualFold(r.scope, c.scope) {
			found = append(found, s.encodeRunner(r))
		}
	}
	list := paginate(c, found)
	if s.opts.Forgejo {
		return response{status: http.StatusOK, body: list, header: map[string]string{"X-Total-Count": strconv.Itoa(len(found))}}
	}
	return newOK(map[string]any{"runners": list, "total_count": len(found)})
}

// findRunner returns the runner of a call if it belongs to the call's scope.
func (s *Server) findRunner(c *call) *runner {
	r := s.runners[c.id()]
	if r == nil || c.scope != "" && !strings.EqualFold(r.scope, c.scope) {
		return nil
	}
	return r
}

func (s *Server) getRunner(c *call) response {
	r := s.findRunner(c)
	if r == nil {
		return newNotFound()
	}
	return newOK(s.encodeRunner(r))
}

func (s *Server) updateRunner(c *call) response {
	r := s.findRunner(c)
	if r == nil {
		return newNotFound()
	}
	if _, exists := c.body["disabled"].(bool); !exists {
		return newError(http.StatusUnprocessableEntity, "[Disabled]: Required")
	}
	r.disabled = c.flag("disabled")
	return newOK(s.encodeRunner(r))
}

// deleteRunner deletes any runner, as the servers do. Deleting a runner that runs a job is a
// violation, because the job becomes an orphan.
func (s *Server) deleteRunner(c *call) response {
	r := s.findRunner(c)
	if r == nil {
		return newNotFound()
	}
	if r.job != nil {
		s.addViolation("request", c.r, "runner "+strconv.FormatInt(r.id, 10)+" runs a job")
	}
	delete(s.runners, r.id)
	return response{status: http.StatusNoContent}
}

// createRunner serves POST .../actions/runners of Forgejo.
func (s *Server) createRunner(c *call) response {
	if c.text("name") == "" {
		return newError(http.StatusUnprocessableEntity, "[Name]: Required")
	}
	r := s.newRunner(c.text("name"), c.scope)
	r.description, r.ephemeral = c.text("description"), c.flag("ephemeral")
	if !r.ephemeral {
		s.addViolation("request", c.r, "the runner is not ephemeral")
	}
	return response{status: http.StatusCreated, body: map[string]any{"id": r.id, "uuid": r.uuid, "token": r.token}}
}

// newRunner adds a runner. Like the servers, it allows several runners with the same name.
func (s *Server) newRunner(name, scope string) *runner {
	s.ids.runner++
	s.registeredCount++
	r := &runner{id: s.ids.runner, uuid: engine.NewUUID(), token: engine.RandomHex(20), name: name, scope: scope}
	s.runners[r.id] = r
	return r
}

// createRegistrationToken returns the token of the scope. The token stays valid, and later calls
// return the same token.
func (s *Server) createRegistrationToken(c *call) response {
	scope := strings.ToLower(c.scope)
	s.registrationTokens[scope] = cmp.Or(s.registrationTokens[scope], engine.RandomHex(20))
	return newOK(map[string]string{"token": s.registrationTokens[scope]})
}
