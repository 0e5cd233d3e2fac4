// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"fmt"
	"net/http"
	"strings"
)

// config is a hook's configuration as GitHub shows it: never with the secret itself.
func (h *hook) config() map[string]any {
	out := map[string]any{"url": h.URL, "content_type": "json", "insecure_ssl": "0"}
	if h.Secret != "" {
		out["secret"] = "********"
	}
	return out
}

// answerAppHook gives where the App's events go.
func (s *Server) answerAppHook(*call) reply {
	for _, h := range s.hooks {
		if h.Owner == "app" {
			return ok(h.config())
		}
	}
	return notFound()
}

// answerHooks lists the hooks of a repository or an organisation.
func (s *Server) answerHooks(c *call) reply {
	list := []map[string]any{}
	for _, h := range s.hooks {
		if strings.EqualFold(h.Owner, c.scope.name) {
			list = append(list, s.hookJSON(c, h))
		}
	}
	part, link := page(c, list)
	return reply{status: http.StatusOK, body: part, link: link}
}

func (s *Server) hookJSON(c *call, h *hook) map[string]any {
	area, kind := "repos/", "Repository"
	if c.scope.kind == scopeOrg {
		area, kind = "orgs/", "Organization"
	}
	self := fmt.Sprintf("%s/%s%s/hooks/%d", s.shapes.links.api, area, s.place(c.scope), h.ID)
	out := map[string]any{
		"type": kind, "id": h.ID, "name": "web", "active": h.URL != "", "events": []string{"workflow_job"},
		"config": h.config(), "created_at": appEpoch, "updated_at": appEpoch, "url": self,
		"ping_url": self + "/pings", "deliveries_url": self + "/deliveries",
	}
	if c.scope.kind == scopeOrg {
		return out
	}
	out["test_url"] = self + "/test"
	last := map[string]any{"code": nil, "status": "unused", "message": nil}
	if n := len(h.deliveries); n > 0 {
		last = map[string]any{"code": h.deliveries[n-1].answer.Code, "status": "active", "message": h.deliveries[n-1].status}
	}
	out["last_response"] = last
	return out
}
