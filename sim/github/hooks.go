// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"fmt"
	"net/http"
	"strings"
)

// encodeConfig returns the configuration of a hook without the secret, as GitHub does.
func (h *hook) encodeConfig() map[string]any {
	out := map[string]any{"url": h.URL, "content_type": "json", "insecure_ssl": "0"}
	if h.Secret != "" {
		out["secret"] = "********"
	}
	return out
}

// getAppHook returns the configuration of the App's hook.
func (s *Server) getAppHook(*call) response {
	for _, h := range s.hooks {
		if h.Owner == "app" {
			return newOK(h.encodeConfig())
		}
	}
	return newNotFound()
}

// listHooks lists the hooks of a repository or an organisation.
func (s *Server) listHooks(c *call) response {
	list := []map[string]any{}
	for _, h := range s.hooks {
		if strings.EqualFold(h.Owner, c.scope.name) {
			list = append(list, s.encodeHook(c, h))
		}
	}
	part, link := paginate(c, list)
	return response{status: http.StatusOK, body: part, link: link}
}

func (s *Server) encodeHook(c *call, h *hook) map[string]any {
	area, kind := "repos/", "Repository"
	if c.scope.kind == scopeOrg {
		area, kind = "orgs/", "Organization"
	}
	self := fmt.Sprintf("%s/%s%s/hooks/%d", s.shapes.links.api, area, s.scopePath(c.scope), h.ID)
	out := map[string]any{
		"type": kind, "id": h.ID, "name": "web", "active": h.URL != "", "events": []string{"workflow_job"},
		"config": h.encodeConfig(), "created_at": appCreatedAt, "updated_at": appCreatedAt, "url": self,
		"ping_url": self + "/pings", "deliveries_url": self + "/deliveries",
	}
	if c.scope.kind == scopeOrg {
		return out
	}
	out["test_url"] = self + "/test"
	last := map[string]any{"code": nil, "status": "unused", "message": nil}
	if n := len(h.deliveries); n > 0 {
		last = map[string]any{"code": h.deliveries[n-1].response.Code, "status": "active", "message": h.deliveries[n-1].status}
	}
	out["last_response"] = last
	return out
}
