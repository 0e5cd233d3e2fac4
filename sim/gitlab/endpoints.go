// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

// requestRoute is the route on which a runner requests a job.
const requestRoute = "POST /jobs/request"

// The scopes that allow a call are those of GitLab's documentation "Personal access tokens", section
// "Access token scopes", and of the declarations of the calls.

func readScopes() []string { return []string{"api", "read_api"} }

func manageRunnerScopes() []string { return []string{"api", "manage_runner"} }

func readRunnerScopes() []string { return []string{"api", "read_api", "manage_runner"} }

func newPageParams() params {
	return params{"page": {kind: kindNumber}, "per_page": {kind: kindNumber}}
}

func runnerTypes() []string { return []string{typeInstance, typeGroup, typeProject} }

func newRunnerFilters() params {
	return newPageParams().with(params{
		"type": {kind: kindText, values: runnerTypes()}, "paused": {kind: kindBoolean}, "tag_list": {kind: kindTexts},
		"status": {kind: kindText, values: []string{"active", "paused", "online", "offline", "never_contacted", "stale"}},
	})
}

func newRunnerSettings() params {
	return params{
		"description": {kind: kindText}, "maintenance_note": {kind: kindText},
		"paused": {kind: kindBoolean}, "locked": {kind: kindBoolean},
		"access_level": {kind: kindText, values: []string{"not_protected", "ref_protected"}}, "run_untagged": {kind: kindBoolean},
		"tag_list": {kind: kindTexts}, "maximum_timeout": {kind: kindNumber},
	}
}

// newAPIEndpoints returns the calls that need an access token.
func newAPIEndpoints() map[string]endpoint {
	statuses := []string{
		"created", "waiting_for_resource", "preparing", statusPending, statusRunning, statusSuccess, statusFailed,
		statusCanceled, "canceling", "skipped", statusManual, "scheduled",
	}
	return map[string]endpoint{
		"GET /personal_access_tokens/self": {scopes: []string{}, handle: (*Server).getSelf},
		"GET /user":                        {scopes: []string{"api", "read_api", "read_user"}, handle: (*Server).getUser},
		"GET /projects/{id}":               {scopes: readScopes(), handle: (*Server).getProject},
		"GET /groups/{id}": {
			scopes: readScopes(), params: params{"with_projects": {kind: kindBoolean}}, handle: (*Server).getGroup,
		},
		"GET /groups/{id}/projects": {
			scopes: readScopes(), handle: (*Server).listGroupProjects,
			params: newPageParams().with(params{
				"archived": {kind: kindBoolean}, "include_subgroups": {kind: kindBoolean}, "simple": {kind: kindBoolean},
				"order_by": {kind: kindText, values: []string{"id", "name", "path", "created_at", "updated_at", "last_activity_at"}},
				"sort":     {kind: kindText, values: []string{"asc", "desc"}},
			}),
		},
		"GET /projects/{id}/jobs": {
			scopes: readScopes(), params: newPageParams().with(params{"scope": {kind: kindTexts, values: statuses}}),
			handle: (*Server).listProjectJobs,
		},
		"GET /projects/{id}/jobs/{job}": {scopes: readScopes(), handle: (*Server).getJob},
		"GET /projects/{id}/runners":    {scopes: readScopes(), params: newRunnerFilters(), handle: (*Server).listProjectRunners},
		"GET /groups/{id}/runners":      {scopes: readScopes(), params: newRunnerFilters(), handle: (*Server).listGroupRunners},
		"GET /runners/all":              {scopes: readScopes(), params: newRunnerFilters(), handle: (*Server).listAllRunners},
		"GET /runners/{id}":             {scopes: readRunnerScopes(), handle: (*Server).getRunner},
		"PUT /runners/{id}":             {scopes: manageRunnerScopes(), params: newRunnerSettings(), handle: (*Server).updateRunner},
		"DELETE /runners/{id}":          {scopes: manageRunnerScopes(), handle: (*Server).deleteRunner},
		"GET /runners/{id}/jobs": {
			scopes: readRunnerScopes(), params: newPageParams().with(params{"status": {kind: kindText, values: statuses}}),
			handle: (*Server).listRunnerJobs,
		},
		"POST /user/runners": {
			scopes: []string{"api", "create_runner"}, handle: (*Server).createRunner,
			params: newRunnerSettings().with(params{
				"runner_type": {kind: kindText, required: true, values: runnerTypes()},
				"group_id":    {kind: kindNumber}, "project_id": {kind: kindNumber},
			}),
		},
	}
}

// newRunnerEndpoints returns the calls of gitlab-runner, which have a token in the body.
func newRunnerEndpoints() map[string]endpoint {
	token, info := param{kind: kindText, required: true}, param{kind: kindHash}
	return map[string]endpoint{
		"POST /runners/verify": {
			params: params{"token": token, "system_id": {kind: kindText}}, handle: (*Server).verifyRunner,
		},
		requestRoute: {
			handle: (*Server).requestJob,
			params: params{
				"token": token, "system_id": {kind: kindText}, "last_update": {kind: kindText}, "info": info, "session": {kind: kindHash},
			},
		},
		"PUT /jobs/{id}": {
			handle: (*Server).updateJob,
			params: params{
				"token": token, "info": info, "checksum": {kind: kindText}, "output": {kind: kindHash}, "exit_code": {kind: kindNumber},
				"state":          {kind: kindText, values: []string{statusRunning, statusSuccess, statusFailed}},
				"failure_reason": {kind: kindText},
			},
		},
		"PATCH /jobs/{id}/trace": {
			isRaw: true, params: params{"debug_trace": {kind: kindBoolean}}, handle: (*Server).appendTrace,
		},
	}
}
