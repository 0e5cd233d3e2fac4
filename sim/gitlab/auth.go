// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Roles in their order (https://docs.gitlab.com/user/permissions/).
func roleLevel(role string) int {
	return 1 + slices.Index([]string{"guest", "reporter", "developer", "maintainer", "owner"}, role)
}

const (
	guest      = 1
	reporter   = 2
	maintainer = 4
	owner      = 5
)

// authenticate finds the caller by its token and checks the token's scopes. GitLab takes
// its own header and a bearer token alike.
func (s *Server) authenticate(c *call, end endpoint) *reply {
	given := c.r.Header.Get("Private-Token")
	if bearer, found := strings.CutPrefix(c.r.Header.Get("Authorization"), "Bearer "); found {
		given = bearer
	}
	token := s.tokens[given]
	switch {
	case token == nil:
		out := fail(http.StatusUnauthorized, "401 Unauthorized")
		return &out
	case token.Revoked:
		return &reply{status: http.StatusUnauthorized, body: map[string]any{
			"error":             "invalid_token",
			"error_description": "Token was revoked. You have to re-authorize from the user.",
		}}
	}
	c.token = token
	opens := func(scope string) bool { return slices.Contains(token.Scopes, scope) }
	if len(end.scopes) == 0 || slices.ContainsFunc(end.scopes, opens) {
		return nil
	}
	return &reply{status: http.StatusForbidden, body: map[string]any{
		"error":             "insufficient_scope",
		"error_description": "The request requires higher privileges than provided by the access token.",
		"scope":             strings.Join(end.scopes, " "),
	}}
}

// level is the caller's role in a project or group: the highest there or above it.
func (t *Token) level(path string) int {
	if t.Admin || len(t.Roles) == 0 {
		return owner
	}
	highest := 0
	for at, role := range t.Roles {
		if strings.EqualFold(at, path) || strings.HasPrefix(strings.ToLower(path), strings.ToLower(at)+"/") {
			highest = max(highest, roleLevel(role))
		}
	}
	return highest
}

func (s *Server) groupBy(path string) *group {
	for _, g := range s.groups {
		if strings.EqualFold(g.path, path) {
			return g
		}
	}
	return nil
}

func (s *Server) projectBy(path string) *project {
	for _, p := range s.projects {
		if strings.EqualFold(p.path, path) {
			return p
		}
	}
	return nil
}

// projectOf finds the project of a call, by id or path. What the caller may not see is not
// there.
func (s *Server) projectOf(c *call) *project {
	written := c.r.PathValue("id")
	found := s.projectBy(written)
	if id, err := strconv.ParseInt(written, 10, 64); err == nil {
		found = s.projects[id]
	}
	if found == nil || c.token.level(found.path) < guest {
		return nil
	}
	return found
}

func (s *Server) groupOf(c *call) *group {
	written := c.r.PathValue("id")
	found := s.groupBy(written)
	if id, err := strconv.ParseInt(written, 10, 64); err == nil {
		found = s.groups[id]
	}
	if found == nil || c.token.level(found.path) < guest {
		return nil
	}
	return found
}
