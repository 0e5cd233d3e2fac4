// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Rename renames a repository or transfers it to another owner. Both names are OWNER/NAME. Calls for the
// former name are redirected to the repository's id, as
// docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api describes.
func (s *Server) Rename(from, to string) error {
	s.lock()
	defer s.core.Mu.Unlock()
	former, name := strings.ToLower(from), strings.ToLower(to)
	login, short, ok := strings.Cut(to, "/")
	repo := s.repos[former]
	if repo == nil || !ok || s.repos[name] != nil {
		return fmt.Errorf("rename %q to %q: the first must exist and the second must be free", from, to)
	}
	owner := s.orgs[strings.ToLower(login)]
	if owner == nil {
		return errors.New("rename repository: there is no owner " + login)
	}
	delete(s.repos, former)
	s.repos[name], s.moved[former] = repo, repo
	repo.owner, repo.name = owner, short
	for _, r := range s.runners {
		if r.scope == (scope{scopeRepo, former}) {
			r.scope.name = name
		}
	}
	for _, token := range s.tokens {
		if token.scope == (scope{scopeRepo, former}) {
			token.scope.name = name
		}
	}
	return nil
}

// DeleteRun deletes the workflow run of a job with all of its jobs. GitHub sends no webhook.
func (s *Server) DeleteRun(jobID int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[jobID]
	if j == nil {
		return fmt.Errorf("delete the run of job %d: there is no such job", jobID)
	}
	for _, other := range j.run.jobs {
		s.dequeue(other)
		s.unassign(other)
		delete(s.jobs, other.id)
	}
	delete(s.runs, j.run.id)
	s.core.Wake()
	return nil
}

// redirectMoved redirects calls for the former name of a repository, and serves /repositories/ID.
func (s *Server) redirectMoved(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
		s.core.Mu.Lock()
		var former, target *repository
		switch {
		case len(parts) > 2 && parts[0] == "repos":
			name := strings.ToLower(parts[1] + "/" + parts[2])
			if s.repos[name] == nil {
				former = s.moved[name]
			}
		case len(parts) > 1 && parts[0] == "repositories":
			target = s.findRepositoryByID(parts[1])
		}
		path := ""
		if target != nil {
			path = "/repos/" + target.fullName()
		}
		s.core.Mu.Unlock()
		switch {
		case former != nil:
			redirect(w, r, "/repositories/"+strconv.FormatInt(former.id, 10)+"/"+strings.Join(parts[3:], "/"))
		case target != nil:
			inner := r.Clone(r.Context())
			inner.URL.Path = path + "/" + strings.Join(parts[2:], "/")
			inner.URL.RawPath = ""
			next.ServeHTTP(w, inner)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (s *Server) findRepositoryByID(id string) *repository {
	for _, repo := range s.repos {
		if strconv.FormatInt(repo.id, 10) == id {
			return repo
		}
	}
	return nil
}

// redirect responds with a permanent redirect to reads, and with a temporary one to writes, so that they
// keep their method.
func redirect(w http.ResponseWriter, r *http.Request, path string) {
	status := http.StatusTemporaryRedirect
	if slices.Contains([]string{http.MethodGet, http.MethodHead}, r.Method) {
		status = http.StatusMovedPermanently
	}
	target := requestBaseURL(r) + strings.TrimSuffix(path, "/")
	if r.URL.RawQuery != "" {
		target += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", target)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"message":"Moved Permanently","url":%q,"documentation_url":"https://docs.github.com/rest"}`, target)
}
