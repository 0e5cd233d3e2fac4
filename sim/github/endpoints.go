// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"maps"
	"net/http"
)

// Rights, by docs.github.com/rest "Permissions required for GitHub Apps" and
// the OAuth scopes named in each operation's description.
func repoRunners(write bool) access {
	return access{permission: "administration", write: write, scopes: []string{"repo"}}
}

func orgRunners(write bool) access {
	return access{permission: "organization_self_hosted_runners", write: write, scopes: []string{"admin:org"}}
}

func enterpriseRunners() access {
	return access{
		permission: "enterprise_self_hosted_runners", write: true,
		scopes: []string{"manage_runners:enterprise", "admin:enterprise"},
	}
}

func readActions() access {
	return access{permission: "actions", scopes: []string{"repo"}}
}

func endpoints() map[string]endpoint {
	all := map[string]endpoint{
		"rate-limit/get":                      {access{anyone: true}, (*Server).answerRateLimit},
		"actions/get-job-for-workflow-run":    {readActions(), (*Server).answerJob},
		"actions/list-workflow-runs-for-repo": {readActions(), (*Server).answerRuns},
		"actions/get-workflow-run":            {readActions(), (*Server).answerRun},
		"actions/list-jobs-for-workflow-run":  {readActions(), (*Server).answerRunJobs},
		"apps/get-authenticated":              {access{app: true}, (*Server).answerApp},
		"apps/list-installations":             {access{app: true}, (*Server).answerInstallations},
		"apps/get-installation":               {access{app: true}, (*Server).answerInstallation},
		"apps/get-org-installation":           {access{app: true}, (*Server).answerInstallationOf},
		"apps/get-repo-installation":          {access{app: true}, (*Server).answerInstallationOf},
		"apps/create-installation-access-token": {
			access{app: true}, (*Server).answerInstallationToken,
		},
	}
	maps.Copy(all, hookEndpoints())
	maps.Copy(all, runnerEndpoints())
	return all
}

func hookEndpoints() map[string]endpoint {
	app := access{app: true}
	org := func(write bool) access {
		return access{permission: "organization_hooks", write: write, scopes: []string{"admin:org_hook"}}
	}
	repo := func(write bool) access {
		scopes := []string{"repo", "admin:repo_hook", "write:repo_hook"}
		if !write {
			scopes = append(scopes, "read:repo_hook")
		}
		return access{permission: "repository_hooks", write: write, scopes: scopes}
	}
	return map[string]endpoint{
		"apps/get-webhook-config-for-app":  {app, (*Server).answerAppHook},
		"apps/list-webhook-deliveries":     {app, (*Server).answerDeliveries},
		"apps/get-webhook-delivery":        {app, (*Server).answerDelivery},
		"apps/redeliver-webhook-delivery":  {app, (*Server).answerRedeliver},
		"orgs/list-webhooks":               {org(false), (*Server).answerHooks},
		"orgs/list-webhook-deliveries":     {org(false), (*Server).answerDeliveries},
		"orgs/get-webhook-delivery":        {org(false), (*Server).answerDelivery},
		"orgs/redeliver-webhook-delivery":  {org(true), (*Server).answerRedeliver},
		"repos/list-webhooks":              {repo(false), (*Server).answerHooks},
		"repos/list-webhook-deliveries":    {repo(false), (*Server).answerDeliveries},
		"repos/get-webhook-delivery":       {repo(false), (*Server).answerDelivery},
		"repos/redeliver-webhook-delivery": {repo(true), (*Server).answerRedeliver},
	}
}

// runnerEndpoints lists the same calls for the three levels; GitHub spells the
// operation ids of the levels differently.
func runnerEndpoints() map[string]endpoint {
	all := map[string]endpoint{}
	add := func(area, level string, read, write access) {
		all[area+"/create-registration-token-for-"+level] = endpoint{write, (*Server).answerRegistrationToken}
		all[area+"/create-remove-token-for-"+level] = endpoint{write, (*Server).answerRemoveToken}
		all["actions/generate-runner-jitconfig-for-"+level] = endpoint{write, (*Server).answerJIT}
		all[area+"/list-self-hosted-runners-for-"+level] = endpoint{read, (*Server).answerRunners}
		all[area+"/get-self-hosted-runner-for-"+level] = endpoint{read, (*Server).answerRunner}
		all[area+"/delete-self-hosted-runner-from-"+level] = endpoint{write, (*Server).answerDeleteRunner}
		all[area+"/list-runner-applications-for-"+level] = endpoint{read, (*Server).answerDownloads}
		if level == "repo" {
			return // repositories have no groups
		}
		all[area+"/list-self-hosted-runner-groups-for-"+level] = endpoint{read, (*Server).answerGroups}
		all[area+"/get-self-hosted-runner-group-for-"+level] = endpoint{read, (*Server).answerGroup}
		all[area+"/list-self-hosted-runners-in-group-for-"+level] = endpoint{read, (*Server).answerRunners}
	}
	add("actions", "repo", repoRunners(false), repoRunners(true))
	add("actions", "org", orgRunners(false), orgRunners(true))
	add("enterprise-admin", "enterprise", enterpriseRunners(), enterpriseRunners())
	return all
}

func created(body any) reply { return reply{status: http.StatusCreated, body: body} }

func ok(body any) reply { return reply{status: http.StatusOK, body: body} }
