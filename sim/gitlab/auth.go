// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// roleLevel returns the level of a role, and 0 if the role is unknown
// (https://docs.gitlab.com/user/permissions/).
func roleLevel(role string) int {
	return 1 + slices.Index([]string{"guest", "reporter", "developer", "maintainer", "owner"}, role)
}

const (
	levelGuest      = 1
	levelReporter   = 2
	levelMaintainer = 4
	levelOwner      = 5
)

// authenticate finds the access token of a call and checks its scopes. GitLab accepts its own
// header and a bearer token.
func (s *Server) authenticate(c *call, ep endpoint) *response {
	value := c.r.Header.Get("Private-Token")
	if bearer, found := strings.CutPrefix(c.r.Header.Get("Authorization"), "Bearer "); found {
		value = bearer
	}
	token := s.tokens[value]
	switch {
	case token == nil:
		out := newError(http.StatusUnauthorized, "401 Unauthorized")
		return &out
	case token.Revoked:
		return &response{status: http.StatusUnauthorized, body: map[string]any{
			"error":             "invalid_token",
			"error_description": "Token was revoked. You have to re-authorize from the user.",
		}}
	}
	c.token = token
	hasScope := func(scope string) bool { return slices.Contains(token.Scopes, scope) }
	if len(ep.scopes) == 0 || slices.ContainsFunc(ep.scopes, hasScope) {
		return nil
	}
	return &response{status: http.StatusForbidden, body: map[string]any{
		"error":             "insufficient_scope",
		"error_description": "The request requires higher privileges than provided by the access token.",
		"scope":             strings.Join(ep.scopes, " "),
	}}
}

// roleIn returns the token's highest role in a project or group. A role in a parent group counts,
// too.
func (t *Token) roleIn(path string) int {
	if t.Admin || len(t.Roles) == 0 {
		return levelOwner
	}
	highest := 0
	for scope, role := range t.Roles {
		if strings.EqualFold(scope, path) || strings.HasPrefix(strings.ToLower(path), strings.ToLower(scope)+"/") {
			highest = max(highest, roleLevel(role))
		}
	}
	return highest
}

func (s *Server) findGroup(path string) *group {
	for _, g := range s.groups {
		if strings.EqualFold(g.path, path) {
			return g
		}
	}
	return nil
}

func (s *Server) findProject(path string) *project {
	for _, p := range s.projects {
		if strings.EqualFold(p.path, path) {
			return p
		}
	}
	return nil
}

// findCallProject returns the project of a call, by id or path. If the caller has no access to the
// project, it returns nil.
func (s *Server) findCallProject(c *call) *project {
	ref := c.r.PathValue("id")
	found := s.findProject(ref)
	if id, err := strconv.ParseInt(ref, 10, 64); err == nil {
		found = s.projects[id]
	}
	if found == nil || c.token.roleIn(found.path) < levelGuest {
		return nil
	}
	return found
}

func (s *Server) findCallGroup(c *call) *group {
	ref := c.r.PathValue("id")
	found := s.findGroup(ref)
	if id, err := strconv.ParseInt(ref, 10, 64); err == nil {
		found = s.groups[id]
	}
	if found == nil || c.token.roleIn(found.path) < levelGuest {
		return nil
	}
	return found
}
