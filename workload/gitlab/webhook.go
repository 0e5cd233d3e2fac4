// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	eventJob  = "Job Hook"
	kindBuild = "build"
)

// ErrNoEvent says that a delivery is nobody's event.
var ErrNoEvent = errors.New("webhook has no " + HeaderEvent + " header: it was not sent by GitLab")

// Webhooks reads the webhooks of GitLab. The zero value is ready.
type Webhooks struct {
	// Clock tells how old a signature is. Default: the real clock.
	Clock clock.PassiveClock
}

var _ workload.WebhookParser = Webhooks{}

func (w Webhooks) now() time.Time {
	if w.Clock == nil {
		return time.Now()
	}

	return w.Clock.Now()
}

// origin is the part of an event that tells whose it is. Older servers send no project.
type origin struct {
	Project *struct {
		WebURL string `json:"web_url"`
		Path   string `json:"path_with_namespace"`
	} `json:"project"`
	Repository *struct {
		Homepage   string `json:"homepage"`
		GitHTTPURL string `json:"git_http_url"`
	} `json:"repository"`
}

// home gives the URL of the project's home page, or "".
func (o *origin) home() string {
	switch {
	case o.Project != nil && o.Project.WebURL != "":
		return o.Project.WebURL
	case o.Repository != nil && o.Repository.Homepage != "":
		return o.Repository.Homepage
	case o.Repository != nil:
		return strings.TrimSuffix(o.Repository.GitHTTPURL, ".git")
	default:
		return ""
	}
}

// path gives the full path of the project, or "".
func (o *origin) path() string {
	if o.Project != nil && o.Project.Path != "" {
		return o.Project.Path
	}

	return projectIn(o.home())
}

// payload is the part of a job event that matters here. Job and pipeline bear the names
// that they had long ago: build and commit.
type payload struct {
	origin

	Kind     string  `json:"object_kind"`
	ID       int64   `json:"build_id"`
	Name     string  `json:"build_name"`
	Stage    string  `json:"build_stage"`
	Status   string  `json:"build_status"`
	Created  stamp   `json:"build_created_at"`
	Started  stamp   `json:"build_started_at"`
	Finished stamp   `json:"build_finished_at"`
	Queued   seconds `json:"build_queued_duration"`
	Pipeline int64   `json:"pipeline_id"`
	Commit   *struct {
		Name string `json:"name"`
	} `json:"commit"`
	Runner *struct {
		Description string `json:"description"`
	} `json:"runner"`
}

// stamp is a time as GitLab writes it: by RFC 3339, or with a zone's name. What is no
// time is none: an odd time is no reason to lose a job.
type stamp struct{ time.Time }

// UnmarshalJSON reads a time without ever failing.
func (s *stamp) UnmarshalJSON(text []byte) error {
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05 UTC"} {
		if at, err := time.Parse(`"`+layout+`"`, string(text)); err == nil {
			s.Time = at.UTC()
		}
	}

	return nil
}

// seconds is a duration as GitLab writes it. What is no number is none.
type seconds float64

// UnmarshalJSON reads a number without ever failing.
func (s *seconds) UnmarshalJSON(text []byte) error {
	if value, err := strconv.ParseFloat(string(text), 64); err == nil {
		*s = seconds(value)
	}

	return nil
}

// Scope reads whose webhook it claims to be. Nothing of it is to be trusted before
// Verify. Other events of a project have a scope too.
func (Webhooks) Scope(header http.Header, body []byte) (workload.Scope, error) {
	if header.Get(HeaderEvent) == "" {
		return workload.Scope{}, ErrNoEvent
	}

	var claimed origin
	if err := json.Unmarshal(body, &claimed); err != nil {
		return workload.Scope{}, fmt.Errorf("%w: %w", ErrPayload, err)
	}

	scope := workload.Scope{Server: hostIn(claimed.home()), Repository: claimed.path()}
	scope.Organization, _ = split(scope.Repository)

	return scope, nil
}

// Parse reads the job of a job event. It has LabelsUnknown, for the event does not tell
// its tags. Other events speak of no job. Nor do those of jobs that no runner is to take
// as things are: created, manual and scheduled ones, which may stay so for ever, and
// skipped ones, which GitLab makes created again under the same id when an earlier job is
// retried. Texts longer than a RunnerJob's fields are cut.
func (Webhooks) Parse(header http.Header, body []byte) (workload.Job, bool, error) {
	switch header.Get(HeaderEvent) {
	case "":
		return workload.Job{}, false, ErrNoEvent
	case eventJob:
	default:
		return workload.Job{}, false, nil
	}

	var event payload
	if err := json.Unmarshal(body, &event); err != nil {
		return workload.Job{}, false, fmt.Errorf("%w: %w", ErrPayload, err)
	}

	job, err := event.job()
	if err != nil {
		return workload.Job{}, false, err
	}

	switch event.Status {
	case "created", "manual", "scheduled", statusSkipped:
		return workload.Job{}, false, nil
	default:
		return job, true, nil
	}
}

func (p *payload) job() (workload.Job, error) {
	path := p.path()

	switch {
	case p.Kind != kindBuild:
		return workload.Job{}, fmt.Errorf("%w: object_kind is not %s", ErrPayload, kindBuild)
	case p.ID <= 0:
		return workload.Job{}, fmt.Errorf("%w: build_id is missing", ErrPayload)
	case !isProject(path):
		return workload.Job{}, fmt.Errorf("%w: project.path_with_namespace is not the path of a project", ErrPayload)
	}

	state, err := stateOf(p.Status)
	if err != nil {
		return workload.Job{}, err
	}

	id := strconv.FormatInt(p.ID, 10)
	namespace, _ := split(path)
	job := workload.Job{
		Platform: v1alpha1.WorkloadGitLabCI, ID: id, Name: workload.Cut(p.Name, workload.MaxText), Repository: path,
		Organization: workload.Cut(namespace, workload.MaxName),
		Workflow:     workload.Cut(p.workflow(), workload.MaxText), LabelsUnknown: true,
		State: state, QueuedAt: queuedAt(p.Created.Time, p.Started.Time, float64(p.Queued)),
	}

	if home := p.home(); home != "" {
		job.URL = workload.Link(home + "/-/jobs/" + id)
	}

	if p.Pipeline > 0 {
		job.RunID = strconv.FormatInt(p.Pipeline, 10)
	}

	if state == v1alpha1.JobRunning || state == v1alpha1.JobCompleted {
		job.StartedAt = metaTime(p.Started.Time)

		if p.Runner != nil {
			name, _ := readDescription(p.Runner.Description)
			job.RunnerName = workload.Cut(name, workload.MaxName)
		}
	}

	if state == v1alpha1.JobCompleted {
		job.Conclusion, job.CompletedAt = conclusionOf(p.Status), metaTime(p.Finished.Time)
	}

	return job, nil
}

// workflow names the pipeline, if it has a name; else the job's stage in it.
func (p *payload) workflow() string {
	if p.Commit == nil {
		return p.Stage
	}

	return cmp.Or(p.Commit.Name, p.Stage)
}
