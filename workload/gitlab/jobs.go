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
	// maxProjects is how many projects of a group are polled: those with the most recent activity.
	maxProjects = 100
	// maxJobPages bounds the pages of one project's jobs, which begin with the newest jobs.
	maxJobPages = 10
)

// GetJob returns the current state of a job, including its tags.
func (p *provider) GetJob(ctx context.Context, repository, id string) (workload.Job, error) {
	number := workload.ParseID(id)
	if !isProjectPath(repository) || !isValidPath(repository) || number <= 0 {
		return workload.Job{}, workload.NewRejected(ReasonRequest,
			fmt.Sprintf("job %q of project %q is not a valid job of GitLab", id, repository))
	}

	if err := p.limit.checkAllowed("get job " + id); err != nil {
		return workload.Job{}, err
	}

	response, err := requireObject(p.client.Jobs.GetJob(repository, number, gl.WithContext(ctx)))
	if err != nil {
		if status, _ := statusOf(err); status == http.StatusNotFound {
			if p.canReadJobs(ctx, repository) {
				return workload.Job{}, workload.NewJobDeletedError(id, repository)
			}

			return workload.Job{}, &workload.Error{
				Kind: workload.NotFound, Reason: workload.ReasonJobMissing,
				Message: fmt.Sprintf("GitLab has no job %s in project %s, or hides it from this access token: use %s",
					id, repository, jobsRequirement),
			}
		}

		return workload.Job{}, p.explain("get job "+id+" of "+repository, jobsRequirement, err)
	}

	return convertJob(repository, response)
}

// canReadJobs reports whether the access token can read the jobs of a project.
func (p *provider) canReadJobs(ctx context.Context, project string) bool {
	opts := &gl.ListJobsOptions{ListOptions: gl.ListOptions{PerPage: 1}}
	found, _, err := p.client.Jobs.ListProjectJobs(project, opts, gl.WithContext(ctx))

	return err == nil && found != nil
}

// ListJobs returns the pending and running jobs of the project or of the group's projects. For a
// group it lists the maxProjects projects with the most recent activity and those of repositories.
// GitLab has no job list for an instance, so for an instance it lists only repositories.
func (p *provider) ListJobs(ctx context.Context, repositories []string) ([]workload.Job, error) {
	if err := p.limit.checkAllowed("list jobs"); err != nil {
		return nil, err
	}

	location, err := p.locate(ctx)
	if err != nil {
		return nil, err
	}

	projects, err := p.listPolledProjects(ctx, location, repositories)
	if err != nil {
		return nil, err
	}

	if len(projects) == 0 && p.scope.kind == instanceScope {
		return nil, workload.NewRepositoriesMissingError("the instance")
	}

	var out []workload.Job

	for _, project := range projects {
		jobs, err := p.listProjectJobs(ctx, project)
		// Skip a project that has pipelines disabled or that was deleted meanwhile.
		rejection, _ := errors.AsType[*workload.Error](err)
		if rejection != nil && p.scope.kind != projectScope &&
			(rejection.Reason == ReasonPermission || rejection.Reason == ReasonScope) {
			continue
		}

		if err != nil {
			return nil, err
		}

		out = append(out, jobs...)
	}

	if p.isMoved(location) {
		// The runners of the project still get its jobs, and pools know the jobs by the former path.
		for i := range out {
			out[i].Repository = p.scope.name
		}

		return out, workload.NewMovedError("project "+p.scope.name, location.path, "projectId in workload.config.gitlab")
	}

	return out, nil
}

// isMoved reports whether the project has another path than in the settings, which GitLab redirects.
func (p *provider) isMoved(location scopeLocation) bool {
	return p.scope.kind == projectScope && !isID(p.scope.name) && !strings.EqualFold(p.scope.name, location.path)
}

// listPolledProjects returns the paths of the projects to list jobs of, without duplicates.
func (p *provider) listPolledProjects(ctx context.Context, location scopeLocation, repositories []string) ([]string, error) {
	var out []string

	switch p.scope.kind {
	case projectScope:
		return []string{location.path}, nil
	case groupScope:
		found, err := p.listRecentProjects(ctx)
		if err != nil {
			return nil, err
		}

		out = found
	}

	for _, repository := range repositories {
		isCandidate := isProjectPath(repository) && isValidPath(repository) &&
			(p.scope.kind != groupScope || isInGroup(location.path, repository))
		if isCandidate && !slices.ContainsFunc(out, func(have string) bool { return strings.EqualFold(have, repository) }) {
			out = append(out, repository)
		}
	}

	return out, nil
}

// listRecentProjects returns the group's projects with the most recent activity.
func (p *provider) listRecentProjects(ctx context.Context) ([]string, error) {
	found, _, err := p.client.Groups.ListGroupProjects(p.scope.name, &gl.ListGroupProjectsOptions{
		ListOptions: gl.ListOptions{PerPage: maxProjects}, Archived: new(false), IncludeSubGroups: new(true),
		OrderBy: new("last_activity_at"), Sort: new("desc"), Simple: new(true),
	}, gl.WithContext(ctx))
	if err != nil {
		return nil, p.explain("list projects", readRequirement, err)
	}

	out := make([]string, 0, len(found))
	for _, project := range found {
		out = append(out, project.PathWithNamespace)
	}

	return out, nil
}

// listProjectJobs returns the queued and the running jobs of one project.
func (p *provider) listProjectJobs(ctx context.Context, project string) ([]workload.Job, error) {
	opts := &gl.ListJobsOptions{
		ListOptions: gl.ListOptions{PerPage: perPage}, Scope: &[]gl.BuildStateValue{gl.Pending, gl.Running},
	}

	var out []workload.Job

	for opts.Page = 1; opts.Page > 0 && opts.Page <= maxJobPages; {
		found, resp, err := p.client.Jobs.ListProjectJobs(project, opts, gl.WithContext(ctx))
		if err == nil && found == nil {
			err = workload.ErrNoData
		}

		if err != nil {
			return nil, p.explain("list the jobs of project "+project, jobsRequirement, err)
		}

		for _, listed := range found {
			// Skip invalid jobs, so that the others are not lost.
			if job, err := convertJob(project, listed); err == nil {
				out = append(out, job)
			}
		}

		opts.Page = resp.NextPage
	}

	return out, nil
}

// convertJob converts a job of the REST API (https://docs.gitlab.com/api/jobs/#get-a-single-job).
func convertJob(project string, source *gl.Job) (workload.Job, error) {
	state, err := convertState(source.Status)
	if err != nil {
		return workload.Job{}, err
	}

	if err := validateLabels(source.TagList); err != nil {
		return workload.Job{}, err
	}

	namespace, _ := splitPath(project)
	created, started, finished := timeOrZero(source.CreatedAt), timeOrZero(source.StartedAt), timeOrZero(source.FinishedAt)

	job := workload.Job{
		Platform: v1alpha1.WorkloadGitLabCI, ID: strconv.FormatInt(source.ID, 10),
		Name:       workload.Truncate(source.Name, workload.MaxTextLength),
		Repository: project, Organization: workload.Truncate(namespace, workload.MaxNameLength),
		Workflow: workload.Truncate(source.Stage, workload.MaxTextLength), URL: workload.DropLongURL(source.WebURL),
		Labels: source.TagList, State: state, QueuedAt: computeQueuedAt(created, started, source.QueuedDuration),
	}
	if source.Pipeline.ID > 0 {
		job.RunID = strconv.FormatInt(source.Pipeline.ID, 10)
	}

	if state == v1alpha1.JobRunning || state == v1alpha1.JobCompleted {
		name, _ := parseDescription(source.Runner.Description)
		job.RunnerName, job.StartedAt = workload.Truncate(name, workload.MaxNameLength), toMetaTime(started)
	}

	if state == v1alpha1.JobCompleted {
		job.Conclusion, job.CompletedAt = convertConclusion(source.Status), toMetaTime(finished)
	}

	return job, nil
}

func timeOrZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}

	return *t
}
