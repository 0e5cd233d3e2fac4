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

// installationTokenLifetime is how long an installation token is valid.
const installationTokenLifetime = time.Hour

// appCreatedAt is the creation time of the App. Nothing depends on the value.
const appCreatedAt = "2024-01-01T00:00:00Z"

// findInstallation returns the App's installation that includes a repository, or nil.
func (s *Server) findInstallation(repo *repository) *Installation {
	if s.opts.App == nil {
		return nil
	}
	for i := range s.opts.App.Installations {
		inst := &s.opts.App.Installations[i]
		if !strings.EqualFold(inst.Account, repo.owner.login) {
			continue
		}
		if set := newLowerSet(inst.Repos); set == nil || set[strings.ToLower(repo.fullName())] {
			return inst
		}
	}
	return nil
}

func (s *Server) getApp(*call) response {
	app := s.opts.App
	slug := app.Slug
	if slug == "" {
		slug = "hyperfleet"
	}
	return newOK(map[string]any{
		"id": app.ID, "slug": slug, "client_id": app.ClientID, "node_id": newNodeID("A", app.ID),
		"owner": s.encodeOwner(), "name": slug, "description": "", "external_url": "https://example.com",
		"html_url": s.shapes.links.web + "/apps/" + slug, "created_at": appCreatedAt, "updated_at": appCreatedAt,
		"permissions": s.mergeAppPermissions(), "events": []string{"workflow_job"},
		"installations_count": len(app.Installations),
	})
}

// encodeOwner returns the account of the App's first installation, or any organization if the App has no installation.
func (s *Server) encodeOwner() map[string]any {
	for _, a := range s.orgs {
		if s.opts.App == nil || len(s.opts.App.Installations) == 0 ||
			strings.EqualFold(a.login, s.opts.App.Installations[0].Account) {
			return s.shapes.encodeAccount(a)
		}
	}
	return nil
}

func (s *Server) mergeAppPermissions() map[string]string {
	result := map[string]string{}
	for _, inst := range s.opts.App.Installations {
		maps.Copy(result, inst.Permissions)
	}
	return result
}

func (s *Server) encodeInstallation(c *call, inst *Installation) map[string]any {
	owner := s.orgs[strings.ToLower(inst.Account)]
	if owner == nil {
		owner = &account{id: 1, login: inst.Account}
	}
	kind, selection := "Organization", "all"
	if owner.user {
		kind = "User"
	}
	if len(inst.Repos) > 0 {
		selection = "selected"
	}
	self := c.baseURL + "/app/installations/" + strconv.FormatInt(inst.ID, 10)
	return map[string]any{
		"id": inst.ID, "account": s.shapes.encodeAccount(owner), "app_id": s.opts.App.ID, "app_slug": "hyperfleet",
		"target_id": owner.id, "target_type": kind, "repository_selection": selection,
		"permissions": inst.Permissions, "events": []string{"workflow_job"}, "single_file_name": nil,
		"access_tokens_url": self + "/access_tokens", "repositories_url": c.baseURL + "/installation/repositories",
		"html_url": s.shapes.links.web + "/organizations/" + owner.login + "/settings/installations/" +
			strconv.FormatInt(inst.ID, 10),
		"created_at": appCreatedAt, "updated_at": appCreatedAt, "suspended_at": nil, "suspended_by": nil,
	}
}

func (s *Server) listInstallations(c *call) response {
	list := []map[string]any{}
	for i := range s.opts.App.Installations {
		list = append(list, s.encodeInstallation(c, &s.opts.App.Installations[i]))
	}
	part, link := paginate(c, list)
	return response{status: http.StatusOK, body: part, link: link}
}

func (s *Server) findInstallationByID(c *call) *Installation {
	for i := range s.opts.App.Installations {
		if strconv.FormatInt(s.opts.App.Installations[i].ID, 10) == c.params["installation_id"] {
			return &s.opts.App.Installations[i]
		}
	}
	return nil
}

func (s *Server) getInstallation(c *call) response {
	inst := s.findInstallationByID(c)
	if inst == nil {
		return newNotFound()
	}
	return newOK(s.encodeInstallation(c, inst))
}

// getScopeInstallation returns the installation on an organisation or a repository.
func (s *Server) getScopeInstallation(c *call) response {
	if !s.resolveScope(c) {
		return newNotFound()
	}
	for _, repo := range s.repos {
		isOwner := c.scope.kind == scopeOrg && strings.EqualFold(repo.owner.login, c.scope.name)
		if isOwner || repo == s.repos[c.scope.name] {
			if inst := s.findInstallation(repo); inst != nil {
				return newOK(s.encodeInstallation(c, inst))
			}
		}
	}
	return newNotFound()
}

type tokenRequest struct {
	Repositories []string          `json:"repositories"`
	Permissions  map[string]string `json:"permissions"`
}

// createInstallationToken creates a token with the requested subset of the installation's
// permissions and repositories. It rejects a request for more than the installation has.
func (s *Server) createInstallationToken(c *call) response {
	inst := s.findInstallationByID(c)
	if inst == nil {
		return newNotFound()
	}
	var req tokenRequest
	if len(c.body) > 0 {
		if err := json.Unmarshal(c.body, &req); err != nil {
			return newError(http.StatusBadRequest, "Problems parsing JSON")
		}
	}
	permissions, ok := narrowPermissions(inst.Permissions, req.Permissions)
	if !ok {
		return newError(http.StatusUnprocessableEntity, "The permissions requested are not granted to this installation.")
	}
	names, ok := s.narrowRepos(inst, req.Repositories)
	if !ok {
		return newError(http.StatusUnprocessableEntity,
			"There is at least one repository that does not exist or is not accessible to the parent installation.")
	}
	token := "ghs_" + strconv.FormatInt(inst.ID, 10) + "_" + engine.RandomHex(60) // longer than 40 characters, as since April 2026
	s.credentials[token] = &credential{
		id: "installation ID " + strconv.FormatInt(inst.ID, 10), permissions: permissions, repos: newLowerSet(names),
		account: inst.Account, installationID: inst.ID, quota: s.ensureQuota(inst.ID), expiresAt: c.now.Add(installationTokenLifetime),
	}
	out := map[string]any{
		"token": token, "expires_at": formatTime(c.now.Add(installationTokenLifetime)), "permissions": permissions,
		"repository_selection": "all",
	}
	if len(names) > 0 {
		out["repository_selection"] = "selected"
	}
	return newCreated(out)
}

// narrowPermissions returns the requested permissions, or all granted ones if none are requested. It returns false if a
// requested permission is not granted.
func narrowPermissions(granted, requested map[string]string) (map[string]string, bool) {
	if len(requested) == 0 {
		return maps.Clone(granted), true
	}
	for name, level := range requested {
		cred := credential{permissions: granted}
		if !cred.allows(access{permission: name, write: level != "read"}) {
			return nil, false
		}
	}
	return requested, true
}

// narrowRepos returns the full names of the requested repositories, or all repositories of the installation if none are
// requested. It returns false if the installation does not have a requested repository.
func (s *Server) narrowRepos(inst *Installation, requested []string) ([]string, bool) {
	if len(requested) == 0 {
		return inst.Repos, true
	}
	var names []string
	for _, name := range requested {
		full := inst.Account + "/" + name
		repo := s.repos[strings.ToLower(full)]
		if repo == nil || s.findInstallation(repo) != inst {
			return nil, false
		}
		names = append(names, full)
	}
	slices.Sort(names)
	return names, true
}
