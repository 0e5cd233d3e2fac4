// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// installLife is how long an installation token is good for.
const installLife = time.Hour

// appEpoch stands for the day the App was made; nothing depends on it.
const appEpoch = "2024-01-01T00:00:00Z"

// installationOf finds the App's installation that covers a repository.
func (s *Server) installationOf(repo *repository) *Installation {
	if s.opts.App == nil {
		return nil
	}
	for i := range s.opts.App.Installations {
		in := &s.opts.App.Installations[i]
		if !strings.EqualFold(in.Account, repo.owner.login) {
			continue
		}
		if set := lowerSet(in.Repos); set == nil || set[strings.ToLower(repo.fullName())] {
			return in
		}
	}
	return nil
}

func (s *Server) answerApp(*call) reply {
	app := s.opts.App
	slug := app.Slug
	if slug == "" {
		slug = "hyperfleet"
	}
	return ok(map[string]any{
		"id": app.ID, "slug": slug, "client_id": app.ClientID, "node_id": nodeID("A", app.ID),
		"owner": s.ownerJSON(), "name": slug, "description": "", "external_url": "https://example.com",
		"html_url": s.shapes.links.web + "/apps/" + slug, "created_at": appEpoch, "updated_at": appEpoch,
		"permissions": s.appPermissions(), "events": []string{"workflow_job"},
		"installations_count": len(app.Installations),
	})
}

func (s *Server) ownerJSON() map[string]any {
	for _, a := range s.orgs {
		if s.opts.App == nil || len(s.opts.App.Installations) == 0 ||
			strings.EqualFold(a.login, s.opts.App.Installations[0].Account) {
			return s.shapes.accountJSON(a)
		}
	}
	return nil
}

func (s *Server) appPermissions() map[string]string {
	all := map[string]string{}
	for _, in := range s.opts.App.Installations {
		maps.Copy(all, in.Permissions)
	}
	return all
}

func (s *Server) installationJSON(c *call, in *Installation) map[string]any {
	owner := s.orgs[strings.ToLower(in.Account)]
	if owner == nil {
		owner = &account{id: 1, login: in.Account}
	}
	kind, selection := "Organization", "all"
	if owner.user {
		kind = "User"
	}
	if len(in.Repos) > 0 {
		selection = "selected"
	}
	self := c.host + "/app/installations/" + strconv.FormatInt(in.ID, 10)
	return map[string]any{
		"id": in.ID, "account": s.shapes.accountJSON(owner), "app_id": s.opts.App.ID, "app_slug": "hyperfleet",
		"target_id": owner.id, "target_type": kind, "repository_selection": selection,
		"permissions": in.Permissions, "events": []string{"workflow_job"}, "single_file_name": nil,
		"access_tokens_url": self + "/access_tokens", "repositories_url": c.host + "/installation/repositories",
		"html_url":   s.shapes.links.web + "/organizations/" + owner.login + "/settings/installations/" + strconv.FormatInt(in.ID, 10),
		"created_at": appEpoch, "updated_at": appEpoch, "suspended_at": nil, "suspended_by": nil,
	}
}

func (s *Server) answerInstallations(c *call) reply {
	list := []map[string]any{}
	for i := range s.opts.App.Installations {
		list = append(list, s.installationJSON(c, &s.opts.App.Installations[i]))
	}
	part, link := page(c, list)
	return reply{status: http.StatusOK, body: part, link: link}
}

func (s *Server) installationByID(c *call) *Installation {
	for i := range s.opts.App.Installations {
		if strconv.FormatInt(s.opts.App.Installations[i].ID, 10) == c.params["installation_id"] {
			return &s.opts.App.Installations[i]
		}
	}
	return nil
}

func (s *Server) answerInstallation(c *call) reply {
	in := s.installationByID(c)
	if in == nil {
		return notFound()
	}
	return ok(s.installationJSON(c, in))
}

// answerInstallationOf finds the installation on an organisation or repository.
func (s *Server) answerInstallationOf(c *call) reply {
	if !s.resolve(c) {
		return notFound()
	}
	for _, repo := range s.repos {
		owner := c.scope.kind == scopeOrg && strings.EqualFold(repo.owner.login, c.scope.name)
		if owner || repo == s.repos[c.scope.name] {
			if in := s.installationOf(repo); in != nil {
				return ok(s.installationJSON(c, in))
			}
		}
	}
	return notFound()
}

type tokenRequest struct {
	Repositories []string          `json:"repositories"`
	Permissions  map[string]string `json:"permissions"`
}

// answerInstallationToken narrows permissions and repositories as asked; asking
// for more than the installation has is refused.
func (s *Server) answerInstallationToken(c *call) reply {
	in := s.installationByID(c)
	if in == nil {
		return notFound()
	}
	var req tokenRequest
	if len(c.body) > 0 {
		if err := json.Unmarshal(c.body, &req); err != nil {
			return fail(http.StatusBadRequest, "Problems parsing JSON")
		}
	}
	permissions, granted := narrow(in.Permissions, req.Permissions)
	if !granted {
		return fail(http.StatusUnprocessableEntity, "The permissions requested are not granted to this installation.")
	}
	names, known := s.tokenRepos(in, req.Repositories)
	if !known {
		return fail(http.StatusUnprocessableEntity,
			"There is at least one repository that does not exist or is not accessible to the parent installation.")
	}
	token := "ghs_" + strconv.FormatInt(in.ID, 10) + "_" + engine.Hex(60) // longer than 40 characters, as since April 2026
	s.creds[token] = &credential{
		id: "installation ID " + strconv.FormatInt(in.ID, 10), permissions: permissions, repos: lowerSet(names),
		account: in.Account, install: in.ID, quota: s.quotaOf(in.ID), expires: c.now.Add(installLife),
	}
	out := map[string]any{
		"token": token, "expires_at": stamp(c.now.Add(installLife)), "permissions": permissions,
		"repository_selection": "all",
	}
	if len(names) > 0 {
		out["repository_selection"] = "selected"
	}
	return created(out)
}

func narrow(have, want map[string]string) (map[string]string, bool) {
	if len(want) == 0 {
		return maps.Clone(have), true
	}
	for name, level := range want {
		cred := credential{permissions: have}
		if !cred.allows(access{permission: name, write: level != "read"}) {
			return nil, false
		}
	}
	return want, true
}

func (s *Server) tokenRepos(in *Installation, want []string) ([]string, bool) {
	if len(want) == 0 {
		return in.Repos, true
	}
	var names []string
	for _, name := range want {
		full := in.Account + "/" + name
		repo := s.repos[strings.ToLower(full)]
		if repo == nil || s.installationOf(repo) != in {
			return nil, false
		}
		names = append(names, full)
	}
	slices.Sort(names)
	return names, true
}
