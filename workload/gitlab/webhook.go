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

// ErrNoEvent means that a webhook has no event header.
var ErrNoEvent = errors.New("webhook has no " + HeaderEvent + " header: GitLab did not send it")

// Webhooks verifies and parses the webhooks of GitLab. The zero value is ready to use.
type Webhooks struct {
	// Clock is used to check the age of signatures. It defaults to the real clock.
	Clock clock.PassiveClock
}

var _ workload.WebhookParser = Webhooks{}

func (w Webhooks) now() time.Time {
	if w.Clock == nil {
		return time.Now()
	}

	return w.Clock.Now()
}

// origin contains the fields of an event that identify its project. Older servers omit project.
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

// homepage returns the URL of the project's home page, or "".
func (o *origin) homepage() string {
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

// projectPath returns the full path of the project, or "".
func (o *origin) projectPath() string {
	if o.Project != nil && o.Project.Path != "" {
		return o.Project.Path
	}

	return parseProjectPath(o.homepage())
}

// payload contains the used fields of a job event. GitLab still uses the old names of jobs and
// pipelines in it: build and commit.
type payload struct {
	origin

	Kind     string   `json:"object_kind"`
	ID       int64    `json:"build_id"`
	Name     string   `json:"build_name"`
	Stage    string   `json:"build_stage"`
	Status   string   `json:"build_status"`
	Created  jsonTime `json:"build_created_at"`
	Started  jsonTime `json:"build_started_at"`
	Finished jsonTime `json:"build_finished_at"`
	Queued   seconds  `json:"build_queued_duration"`
	Pipeline int64    `json:"pipeline_id"`
	Commit   *struct {
		Name string `json:"name"`
	} `json:"commit"`
	Runner *struct {
		Description string `json:"description"`
	} `json:"runner"`
}

// jsonTime is a time in one of GitLab's formats: RFC 3339, or a format with a time zone's name. An
// invalid time counts as no time, so that a job with an unexpected time is not lost.
type jsonTime struct{ time.Time }

// UnmarshalJSON decodes a time in RFC 3339 or in GitLab's own layout. It leaves any other value zero and never
// returns an error, so that one unknown time does not lose the webhook.
func (t *jsonTime) UnmarshalJSON(data []byte) error {
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05 UTC"} {
		if parsed, err := time.Parse(`"`+layout+`"`, string(data)); err == nil {
			t.Time = parsed.UTC()
		}
	}

	return nil
}

// seconds is a duration in seconds. An invalid number counts as 0.
type seconds float64

// UnmarshalJSON decodes a number. It never returns an error.
func (s *seconds) UnmarshalJSON(text []byte) error {
	if value, err := strconv.ParseFloat(string(text), 64); err == nil {
		*s = seconds(value)
	}

	return nil
}

// ParseScope returns the scope that the webhook claims to come from. It is untrusted until Verify
// succeeds. Other events of a project have a scope too.
func (Webhooks) ParseScope(header http.Header, body []byte) (workload.Scope, error) {
	if header.Get(HeaderEvent) == "" {
		return workload.Scope{}, ErrNoEvent
	}

	var claimed origin
	if err := json.Unmarshal(body, &claimed); err != nil {
		return workload.Scope{}, fmt.Errorf("%w: %w", ErrPayload, err)
	}

	scope := workload.Scope{Server: parseHost(claimed.homepage()), Repository: claimed.projectPath()}
	scope.Organization, _ = splitPath(scope.Repository)

	return scope, nil
}

// ParseJob returns the job of a job event, with LabelsUnknown set, because the event does not
// contain the job's tags. It returns false for other events and for jobs that no runner may take at
// present: created, manual and scheduled jobs, which can stay in this state forever, and skipped
// jobs, which GitLab sets back to created with the same id when an earlier job is retried. It
// truncates texts that are longer than a RunnerJob's fields.
func (Webhooks) ParseJob(header http.Header, body []byte) (workload.Job, bool, error) {
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

	job, err := event.toJob()
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

// toJob converts the payload of a webhook to a job. The labels are unknown, because the webhook does not
// contain the job's tags. It returns ErrPayload if a required field is missing.
func (p *payload) toJob() (workload.Job, error) {
	path := p.projectPath()

	switch {
	case p.Kind != kindBuild:
		return workload.Job{}, fmt.Errorf("%w: object_kind is not %s", ErrPayload, kindBuild)
	case p.ID <= 0:
		return workload.Job{}, fmt.Errorf("%w: build_id is missing", ErrPayload)
	case !isProjectPath(path):
		return workload.Job{}, fmt.Errorf("%w: project.path_with_namespace is not the path of a project", ErrPayload)
	}

	state, err := convertState(p.Status)
	if err != nil {
		return workload.Job{}, err
	}

	id := strconv.FormatInt(p.ID, 10)
	namespace, _ := splitPath(path)
	job := workload.Job{
		Platform: v1alpha1.WorkloadGitLabCI, ID: id, Name: workload.Truncate(p.Name, workload.MaxTextLength), Repository: path,
		Organization: workload.Truncate(namespace, workload.MaxNameLength),
		Workflow:     workload.Truncate(p.workflow(), workload.MaxTextLength), LabelsUnknown: true,
		State: state, QueuedAt: computeQueuedAt(p.Created.Time, p.Started.Time, float64(p.Queued)),
	}

	if home := p.homepage(); home != "" {
		job.URL = workload.DropLongURL(home + "/-/jobs/" + id)
	}

	if p.Pipeline > 0 {
		job.RunID = strconv.FormatInt(p.Pipeline, 10)
	}

	if state == v1alpha1.JobRunning || state == v1alpha1.JobCompleted {
		job.StartedAt = toMetaTime(p.Started.Time)

		if p.Runner != nil {
			name, _ := parseDescription(p.Runner.Description)
			job.RunnerName = workload.Truncate(name, workload.MaxNameLength)
		}
	}

	if state == v1alpha1.JobCompleted {
		job.Conclusion, job.CompletedAt = convertConclusion(p.Status), toMetaTime(p.Finished.Time)
	}

	return job, nil
}

// workflow returns the pipeline's name, or the job's stage if the pipeline has no name.
func (p *payload) workflow() string {
	if p.Commit == nil {
		return p.Stage
	}

	return cmp.Or(p.Commit.Name, p.Stage)
}
