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
	// maxJobPages bounds a poll of Gitea: the oldest jobs come first.
	maxJobPages = 20
	// maxAsked is how many jobs that are gone from the list are asked about in one poll.
	maxAsked = 20
	// taskLasts is how long a job that is over can be asked for: longer than it takes to be
	// missed. maxTasks and maxNames bound what is kept of a server that lists ever more.
	taskLasts = time.Hour
	maxTasks  = 10_000
	maxNames  = 5_000
)

// ErrPayload says that a text is not what the servers send.
var ErrPayload = errors.New("not a job of Gitea or Forgejo")

// states of jobs in the words of either server. Gitea says queued where Forgejo says
// waiting, and waiting where Forgejo says blocked.
func (k kind) stateOf(status string) (v1alpha1.JobState, error) {
	switch {
	case status == "queued", k == kindForgejo && status == "waiting":
		return v1alpha1.JobQueued, nil
	case status == "waiting", status == "blocked":
		return v1alpha1.JobWaiting, nil
	case status == "in_progress", status == "running":
		return v1alpha1.JobRunning, nil
	case status == "completed", status == "success", status == "failure", status == "cancelled", status == "skipped":
		return v1alpha1.JobCompleted, nil
	default:
		return "", fmt.Errorf("%w: unknown status %q", ErrPayload, workload.Cut(status, workload.MaxConclusion))
	}
}

func checkLabels(labels []string) error {
	if len(labels) > workload.MaxLabels {
		return fmt.Errorf("%w: it has %d labels, at most %d are possible", ErrPayload, len(labels), workload.MaxLabels)
	}

	for _, label := range labels {
		if utf8.RuneCountInString(label) > workload.MaxLabel {
			return fmt.Errorf("%w: a label is longer than %d characters", ErrPayload, workload.MaxLabel)
		}
	}

	return nil
}

// giteaJob is a job as Gitea's API and webhooks tell it.
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

// repository is the owner and the name out of the job's URL in the API.
func (j *giteaJob) repository() string {
	_, rest, _ := strings.Cut(j.URL, apiPath+"/repos/")
	parts := strings.SplitN(rest, "/", 3)

	if len(parts) < 3 {
		return ""
	}

	return parts[0] + "/" + parts[1]
}

// job reads a job of the repository.
func (j *giteaJob) job(repository string) (workload.Job, error) {
	state, err := kindGitea.stateOf(j.Status)
	if err == nil {
		err = checkLabels(j.Labels)
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
		Platform: v1alpha1.WorkloadGiteaActions, ID: strconv.FormatInt(j.ID, 10), Name: workload.Cut(j.Name, workload.MaxText),
		Repository: repository, Organization: workload.Cut(owner, workload.MaxName), URL: workload.Link(j.HTMLURL),
		Labels: j.Labels, State: state, QueuedAt: metaTime(j.CreatedAt),
	}

	if j.RunID > 0 {
		out.RunID = strconv.FormatInt(j.RunID, 10)
	}

	if state == v1alpha1.JobRunning || state == v1alpha1.JobCompleted {
		out.RunnerName, out.StartedAt = workload.Cut(j.RunnerName, workload.MaxName), metaTime(j.StartedAt)
	}

	if state == v1alpha1.JobCompleted {
		out.Conclusion, out.CompletedAt = workload.Cut(j.Conclusion, workload.MaxConclusion), metaTime(j.CompletedAt)
	}

	return out, nil
}

// metaTime gives a time that a RunnerJob can hold, or nil. The servers write the year 1970
// for a time that is not yet.
func metaTime(at time.Time) *metav1.Time {
	if at.Unix() <= 0 || at.Year() > 9999 {
		return nil
	}

	return &metav1.Time{Time: at.UTC()}
}

// forgejoJob is a job as Forgejo lists it.
type forgejoJob struct {
	ID     int64    `json:"id"`
	Handle string   `json:"handle"`
	RepoID int64    `json:"repo_id"`
	Name   string   `json:"name"`
	RunsOn []string `json:"runs_on"`
	TaskID int64    `json:"task_id"`
	Status string   `json:"status"`
}

func (p *provider) forgejoJob(j *forgejoJob, repository string) (workload.Job, error) {
	state, err := kindForgejo.stateOf(j.Status)
	if err == nil {
		err = checkLabels(j.RunsOn)
	}

	switch {
	case err != nil:
		return workload.Job{}, err
	case !handlePattern.MatchString(j.Handle):
		return workload.Job{}, fmt.Errorf("%w: it has no handle", ErrPayload)
	case !isRepository(repository):
		return workload.Job{}, fmt.Errorf("%w: its repository is not owner/name", ErrPayload)
	}

	owner, _, _ := strings.Cut(repository, "/")

	return workload.Job{
		Platform: v1alpha1.WorkloadForgejoActions, ID: j.Handle, Name: workload.Cut(j.Name, workload.MaxText),
		Repository: repository, Organization: workload.Cut(owner, workload.MaxName),
		URL: workload.Link(p.base + "/" + repository + "/actions"), Labels: j.RunsOn, State: state,
	}, nil
}

// Jobs gives the jobs of the scope that wait for a runner or run on one, and those that did
// when they were last listed and are over since.
func (p *provider) Jobs(ctx context.Context, _ []string) ([]workload.Job, error) {
	out, err := p.open(ctx)
	if err != nil {
		return out, err // what could not be read is not over
	}

	now := make(map[string]workload.Job, len(out))
	for i := range out {
		now[out[i].ID] = out[i]
	}

	p.mu.Lock()

	var gone []workload.Job

	for id := range p.seen {
		if _, there := now[id]; !there && len(gone) < maxAsked {
			gone = append(gone, p.seen[id])
			delete(p.seen, id)
		}
	}

	for id := range now {
		p.seen[id] = now[id]
	}

	p.mu.Unlock()

	var failed error

	for i := range gone {
		job, err := p.Job(ctx, gone[i].Repository, gone[i].ID)
		if err == nil {
			out = append(out, job)
		} else if !workload.Is(err, workload.NotFound) {
			failed = cmp.Or(failed, err)
		}
	}

	return out, failed
}

// open gives the jobs that are not over.
func (p *provider) open(ctx context.Context) ([]workload.Job, error) {
	if p.kind == kindForgejo {
		return p.openOfForgejo(ctx)
	}

	var out []workload.Job

	found, err := p.giteaJobs(ctx, "queued", "in_progress")

	for i := range found {
		// What can't be read is no reason to miss the others.
		if job, err := found[i].job(cmp.Or(found[i].repository(), p.where.repository)); err == nil {
			out = append(out, job)
		}
	}

	return out, err
}

// giteaJobs pages through the scope's jobs of some states.
func (p *provider) giteaJobs(ctx context.Context, states ...string) ([]giteaJob, error) {
	var out []giteaJob

	for page := 1; page <= maxJobPages; page++ {
		query := url.Values{"status": states, "page": {strconv.Itoa(page)}, "limit": {strconv.Itoa(perPage)}}

		var said struct {
			Jobs  []giteaJob `json:"jobs"`
			Total int        `json:"total_count"`
		}

		if _, err := p.api.api(ctx, http.MethodGet, p.where.path()+"/actions/jobs?"+query.Encode(), nil, &said); err != nil {
			return nil, p.explain("listing jobs", err)
		}

		out = append(out, said.Jobs...)

		if len(said.Jobs) == 0 || len(out) >= said.Total {
			break
		}
	}

	return out, nil
}

// forgejoJobs gives all jobs of the scope that wait or run. Without labels in the question
// Forgejo tells those of all labels.
func (p *provider) forgejoJobs(ctx context.Context) ([]forgejoJob, error) {
	var out []forgejoJob
	if _, err := p.api.api(ctx, http.MethodGet, p.where.path()+"/actions/runners/jobs", nil, &out); err != nil {
		return nil, p.explain("listing jobs", err)
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	now := p.clock.Now()

	for i := range out {
		if out[i].TaskID > 0 && handlePattern.MatchString(out[i].Handle) {
			p.tasks[out[i].Handle] = task{id: out[i].TaskID, listed: now}
		}
	}

	// Nobody need ask for a job that is over. The most that are kept are what a server lists at
	// once and maxTasks more, however fast it lists others.
	full := len(p.tasks) > maxTasks

	for handle, one := range p.tasks {
		if since := now.Sub(one.listed); since > taskLasts || full && since > 0 {
			delete(p.tasks, handle)
		}
	}

	return out, nil
}

// task is what Forgejo calls a job that runs.
type task struct {
	id int64
	// listed is when the job was last told of.
	listed time.Time
}

func (p *provider) openOfForgejo(ctx context.Context) ([]workload.Job, error) {
	found, err := p.forgejoJobs(ctx)
	if err != nil {
		return nil, err
	}

	var (
		out    []workload.Job
		failed error
	)

	for i := range found {
		repository, err := p.repository(ctx, found[i].RepoID)
		if err != nil {
			failed = cmp.Or(failed, err)

			continue
		}

		if job, err := p.forgejoJob(&found[i], repository); err == nil {
			out = append(out, job)
		}
	}

	return out, failed
}

// repository gives the name of a repository by its id.
func (p *provider) repository(ctx context.Context, id int64) (string, error) {
	if p.where.repository != "" {
		return p.where.repository, nil
	}

	p.mu.Lock()
	name := p.names[id]
	p.mu.Unlock()

	if name != "" {
		return name, nil
	}

	var said struct {
		FullName string `json:"full_name"`
	}

	if _, err := p.api.api(ctx, http.MethodGet, "/repositories/"+strconv.FormatInt(id, 10), nil, &said); err != nil {
		return "", p.explain(fmt.Sprintf("looking for repository %d", id), err)
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	if len(p.names) >= maxNames {
		clear(p.names) // they are asked for again
	}

	p.names[id] = said.FullName

	return said.FullName, nil
}

// Job gives the server's present word on a job.
func (p *provider) Job(ctx context.Context, repository, id string) (workload.Job, error) {
	if !isRepository(repository) || p.kind == kindGitea && workload.Number(id) <= 0 || !handlePattern.MatchString(id) {
		return workload.Job{}, workload.Reject(p.kind.reason(reasonRequest), fmt.Sprintf("job %q of repository %q is not one of %s",
			id, repository, p.kind))
	}

	if p.kind == kindForgejo {
		return p.jobOfForgejo(ctx, repository, id)
	}

	var said giteaJob

	_, err := p.api.api(ctx, http.MethodGet, "/repos/"+repository+"/actions/jobs/"+id, nil, &said)
	if statusOf(err) == http.StatusNotFound {
		return workload.Job{}, &workload.Error{
			Kind: workload.NotFound, Reason: workload.ReasonJobMissing,
			Message: fmt.Sprintf("Gitea knows no job %s in repository %s, or hides it from this access token", id, repository),
		}
	}

	if err != nil {
		return workload.Job{}, p.explain("reading job "+id+" of "+repository, err)
	}

	return said.job(repository)
}

// jobOfForgejo looks for a job in the list of those that are not over. One that is not in it
// is over, and its task says how it ended; of one that was never seen running nobody does.
func (p *provider) jobOfForgejo(ctx context.Context, repository, handle string) (workload.Job, error) {
	found, err := p.forgejoJobs(ctx)
	if err != nil {
		return workload.Job{}, err
	}

	for i := range found {
		if found[i].Handle == handle {
			return p.forgejoJob(&found[i], repository)
		}
	}

	p.mu.Lock()
	task := p.tasks[handle].id
	p.mu.Unlock()

	owner, _, _ := strings.Cut(repository, "/")
	out := workload.Job{
		Platform: v1alpha1.WorkloadForgejoActions, ID: handle, Repository: repository, Organization: owner,
		State: v1alpha1.JobCompleted,
	}

	if task > 0 {
		if out.Conclusion, err = p.conclusion(ctx, repository, task); err != nil {
			return workload.Job{}, err
		}
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	delete(p.tasks, handle)

	return out, nil
}

// conclusion is how a task ended, by the repository's list of its newest tasks; empty where
// it is not among them.
func (p *provider) conclusion(ctx context.Context, repository string, task int64) (string, error) {
	var said struct {
		Tasks []struct {
			ID     int64  `json:"id"`
			Status string `json:"status"`
		} `json:"workflow_runs"`
	}

	path := fmt.Sprintf("/repos/%s/actions/tasks?limit=%d", repository, perPage)
	if _, err := p.api.api(ctx, http.MethodGet, path, nil, &said); err != nil {
		return "", p.explain("listing the tasks of "+repository, err)
	}

	for _, one := range said.Tasks {
		if state, err := kindForgejo.stateOf(one.Status); one.ID == task && err == nil && state == v1alpha1.JobCompleted {
			return one.Status, nil
		}
	}

	return "", nil
}

// runs tells whether a job runs on the runner, by the list of jobs: Gitea names the runner,
// and of Forgejo's runners it is known which job they are for.
func (p *provider) runs(ctx context.Context, runner string) (bool, error) {
	if p.kind == kindGitea {
		found, err := p.giteaJobs(ctx, "in_progress")

		for i := range found {
			if found[i].RunnerID == workload.Number(runner) {
				return true, nil
			}
		}

		return false, err
	}

	p.mu.Lock()
	handle := p.bound[runner]
	p.mu.Unlock()

	if handle == "" {
		return false, nil
	}

	found, err := p.forgejoJobs(ctx)

	for i := range found {
		if found[i].Handle == handle && found[i].Status == "running" {
			return true, nil
		}
	}

	return false, err
}
