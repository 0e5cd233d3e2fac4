// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
)

func (s *Server) answerJob(c *call) reply {
	id, err := strconv.ParseInt(c.params["job_id"], 10, 64)
	j := s.jobs[id]
	if err != nil || j == nil || j.run.repo != s.repos[c.scope.name] {
		return notFound()
	}
	return ok(s.shapes.jobJSON(j))
}

func (s *Server) runOf(c *call) *workflowRun {
	id, err := strconv.ParseInt(c.params["run_id"], 10, 64)
	run := s.runs[id]
	if err != nil || run == nil || run.repo != s.repos[c.scope.name] {
		return nil
	}
	return run
}

func (s *Server) answerRun(c *call) reply {
	run := s.runOf(c)
	if run == nil {
		return notFound()
	}
	return ok(s.runJSON(run))
}

// answerRuns lists runs, newest first. The status filter takes a status or a conclusion.
func (s *Server) answerRuns(c *call) reply {
	want, list := c.r.URL.Query().Get("status"), []map[string]any{}
	var runs []*workflowRun
	for _, run := range s.runs {
		status, conclusion := run.status()
		if run.repo == s.repos[c.scope.name] && (want == "" || want == status || want == conclusion) {
			runs = append(runs, run)
		}
	}
	slices.SortFunc(runs, func(a, b *workflowRun) int { return int(b.id - a.id) })
	for _, run := range runs {
		list = append(list, s.runJSON(run))
	}
	part, link := page(c, list)
	return reply{status: http.StatusOK, link: link, body: map[string]any{"total_count": len(list), "workflow_runs": part}}
}

func (s *Server) answerRunJobs(c *call) reply {
	run := s.runOf(c)
	if run == nil {
		return notFound()
	}
	list := []map[string]any{}
	for _, j := range run.jobs {
		list = append(list, s.shapes.jobJSON(j))
	}
	part, link := page(c, list)
	return reply{status: http.StatusOK, link: link, body: map[string]any{"total_count": len(list), "jobs": part}}
}

func (s *Server) runJSON(run *workflowRun) map[string]any {
	status, conclusion := run.status()
	repo := s.shapes.repositoryJSON(run.repo)
	api := s.shapes.links.api + "/repos/" + run.repo.fullName()
	self := fmt.Sprintf("%s/actions/runs/%d", api, run.id)
	actor := s.shapes.accountJSON(run.repo.owner)
	person := map[string]any{"name": "Octo Cat", "email": "octocat@example.com"}
	return map[string]any{
		"id": run.id, "name": run.workflow, "node_id": nodeID("WFR", run.id), "head_branch": "main",
		"head_sha": run.headSHA, "path": ".github/workflows/ci.yml", "display_title": run.workflow,
		"run_number": run.number, "run_attempt": 1, "event": "push", "status": status,
		"conclusion": textOrNil(conclusion), "workflow_id": 161335, "check_suite_id": run.id + 1,
		"check_suite_node_id": nodeID("CS", run.id), "url": self,
		"html_url":      fmt.Sprintf("%s/%s/actions/runs/%d", s.shapes.links.web, run.repo.fullName(), run.id),
		"pull_requests": []any{}, "created_at": stamp(run.created), "updated_at": stamp(run.updated),
		"run_started_at": stamp(run.created), "actor": actor, "triggering_actor": actor,
		"jobs_url": self + "/jobs", "logs_url": self + "/logs", "cancel_url": self + "/cancel",
		"rerun_url": self + "/rerun", "artifacts_url": self + "/artifacts", "previous_attempt_url": nil,
		"check_suite_url": fmt.Sprintf("%s/check-suites/%d", api, run.id+1),
		"workflow_url":    api + "/actions/workflows/161335", "referenced_workflows": []any{},
		"head_commit": map[string]any{
			"id": run.headSHA, "tree_id": run.headSHA, "message": "Build", "timestamp": stamp(run.created),
			"author": person, "committer": person,
		},
		"repository": repo, "head_repository": repo,
	}
}
