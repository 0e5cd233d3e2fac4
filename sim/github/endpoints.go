// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"maps"
	"net/http"
)

// The permissions are those of docs.github.com/rest "Permissions required for GitHub Apps". The OAuth
// scopes are those of each operation's description.

func repoRunnerAccess(isWrite bool) access {
	return access{permission: "administration", write: isWrite, scopes: []string{"repo"}}
}

func orgRunnerAccess(isWrite bool) access {
	return access{permission: "organization_self_hosted_runners", write: isWrite, scopes: []string{"admin:org"}}
}

func enterpriseRunnerAccess() access {
	return access{
		permission: "enterprise_self_hosted_runners", write: true,
		scopes: []string{"manage_runners:enterprise", "admin:enterprise"},
	}
}

func readActionsAccess() access {
	return access{permission: "actions", scopes: []string{"repo"}}
}

func newEndpoints() map[string]endpoint {
	result := map[string]endpoint{
		"rate-limit/get":                      {access{allowsAnyone: true}, (*Server).getRateLimit},
		"actions/get-job-for-workflow-run":    {readActionsAccess(), (*Server).getJob},
		"actions/list-workflow-runs-for-repo": {readActionsAccess(), (*Server).listRuns},
		"actions/get-workflow-run":            {readActionsAccess(), (*Server).getRun},
		"actions/list-jobs-for-workflow-run":  {readActionsAccess(), (*Server).listRunJobs},
		"apps/get-authenticated":              {access{needsApp: true}, (*Server).getApp},
		"apps/list-installations":             {access{needsApp: true}, (*Server).listInstallations},
		"apps/get-installation":               {access{needsApp: true}, (*Server).getInstallation},
		"apps/get-org-installation":           {access{needsApp: true}, (*Server).getScopeInstallation},
		"apps/get-repo-installation":          {access{needsApp: true}, (*Server).getScopeInstallation},
		"apps/create-installation-access-token": {
			access{needsApp: true}, (*Server).createInstallationToken,
		},
	}
	maps.Copy(result, newHookEndpoints())
	maps.Copy(result, newRunnerEndpoints())
	return result
}

// readAccess and writeAccess are the values of the parameters isWrite.
const readAccess, writeAccess = false, true

func newHookEndpoints() map[string]endpoint {
	app := access{needsApp: true}
	org := func(isWrite bool) access {
		return access{permission: "organization_hooks", write: isWrite, scopes: []string{"admin:org_hook"}}
	}
	repo := func(isWrite bool) access {
		scopes := []string{"repo", "admin:repo_hook", "write:repo_hook"}
		if !isWrite {
			scopes = append(scopes, "read:repo_hook")
		}
		return access{permission: "repository_hooks", write: isWrite, scopes: scopes}
	}
	return map[string]endpoint{
		"apps/get-webhook-config-for-app":  {app, (*Server).getAppHook},
		"apps/list-webhook-deliveries":     {app, (*Server).listDeliveries},
		"apps/get-webhook-delivery":        {app, (*Server).getDelivery},
		"apps/redeliver-webhook-delivery":  {app, (*Server).redeliver},
		"orgs/list-webhooks":               {org(readAccess), (*Server).listHooks},
		"orgs/list-webhook-deliveries":     {org(readAccess), (*Server).listDeliveries},
		"orgs/get-webhook-delivery":        {org(readAccess), (*Server).getDelivery},
		"orgs/redeliver-webhook-delivery":  {org(writeAccess), (*Server).redeliver},
		"repos/list-webhooks":              {repo(readAccess), (*Server).listHooks},
		"repos/list-webhook-deliveries":    {repo(readAccess), (*Server).listDeliveries},
		"repos/get-webhook-delivery":       {repo(readAccess), (*Server).getDelivery},
		"repos/redeliver-webhook-delivery": {repo(writeAccess), (*Server).redeliver},
	}
}

// newRunnerEndpoints returns the calls for runners at the three levels. GitHub's operation ids
// differ between the levels.
func newRunnerEndpoints() map[string]endpoint {
	result := map[string]endpoint{}
	add := func(area, level string, read, write access) {
		result[area+"/create-registration-token-for-"+level] = endpoint{write, (*Server).createRegistrationToken}
		result[area+"/create-remove-token-for-"+level] = endpoint{write, (*Server).createRemoveToken}
		result["actions/generate-runner-jitconfig-for-"+level] = endpoint{write, (*Server).createJITConfig}
		result[area+"/list-self-hosted-runners-for-"+level] = endpoint{read, (*Server).listRunners}
		result[area+"/get-self-hosted-runner-for-"+level] = endpoint{read, (*Server).getRunner}
		result[area+"/delete-self-hosted-runner-from-"+level] = endpoint{write, (*Server).deleteRunner}
		result[area+"/list-runner-applications-for-"+level] = endpoint{read, (*Server).listDownloads}
		if level == "repo" {
			return // repositories have no groups
		}
		result[area+"/list-self-hosted-runner-groups-for-"+level] = endpoint{read, (*Server).listGroups}
		result[area+"/get-self-hosted-runner-group-for-"+level] = endpoint{read, (*Server).getGroup}
		result[area+"/list-self-hosted-runners-in-group-for-"+level] = endpoint{read, (*Server).listRunners}
	}
	add("actions", "repo", repoRunnerAccess(readAccess), repoRunnerAccess(writeAccess))
	add("actions", "org", orgRunnerAccess(readAccess), orgRunnerAccess(writeAccess))
	add("enterprise-admin", "enterprise", enterpriseRunnerAccess(), enterpriseRunnerAccess())
	return result
}

func newCreated(body any) response { return response{status: http.StatusCreated, body: body} }

func newOK(body any) response { return response{status: http.StatusOK, body: body} }
