// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"fmt"
	"net/http"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// Rename renames a repository, or moves it to another owner. Calls for the former path get a temporary
// redirect to a path of the same server (services/context/repo.go, RedirectToRepo).
func (s *Server) Rename(from, to string) error {
	s.lock()
	defer s.core.Mu.Unlock()
	repo := s.findRepository(from)
	if repo == nil || s.findRepository(to) != nil {
		return fmt.Errorf("rename %q to %q: the first must exist and the second must be free", from, to)
	}
	s.moved[strings.ToLower(from)] = repo
	repo.path = to
	for _, r := range s.runners {
		if strings.EqualFold(r.scope, from) {
			r.scope = to
		}
	}
	return nil
}

// Rerun queues a finished job again. Gitea before 1.27 keeps the job's id (services/actions/rerun.go).
func (s *Server) Rerun(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[id]
	if j == nil || !j.isFinished() {
		return fmt.Errorf("run job %d again: there is no such finished job", id)
	}
	again := &job{
		id: j.id, run: j.run, handle: j.handle, repo: j.repo, name: j.name, labels: j.labels, status: statusWaiting,
		duration: j.duration, command: j.command, createdAt: j.createdAt, attempt: j.attempt,
	}
	version, err := utilversion.ParseGeneric(s.opts.Version)
	if s.opts.Forgejo || err != nil || version.AtLeast(utilversion.MajorMinor(1, 27)) {
		s.ids.job++
		again.id, again.handle, again.createdAt = s.ids.job, engine.NewUUID(), s.now()
	}
	s.jobs[again.id] = again
	s.queueWebhook(again)
	s.core.Wake()
	return nil
}

// DeleteJob deletes a job, as the deletion of its run does. The server sends no webhook.
func (s *Server) DeleteJob(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	if s.jobs[id] == nil {
		return fmt.Errorf("delete job %d: there is no such job", id)
	}
	delete(s.jobs, id)
	return nil
}

// redirectMoved returns the response to a call for the former path of a repository, or nil. The lock is held.
func (s *Server) redirectMoved(c *call, route string) *response {
	former := c.r.PathValue("owner") + "/" + c.r.PathValue("repo")
	repo := s.moved[strings.ToLower(former)]
	if !strings.Contains(route, " /repos/") || repo == nil || s.findRepository(former) != nil {
		return nil
	}
	target := strings.Replace(c.r.URL.EscapedPath(), former, repo.path, 1)
	if c.r.URL.RawQuery != "" {
		target += "?" + c.r.URL.RawQuery
	}
	return &response{status: http.StatusTemporaryRedirect, header: map[string]string{"Location": target}}
}
