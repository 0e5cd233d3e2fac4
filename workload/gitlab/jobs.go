// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	gl "gitlab.com/gitlab-org/api/client-go"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// maxProjects is how many of a group's projects are asked for their jobs at a time:
	// those that something happened in last.
	maxProjects = 100
	// maxJobPages bounds the jobs of one project: the newest.
	maxJobPages = 10
)

// Job gives GitLab's present word on a job, its tags among it.
func (p *provider) Job(ctx context.Context, repository, id string) (workload.Job, error) {
	number := workload.Number(id)
	if !isProject(repository) || !plain(repository) || number <= 0 {
		return workload.Job{}, workload.Reject(ReasonRequest,
			fmt.Sprintf("job %q of project %q is not one of GitLab's", id, repository))
	}

	if err := p.limit.spare("asking for a job"); err != nil {
		return workload.Job{}, err
	}

	said, _, err := p.client.Jobs.GetJob(repository, number, gl.WithContext(ctx))
	if err != nil {
		if status, _ := statusOf(err); status == http.StatusNotFound {
			return workload.Job{}, &workload.Error{
				Kind: workload.NotFound, Reason: workload.ReasonJobMissing,
				Message: fmt.Sprintf("GitLab knows no job %s in project %s, or hides it from this access token; reading it needs %s",
					id, repository, needsJobs),
			}
		}

		return workload.Job{}, p.explain("reading job "+id+" of "+repository, needsJobs, err)
	}

	return jobOf(repository, said)
}

// Jobs gives the pending and running jobs of the project, or of the group's projects: the
// last maxProjects that something happened in, and those of repositories. An instance has
// no such list: its repositories alone are asked.
func (p *provider) Jobs(ctx context.Context, repositories []string) ([]workload.Job, error) {
	if err := p.limit.spare("asking for jobs"); err != nil {
		return nil, err
	}

	where, err := p.locate(ctx)
	if err != nil {
		return nil, err
	}

	projects, err := p.projects(ctx, where, repositories)
	if err != nil {
		return nil, err
	}

	if len(projects) == 0 && p.where.kind == instanceScope {
		return nil, workload.NothingToAsk("the instance")
	}

	var out []workload.Job

	for _, project := range projects {
		jobs, err := p.jobsOf(ctx, project)
		// A project without pipelines refuses, and one may go at any moment.
		refused, _ := errors.AsType[*workload.Error](err)
		if refused != nil && p.where.kind != projectScope && (refused.Reason == ReasonPermission || refused.Reason == ReasonScope) {
			continue
		}

		if err != nil {
			return nil, err
		}

		out = append(out, jobs...)
	}

	return out, nil
}

// projects gives the projects to ask for their jobs, each once.
func (p *provider) projects(ctx context.Context, where place, repositories []string) ([]string, error) {
	var out []string

	switch p.where.kind {
	case projectScope:
		return []string{where.path}, nil
	case groupScope:
		found, err := p.recent(ctx)
		if err != nil {
			return nil, err
		}

		out = found
	}

	for _, repository := range repositories {
		mine := isProject(repository) && plain(repository) && (p.where.kind != groupScope || below(where.path, repository))
		if mine && !slices.ContainsFunc(out, func(have string) bool { return strings.EqualFold(have, repository) }) {
			out = append(out, repository)
		}
	}

	return out, nil
}

// recent gives the group's projects that something happened in last.
func (p *provider) recent(ctx context.Context) ([]string, error) {
	found, _, err := p.client.Groups.ListGroupProjects(p.where.name, &gl.ListGroupProjectsOptions{
		ListOptions: gl.ListOptions{PerPage: maxProjects}, Archived: new(false), IncludeSubGroups: new(true),
		OrderBy: new("last_activity_at"), Sort: new("desc"), Simple: new(true),
	}, gl.WithContext(ctx))
	if err != nil {
		return nil, p.explain("listing projects", needsRead, err)
	}

	out := make([]string, 0, len(found))
	for _, project := range found {
		out = append(out, project.PathWithNamespace)
	}

	return out, nil
}

// jobsOf gives the jobs of one project that wait for a runner or run on one.
func (p *provider) jobsOf(ctx context.Context, project string) ([]workload.Job, error) {
	opts := &gl.ListJobsOptions{
		ListOptions: gl.ListOptions{PerPage: perPage}, Scope: &[]gl.BuildStateValue{gl.Pending, gl.Running},
	}

	var out []workload.Job

	for opts.Page = 1; opts.Page > 0 && opts.Page <= maxJobPages; {
		found, resp, err := p.client.Jobs.ListProjectJobs(project, opts, gl.WithContext(ctx))
		if err != nil {
			return nil, p.explain("listing the jobs of project "+project, needsJobs, err)
		}

		for _, said := range found {
			// What can't be read is no reason to miss the others.
			if job, err := jobOf(project, said); err == nil {
				out = append(out, job)
			}
		}

		opts.Page = resp.NextPage
	}

	return out, nil
}

// jobOf reads a job as the API describes it
// (https://docs.gitlab.com/api/jobs/#get-a-single-job).
func jobOf(project string, said *gl.Job) (workload.Job, error) {
	state, err := stateOf(said.Status)
	if err != nil {
		return workload.Job{}, err
	}

	if err := checkLabels(said.TagList); err != nil {
		return workload.Job{}, err
	}

	namespace, _ := split(project)
	created, started, finished := timeOf(said.CreatedAt), timeOf(said.StartedAt), timeOf(said.FinishedAt)

	job := workload.Job{
		Platform: v1alpha1.WorkloadGitLabCI, ID: strconv.FormatInt(said.ID, 10), Name: workload.Cut(said.Name, workload.MaxText),
		Repository: project, Organization: workload.Cut(namespace, workload.MaxName),
		Workflow: workload.Cut(said.Stage, workload.MaxText), URL: workload.Link(said.WebURL),
		Labels: said.TagList, State: state, QueuedAt: queuedAt(created, started, said.QueuedDuration),
	}
	if said.Pipeline.ID > 0 {
		job.RunID = strconv.FormatInt(said.Pipeline.ID, 10)
	}

	if state == v1alpha1.JobRunning || state == v1alpha1.JobCompleted {
		name, _ := readDescription(said.Runner.Description)
		job.RunnerName, job.StartedAt = workload.Cut(name, workload.MaxName), metaTime(started)
	}

	if state == v1alpha1.JobCompleted {
		job.Conclusion, job.CompletedAt = conclusionOf(said.Status), metaTime(finished)
	}

	return job, nil
}

func timeOf(at *time.Time) time.Time {
	if at == nil {
		return time.Time{}
	}

	return *at
}
