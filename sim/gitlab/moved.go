// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Rename renames a project, or moves it to another group that exists. Reads of the former path are redirected
// to the project's id, and writes are refused (lib/api/helpers.rb, find_project!).
func (s *Server) Rename(from, to string) error {
	s.lock()
	defer s.core.Mu.Unlock()
	p := s.findProject(from)
	if namespace, _ := splitPath(to); p == nil || s.findProject(to) != nil || s.findGroup(namespace) == nil {
		return fmt.Errorf("rename %q to %q: the project and the group must exist, and the path must be free", from, to)
	}
	s.moved[strings.ToLower(from)] = p
	p.path = to
	return nil
}

// DeleteJob deletes a job, as the deletion of its pipeline does. GitLab sends no job event.
func (s *Server) DeleteJob(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	if s.jobs[id] == nil {
		return fmt.Errorf("delete job %d: there is no such job", id)
	}
	s.dequeue(s.jobs[id])
	delete(s.jobs, id)
	return nil
}

// redirectMoved returns the response to a call for the former path of a project, or nil. The lock is held.
func (s *Server) redirectMoved(c *call) *response {
	if !strings.Contains(c.op, " /projects/{id}") {
		return nil
	}
	ref := c.r.PathValue("id")
	p := s.moved[strings.ToLower(ref)]
	if p == nil || s.findProject(ref) != nil || c.token.roleIn(p.path) < levelGuest {
		return nil
	}
	if c.r.Method != http.MethodGet {
		out := newError(http.StatusMethodNotAllowed, "405 Non GET methods are not allowed for moved projects")
		return &out
	}
	target := strings.Replace(c.r.URL.EscapedPath(), url.PathEscape(ref), strconv.FormatInt(p.id, 10), 1)
	if c.r.URL.RawQuery != "" {
		target += "?" + c.r.URL.RawQuery
	}
	out := newError(http.StatusMovedPermanently, "301 Moved Permanently")
	out.header = map[string]string{"Location": s.baseURL + target}
	return &out
}
