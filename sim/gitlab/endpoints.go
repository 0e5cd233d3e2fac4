// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

// requestRoute is a runner's question for a job.
const requestRoute = "POST /jobs/request"

// Scopes that open a call, by docs "Personal access tokens", section "Access token
// scopes", and the calls' own declarations.
func reads() []string { return []string{"api", "read_api"} }

func managesRunner() []string { return []string{"api", "manage_runner"} }

func readsRunner() []string { return []string{"api", "read_api", "manage_runner"} }

func pages() params { return params{"page": {kind: number}, "per_page": {kind: number}} }

func runnerTypes() []string { return []string{typeInstance, typeGroup, typeProject} }

func runnerFilters() params {
	return pages().and(params{
		"type": {kind: text, values: runnerTypes()}, "paused": {kind: boolean}, "tag_list": {kind: texts},
		"status": {kind: text, values: []string{"active", "paused", "online", "offline", "never_contacted", "stale"}},
	})
}

func runnerSettings() params {
	return params{
		"description": {kind: text}, "maintenance_note": {kind: text}, "paused": {kind: boolean}, "locked": {kind: boolean},
		"access_level": {kind: text, values: []string{"not_protected", "ref_protected"}}, "run_untagged": {kind: boolean},
		"tag_list": {kind: texts}, "maximum_timeout": {kind: number},
	}
}

// apiEndpoints are the calls of users' tokens.
func apiEndpoints() map[string]endpoint {
	statuses := []string{
		"created", "waiting_for_resource", "preparing", statusPending, statusRunning, statusSuccess, statusFailed,
		statusCanceled, "canceling", "skipped", statusManual, "scheduled",
	}
	return map[string]endpoint{
		"GET /personal_access_tokens/self": {scopes: []string{}, answer: (*Server).answerSelf},
		"GET /user":                        {scopes: []string{"api", "read_api", "read_user"}, answer: (*Server).answerUser},
		"GET /projects/{id}":               {scopes: reads(), answer: (*Server).answerProject},
		"GET /groups/{id}": {
			scopes: reads(), params: params{"with_projects": {kind: boolean}}, answer: (*Server).answerGroup,
		},
		"GET /groups/{id}/projects": {
			scopes: reads(), answer: (*Server).answerGroupProjects,
			params: pages().and(params{
				"archived": {kind: boolean}, "include_subgroups": {kind: boolean}, "simple": {kind: boolean},
				"order_by": {kind: text, values: []string{"id", "name", "path", "created_at", "updated_at", "last_activity_at"}},
				"sort":     {kind: text, values: []string{"asc", "desc"}},
			}),
		},
		"GET /projects/{id}/jobs": {
			scopes: reads(), params: pages().and(params{"scope": {kind: texts, values: statuses}}),
			answer: (*Server).answerProjectJobs,
		},
		"GET /projects/{id}/jobs/{job}": {scopes: reads(), answer: (*Server).answerJob},
		"GET /projects/{id}/runners":    {scopes: reads(), params: runnerFilters(), answer: (*Server).answerProjectRunners},
		"GET /groups/{id}/runners":      {scopes: reads(), params: runnerFilters(), answer: (*Server).answerGroupRunners},
		"GET /runners/all":              {scopes: reads(), params: runnerFilters(), answer: (*Server).answerAllRunners},
		"GET /runners/{id}":             {scopes: readsRunner(), answer: (*Server).answerRunner},
		"PUT /runners/{id}":             {scopes: managesRunner(), params: runnerSettings(), answer: (*Server).answerUpdateRunner},
		"DELETE /runners/{id}":          {scopes: managesRunner(), answer: (*Server).answerDeleteRunner},
		"GET /runners/{id}/jobs": {
			scopes: readsRunner(), params: pages().and(params{"status": {kind: text, values: statuses}}),
			answer: (*Server).answerRunnerJobs,
		},
		"POST /user/runners": {
			scopes: []string{"api", "create_runner"}, answer: (*Server).answerCreateRunner,
			params: runnerSettings().and(params{
				"runner_type": {kind: text, required: true, values: runnerTypes()},
				"group_id":    {kind: number}, "project_id": {kind: number},
			}),
		},
	}
}

// runnerEndpoints are the calls that gitlab-runner makes, with tokens in their bodies.
func runnerEndpoints() map[string]endpoint {
	token, info := param{kind: text, required: true}, param{kind: hash}
	return map[string]endpoint{
		"POST /runners/verify": {
			params: params{"token": token, "system_id": {kind: text}}, answer: (*Server).answerVerify,
		},
		requestRoute: {
			answer: (*Server).answerRequest,
			params: params{
				"token": token, "system_id": {kind: text}, "last_update": {kind: text}, "info": info, "session": {kind: hash},
			},
		},
		"PUT /jobs/{id}": {
			answer: (*Server).answerUpdateJob,
			params: params{
				"token": token, "info": info, "checksum": {kind: text}, "output": {kind: hash}, "exit_code": {kind: number},
				"state":          {kind: text, values: []string{statusRunning, statusSuccess, statusFailed}},
				"failure_reason": {kind: text},
			},
		},
		"PATCH /jobs/{id}/trace": {
			raw: true, params: params{"debug_trace": {kind: boolean}}, answer: (*Server).answerTrace,
		},
	}
}
