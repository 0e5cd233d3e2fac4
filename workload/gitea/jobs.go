// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// maxJobPages bounds a poll of Gitea, which lists the oldest jobs first.
	maxJobPages = 20
	// maxCompletedLookups bounds how many jobs that are no longer listed are read individually in
	// one poll.
	maxCompletedLookups = 20
	// taskRetention is how long the task of a job is stored after the job was last listed. It is
	// longer than the time until a poll notices that a job is no longer listed. maxTasks and
	// maxNames bound the stored data if a server lists more and more objects.
	taskRetention = time.Hour
	maxTasks      = 10_000
	maxNames      = 5_000
)

// ErrPayload means that data is not what the servers send.
var ErrPayload = errors.New("not a job of Gitea or Forgejo")

// convertState converts a job's status. Gitea uses "queued" for Forgejo's "waiting", and "waiting"
// for Forgejo's "blocked".
func (k kind) convertState(status string) (v1alpha1.JobState, error) {
	switch {
	case status == "queued", k == kindForgejo && status == "waiting":
		return v1alpha1.JobQueued, nil
	// Gitea 1.27 and later call a blocked job pending, and one that a concurrency group holds back requested.
	case status == "waiting", status == "blocked", status == "pending", status == "requested":
		return v1alpha1.JobWaiting, nil
	case status == "in_progress", status == "running":
		return v1alpha1.JobRunning, nil
	case status == "completed", status == "success", status == "failure", status == "cancelled", status == "skipped":
		return v1alpha1.JobCompleted, nil
	default:
		return "", fmt.Errorf("%w: unknown status %q", ErrPayload, workload.Truncate(status, workload.MaxConclusionLength))
	}
}

func validateLabels(labels []string) error {
	if len(labels) > workload.MaxLabels {
		return fmt.Errorf("%w: it has %d labels, which is more than %d", ErrPayload, len(labels), workload.MaxLabels)
	}

	for _, label := range labels {
		if utf8.RuneCountInString(label) > workload.MaxLabelLength {
			return fmt.Errorf("%w: a label is longer than %d characters", ErrPayload, workload.MaxLabelLength)
		}
	}

	return nil
}

// giteaJob is a job in Gitea's API and webhooks.
type giteaJob struct {
	ID          int64     `json:"id"`
	URL         string    `json:"url"`
	HTMLURL     string    `json:"html_url"`
	RunID       int64     `json:"run_id"`
	Name        string    `json:"name"`
	Labels      []string  `json:"labels"`
	Status      string    `json:"status"`
	Conclusion  string    `json:"conclusion"`
	RunnerID    int64     `json:"runner_id"`
	RunnerName  string    `json:"runner_name"`
	CreatedAt   time.Time `json:"created_at"`
	StartedAt   time.Time `json:"started_at"`
	CompletedAt time.Time `json:"completed_at"`
}

// repository returns owner/name from the job's API URL, or "" if the URL contains no repository.
func (j *giteaJob) repository() string {
	_, rest, _ := strings.Cut(j.URL, apiPath+"/repos/")
	parts := strings.SplitN(rest, "/", 3)

	if len(parts) < 3 {
		return ""
	}

	return parts[0] + "/" + parts[1]
}

// toJob converts the job. The repository is the job's owner/name.
func (j *giteaJob) toJob(repository string) (workload.Job, error) {
	state, err := kindGitea.convertState(j.Status)
	if err == nil {
		err = validateLabels(j.Labels)
	}

	switch {
	case err != nil:
		return workload.Job{}, err
	case j.ID <= 0:
		return workload.Job{}, fmt.Errorf("%w: id is missing", ErrPayload)
	case !isRepository(repository):
		return workload.Job{}, fmt.Errorf("%w: its repository is not owner/name", ErrPayload)
	}

	owner, _, _ := strings.Cut(repository, "/")
	out := workload.Job{
		Platform: v1alpha1.WorkloadGiteaActions, ID: strconv.FormatInt(j.ID, 10),
		Name:       workload.Truncate(j.Name, workload.MaxTextLength),
		Repository: repository, Organization: workload.Truncate(owner, workload.MaxNameLength), URL: workload.DropLongURL(j.HTMLURL),
		Labels: j.Labels, State: state, QueuedAt: toMetaTime(j.CreatedAt),
	}

	if j.RunID > 0 {
		out.RunID = strconv.FormatInt(j.RunID, 10)
	}

	if state == v1alpha1.JobRunning || state == v1alpha1.JobCompleted {
		out.RunnerName, out.StartedAt = workload.Truncate(j.RunnerName, workload.MaxNameLength), toMetaTime(j.StartedAt)
	}

	if state == v1alpha1.JobCompleted {
		out.Conclusion, out.CompletedAt = workload.Truncate(j.Conclusion, workload.MaxConclusionLength), toMetaTime(j.CompletedAt)
	}

	return out, nil
}

// toMetaTime returns a time that a RunnerJob can hold, or nil. The servers use the year 1970 for a
// missing time.
func toMetaTime(t time.Time) *metav1.Time {
	if t.Unix() <= 0 || t.Year() > 9999 {
		return nil
	}

	return &metav1.Time{Time: t.UTC()}
}

// forgejoJob is a job as Forgejo lists it.
type forgejoJob struct {
	Handle string   `json:"handle"`
	RepoID int64    `json:"repo_id"`
	Name   string   `json:"name"`
	RunsOn []string `json:"runs_on"`
	TaskID int64    `json:"task_id"`
	Status string   `json:"status"`
}

func (p *provider) convertForgejoJob(j *forgejoJob, repository string) (workload.Job, error) {
	state, err := kindForgejo.convertState(j.Status)
	if err == nil {
		err = validateLabels(j.RunsOn)
	}

	switch {
	case err != nil:
		return workload.Job{}, err
	case !handlePattern.MatchString(j.Handle):
		return workload.Job{}, fmt.Errorf("%w: its handle is missing or invalid", ErrPayload)
	case !isRepository(repository):
		return workload.Job{}, fmt.Errorf("%w: its repository is not owner/name", ErrPayload)
	}

	owner, _, _ := strings.Cut(repository, "/")

	return workload.Job{
		Platform: v1alpha1.WorkloadForgejoActions, ID: j.Handle, Name: workload.Truncate(j.Name, workload.MaxTextLength),
		Repository: repository, Organization: workload.Truncate(owner, workload.MaxNameLength),
		URL: workload.DropLongURL(p.base + "/" + repository + "/actions"), Labels: j.RunsOn, State: state,
	}, nil
}

// ListJobs returns the queued and the running jobs of the scope, and the jobs that have completed since
// the last call.
func (p *provider) ListJobs(ctx context.Context, _ []string) ([]workload.Job, error) {
	out, err := p.listOpenJobs(ctx)

	platformErr, _ := errors.AsType[*workload.Error](err)
	isComplete := err == nil || platformErr != nil && platformErr.Reason == workload.ReasonMoved

	if !isComplete {
		return out, err // an incomplete list does not show which jobs have completed
	}

	current := make(map[string]workload.Job, len(out))
	for i := range out {
		current[out[i].ID] = out[i]
	}

	p.mu.Lock()

	var missing []workload.Job // jobs beyond maxCompletedLookups stay in lastJobs until the next poll

	for id := range p.lastJobs {
		if _, isListed := current[id]; !isListed && len(missing) < maxCompletedLookups {
			missing = append(missing, p.lastJobs[id])
			delete(p.lastJobs, id)
		}
	}

	for id := range current {
		p.lastJobs[id] = current[id]
	}

	p.mu.Unlock()

	firstErr := err

	for i := range missing {
		job, err := p.GetJob(ctx, missing[i].Repository, missing[i].ID)
		if err == nil {
			out = append(out, job)
		} else if !workload.Is(err, workload.NotFound) {
			firstErr = cmp.Or(firstErr, err)
		}
	}

	return out, firstErr
}

// listOpenJobs returns the jobs that are not completed.
func (p *provider) listOpenJobs(ctx context.Context) ([]workload.Job, error) {
	if p.kind == kindForgejo {
		return p.listOpenForgejoJobs(ctx)
	}

	var (
		out      []workload.Job
		movedErr error
	)

	found, err := p.listGiteaJobs(ctx, "queued", "in_progress")

	for i := range found {
		repository := cmp.Or(found[i].repository(), p.scope.repository)
		if p.scope.repository != "" && !strings.EqualFold(repository, p.scope.repository) {
			// The runners of the repository still get its jobs, and pools know the jobs by the former name.
			movedErr = workload.NewMovedError("repository "+p.scope.repository, repository, "repository in workload.config.gitea")
			repository = p.scope.repository
		}

		// Skip invalid jobs, so that the others are not lost.
		if job, err := found[i].toJob(repository); err == nil {
			out = append(out, job)
		}
	}

	return out, cmp.Or(err, movedErr)
}

// listGiteaJobs pages through the scope's jobs in the given states.
func (p *provider) listGiteaJobs(ctx context.Context, states ...string) ([]giteaJob, error) {
	var out []giteaJob

	for page := 1; page <= maxJobPages; page++ {
		query := url.Values{"status": states, "page": {strconv.Itoa(page)}, "limit": {strconv.Itoa(perPage)}}

		var response struct {
			Jobs  []giteaJob `json:"jobs"`
			Total int        `json:"total_count"`
		}

		if _, err := p.api.callAPI(ctx, http.MethodGet, p.scope.path()+"/actions/jobs?"+query.Encode(), nil, &response); err != nil {
			return nil, p.explain("list jobs", err)
		}

		if response.Jobs == nil {
			return nil, p.explain("list jobs", workload.ErrNoData)
		}

		out = append(out, response.Jobs...)

		if len(response.Jobs) == 0 || len(out) >= response.Total {
			break
		}
	}

	return out, nil
}

// listForgejoJobs returns all jobs of the scope that wait or run. The request names no labels, so
// Forgejo returns the jobs with any labels. listForgejoJobs also stores the tasks of the jobs.
func (p *provider) listForgejoJobs(ctx context.Context) ([]forgejoJob, error) {
	var out []forgejoJob
	if _, err := p.api.callAPI(ctx, http.MethodGet, p.scope.path()+"/actions/runners/jobs", nil, &out); err != nil {
		return nil, p.explain("list jobs", err)
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	now := p.clock.Now()

	for i := range out {
		if out[i].TaskID > 0 && handlePattern.MatchString(out[i].Handle) {
			p.tasks[out[i].Handle] = task{id: out[i].TaskID, listedAt: now}
		}
	}

	// Delete the tasks of jobs that are no longer listed: after taskRetention, or at once if more
	// than maxTasks are stored. So at most the currently listed tasks and maxTasks others are
	// stored.
	isFull := len(p.tasks) > maxTasks

	for handle, stored := range p.tasks {
		if age := now.Sub(stored.listedAt); age > taskRetention || isFull && age > 0 {
			delete(p.tasks, handle)
		}
	}

	return out, nil
}

// task is the object that Forgejo creates for a running job.
type task struct {
	id int64
	// listedAt is when the job was last listed.
	listedAt time.Time
}

// listOpenForgejoJobs lists the open jobs. It leaves out jobs that it cannot convert. If the names of some
// repositories cannot be read, it returns the other jobs and the first error.
func (p *provider) listOpenForgejoJobs(ctx context.Context) ([]workload.Job, error) {
	found, err := p.listForgejoJobs(ctx)
	if err != nil {
		return nil, err
	}

	var (
		out      []workload.Job
		firstErr error
	)

	for i := range found {
		repository, err := p.repositoryName(ctx, found[i].RepoID)
		if err != nil {
			firstErr = cmp.Or(firstErr, err)

			continue
		}

		if job, err := p.convertForgejoJob(&found[i], repository); err == nil {
			out = append(out, job)
		}
	}

	return out, firstErr
}

// repositoryName returns the name of a repository by its id.
func (p *provider) repositoryName(ctx context.Context, id int64) (string, error) {
	if p.scope.repository != "" {
		return p.scope.repository, nil
	}

	p.mu.Lock()
	name := p.names[id]
	p.mu.Unlock()

	if name != "" {
		return name, nil
	}

	var repository struct {
		FullName string `json:"full_name"`
	}

	if _, err := p.api.callAPI(ctx, http.MethodGet, "/repositories/"+strconv.FormatInt(id, 10), nil, &repository); err != nil {
		return "", p.explain(fmt.Sprintf("get repository %d", id), err)
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	if len(p.names) >= maxNames {
		clear(p.names) // names that are needed later are read again
	}

	p.names[id] = repository.FullName

	return repository.FullName, nil
}

// GetJob returns the current state of a job.
func (p *provider) GetJob(ctx context.Context, repository, id string) (workload.Job, error) {
	if !isRepository(repository) || p.kind == kindGitea && workload.ParseID(id) <= 0 || !handlePattern.MatchString(id) {
		return workload.Job{}, workload.NewRejected(p.kind.newReason(reasonRequest), fmt.Sprintf(
			"job %q of repository %q is not a valid job of %s", id, repository, p.kind))
	}

	if p.kind == kindForgejo {
		return p.getForgejoJob(ctx, repository, id)
	}

	var response giteaJob

	path := "/repos/" + repository + "/actions/jobs"

	_, err := p.api.callAPI(ctx, http.MethodGet, path+"/"+id, nil, &response)
	if statusOf(err) == http.StatusNotFound {
		var jobs struct {
			Jobs []struct{} `json:"jobs"`
		}

		// If the token can list the repository's jobs, it could also read this one.
		if _, err := p.api.callAPI(ctx, http.MethodGet, path+"?limit=1", nil, &jobs); err == nil && jobs.Jobs != nil {
			return workload.Job{}, workload.NewJobDeletedError(id, repository)
		}

		return workload.Job{}, &workload.Error{
			Kind: workload.NotFound, Reason: workload.ReasonJobMissing,
			Message: fmt.Sprintf("Gitea has no job %s in repository %s, or this access token cannot read it", id, repository),
		}
	}

	if err != nil {
		return workload.Job{}, p.explain("get job "+id+" of "+repository, err)
	}

	return response.toJob(repository)
}

// getForgejoJob searches the list of jobs that are not completed. A job that is not listed has
// completed, and its task contains the result. If the job was never listed while it ran, its task
// is unknown and the conclusion stays empty.
func (p *provider) getForgejoJob(ctx context.Context, repository, handle string) (workload.Job, error) {
	found, err := p.listForgejoJobs(ctx)
	if err != nil {
		return workload.Job{}, err
	}

	for i := range found {
		if found[i].Handle == handle {
			return p.convertForgejoJob(&found[i], repository)
		}
	}

	p.mu.Lock()
	taskID := p.tasks[handle].id
	p.mu.Unlock()

	owner, _, _ := strings.Cut(repository, "/")
	out := workload.Job{
		Platform: v1alpha1.WorkloadForgejoActions, ID: handle, Repository: repository, Organization: owner,
		State: v1alpha1.JobCompleted,
	}

	if taskID > 0 {
		if out.Conclusion, err = p.taskConclusion(ctx, repository, taskID); err != nil {
			return workload.Job{}, err
		}
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	delete(p.tasks, handle)

	return out, nil
}

// taskConclusion returns the result of a task from the repository's list of its newest tasks, or ""
// if the list does not contain the task.
func (p *provider) taskConclusion(ctx context.Context, repository string, taskID int64) (string, error) {
	var response struct {
		Tasks []struct {
			ID     int64  `json:"id"`
			Status string `json:"status"`
		} `json:"workflow_runs"`
	}

	path := fmt.Sprintf("/repos/%s/actions/tasks?limit=%d", repository, perPage)
	if _, err := p.api.callAPI(ctx, http.MethodGet, path, nil, &response); err != nil {
		return "", p.explain("list the tasks of "+repository, err)
	}

	for _, listed := range response.Tasks {
		if state, err := kindForgejo.convertState(listed.Status); listed.ID == taskID && err == nil && state == v1alpha1.JobCompleted {
			return listed.Status, nil
		}
	}

	return "", nil
}

// isRunnerBusy reports whether a job runs on the runner, according to the job list. Gitea's jobs
// name their runner. For a runner of Forgejo, the provider has stored the job that it was created
// for.
func (p *provider) isRunnerBusy(ctx context.Context, runnerID string) (bool, error) {
	if p.kind == kindGitea {
		found, err := p.listGiteaJobs(ctx, "in_progress")
		if err != nil {
			return false, err
		}

		for i := range found {
			if found[i].RunnerID == workload.ParseID(runnerID) {
				return true, nil
			}
		}

		return false, nil
	}

	p.mu.Lock()
	handle := p.jobsByRunner[runnerID]
	p.mu.Unlock()

	if handle == "" {
		return false, nil
	}

	found, err := p.listForgejoJobs(ctx)
	if err != nil {
		return false, err
	}

	for i := range found {
		if found[i].Handle == handle && found[i].Status == "running" {
			return true, nil
		}
	}

	return false, nil
}
