// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
)

func (s *Server) getJob(c *call) response {
	id, err := strconv.ParseInt(c.params["job_id"], 10, 64)
	j := s.jobs[id]
	if err != nil || j == nil || j.run.repo != s.repos[c.scope.name] {
		return newNotFound()
	}
	return newOK(s.shapes.encodeJob(j))
}

func (s *Server) findRun(c *call) *workflowRun {
	id, err := strconv.ParseInt(c.params["run_id"], 10, 64)
	run := s.runs[id]
	if err != nil || run == nil || run.repo != s.repos[c.scope.name] {
		return nil
	}
	return run
}

func (s *Server) getRun(c *call) response {
	run := s.findRun(c)
	if run == nil {
		return newNotFound()
	}
	return newOK(s.encodeRun(run))
}

// listRuns lists runs, newest first. The status filter accepts a status or a conclusion.
func (s *Server) listRuns(c *call) response {
	filter, list := c.r.URL.Query().Get("status"), []map[string]any{}
	var runs []*workflowRun
	for _, run := range s.runs {
		status, conclusion := run.summarize()
		if run.repo == s.repos[c.scope.name] && (filter == "" || filter == status || filter == conclusion) {
			runs = append(runs, run)
		}
	}
	slices.SortFunc(runs, func(a, b *workflowRun) int { return int(b.id - a.id) })
	for _, run := range runs {
		list = append(list, s.encodeRun(run))
	}
	part, link := paginate(c, list)
	return response{status: http.StatusOK, link: link, body: map[string]any{"total_count": len(list), "workflow_runs": part}}
}

func (s *Server) listRunJobs(c *call) response {
	run := s.findRun(c)
	if run == nil {
		return newNotFound()
	}
	list := []map[string]any{}
	for _, j := range run.jobs {
		list = append(list, s.shapes.encodeJob(j))
	}
	part, link := paginate(c, list)
	return response{status: http.StatusOK, link: link, body: map[string]any{"total_count": len(list), "jobs": part}}
}

func (s *Server) encodeRun(run *workflowRun) map[string]any {
	status, conclusion := run.summarize()
	repo := s.shapes.encodeRepository(run.repo)
	api := s.shapes.links.api + "/repos/" + run.repo.fullName()
	self := fmt.Sprintf("%s/actions/runs/%d", api, run.id)
	actor := s.shapes.encodeAccount(run.repo.owner)
	person := map[string]any{"name": "Octo Cat", "email": "octocat@example.com"}
	return map[string]any{
		"id": run.id, "name": run.workflow, "node_id": newNodeID("WFR", run.id), "head_branch": "main",
		"head_sha": run.headSHA, "path": ".github/workflows/ci.yml", "display_title": run.workflow,
		"run_number": run.number, "run_attempt": 1, "event": "push", "status": status,
		"conclusion": nilIfEmpty(conclusion), "workflow_id": 161335, "check_suite_id": run.id + 1,
		"check_suite_node_id": newNodeID("CS", run.id), "url": self,
		"html_url":      fmt.Sprintf("%s/%s/actions/runs/%d", s.shapes.links.web, run.repo.fullName(), run.id),
		"pull_requests": []any{}, "created_at": formatTime(run.createdAt), "updated_at": formatTime(run.updatedAt),
		"run_started_at": formatTime(run.createdAt), "actor": actor, "triggering_actor": actor,
		"jobs_url": self + "/jobs", "logs_url": self + "/logs", "cancel_url": self + "/cancel",
		"rerun_url": self + "/rerun", "artifacts_url": self + "/artifacts", "previous_attempt_url": nil,
		"check_suite_url": fmt.Sprintf("%s/check-suites/%d", api, run.id+1),
		"workflow_url":    api + "/actions/workflows/161335", "referenced_workflows": []any{},
		"head_commit": map[string]any{
			"id": run.headSHA, "tree_id": run.headSHA, "message": "Build", "timestamp": formatTime(run.createdAt),
			"author": person, "committer": person,
		},
		"repository": repo, "head_repository": repo,
	}
}
