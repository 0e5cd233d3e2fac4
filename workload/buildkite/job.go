// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// maxID bounds a job's id, in characters.
const maxID = 128

const stateReserved = "reserved"

// webHost is where people look at builds. A job's address decides, with its id, under
// which name it is kept, so that webhooks and polls must agree on it.
const webHost = "buildkite.com"

// payload is the part of an event that matters here. Its objects are those of the REST
// API (https://buildkite.com/docs/apis/rest-api/jobs).
type payload struct {
	Job          *jobOf    `json:"job"`
	Build        *objectOf `json:"build"`
	Pipeline     *objectOf `json:"pipeline"`
	Agent        *objectOf `json:"agent"`
	Organization *slugOf   `json:"organization"`
}

type jobOf struct {
	ID              string   `json:"id"`
	Type            string   `json:"type"`
	Name            string   `json:"name"`
	Label           string   `json:"label"`
	StepKey         string   `json:"step_key"`
	State           string   `json:"state"`
	Passed          *bool    `json:"passed"`
	ExitStatus      *int64   `json:"exit_status"`
	Priority        priority `json:"priority"`
	AgentQueryRules []string `json:"agent_query_rules"`
	WebURL          string   `json:"web_url"`
	BuildURL        string   `json:"build_url"`
	Agent           *struct {
		Name string `json:"name"`
	} `json:"agent"`
	CreatedAt   stamp `json:"created_at"`
	ScheduledAt stamp `json:"scheduled_at"`
	RunnableAt  stamp `json:"runnable_at"`
	StartedAt   stamp `json:"started_at"`
	FinishedAt  stamp `json:"finished_at"`
}

// objectOf is a build, a pipeline or an agent.
type objectOf struct {
	URL    string `json:"url"`
	WebURL string `json:"web_url"`
	Slug   string `json:"slug"`
	Name   string `json:"name"`
	Number int64  `json:"number"`
}

// priority is {"number": 1} in the REST API, and 1 elsewhere. What is neither is none: an
// odd priority is no reason to lose a job.
type priority int32

// UnmarshalJSON reads either form, without ever failing.
func (p *priority) UnmarshalJSON(text []byte) error {
	var object struct {
		Number json.Number `json:"number"`
	}

	number := string(text)
	if json.Unmarshal(text, &object) == nil {
		number = object.Number.String()
	}

	if value, err := strconv.ParseInt(number, 10, 64); err == nil {
		*p = priority(bounded(value))
	}

	return nil
}

func bounded(value int64) int32 {
	return int32(max(min(value, math.MaxInt32), math.MinInt32)) //nolint:gosec // bounded just here
}

// stamp is a time as Buildkite writes it. What is no time is none: an odd time is no
// reason to lose a job.
type stamp struct{ time.Time } //nolint:recvcheck // a time is read into a pointer and used as a value

// UnmarshalJSON reads RFC 3339 and the form of older payloads, without ever failing.
func (s *stamp) UnmarshalJSON(text []byte) error {
	for _, layout := range []string{`"` + time.RFC3339 + `"`, `"2006-01-02 15:04:05 UTC"`} {
		if at, err := time.Parse(layout, string(text)); err == nil && at.Year() > 0 && at.Year() <= 9999 {
			s.Time = at.UTC()
		}
	}

	return nil
}

func (s stamp) meta() *metav1.Time {
	if s.IsZero() {
		return nil
	}

	return &metav1.Time{Time: s.Time}
}

func firstOf(stamps ...stamp) *metav1.Time {
	for _, s := range stamps {
		if !s.IsZero() {
			return s.meta()
		}
	}

	return nil
}

// scope gives the slugs of the organization and, if it is about one, of the pipeline.
func (p *payload) scope() (string, string) {
	var organization, pipeline string

	note := func(link string) {
		org, pipe := slugs(link)
		organization, pipeline = cmp.Or(organization, org), cmp.Or(pipeline, pipe)
	}

	for _, object := range []*objectOf{p.Pipeline, p.Build, p.Agent} {
		if object != nil {
			note(object.URL)
			note(object.WebURL)
		}
	}

	if p.Job != nil {
		note(p.Job.BuildURL)
		note(p.Job.WebURL)
	}

	if p.Organization != nil {
		organization = cmp.Or(organization, slug(p.Organization.Slug))
	}

	if p.Pipeline != nil {
		pipeline = cmp.Or(pipeline, slug(p.Pipeline.Slug))
	}

	return organization, pipeline
}

// slugs reads the organization and the pipeline out of an address of the REST API
// (/v2/organizations/ORG/pipelines/PIPELINE/...) or of the site (/ORG/PIPELINE/...).
func slugs(link string) (string, string) {
	parsed, err := url.Parse(link)
	if err != nil || parsed.Host == "" {
		return "", ""
	}

	parts := append(strings.Split(strings.Trim(parsed.Path, "/"), "/"), "", "", "", "", "")

	switch {
	case parts[1] == "organizations" && parts[3] == "pipelines":
		return slug(parts[2]), slug(parts[4])
	case parts[1] == "organizations":
		return slug(parts[2]), ""
	case parts[0] == "organizations":
		return slug(parts[1]), ""
	default:
		return slug(parts[0]), slug(parts[1])
	}
}

// slug gives a text that can be a slug, or nothing.
func slug(text string) string {
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`).MatchString(text) || len(text) > workload.MaxName {
		return ""
	}

	return text
}

// isJobID tells whether a text is a UUID, as ids of jobs are.
func isJobID(text string) bool {
	return regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`).MatchString(text)
}

func (p *payload) job() (workload.Job, error) {
	organization, pipeline := p.scope()

	switch {
	case !isJobID(p.Job.ID):
		return workload.Job{}, fmt.Errorf("%w: job.id is not a UUID", ErrPayload)
	case organization == "" || pipeline == "":
		return workload.Job{}, fmt.Errorf("%w: neither pipeline.url nor build.url names the organization and the pipeline", ErrPayload)
	}

	state, conclusion, ok := stateOf(strings.ToLower(p.Job.State))
	if !ok {
		return workload.Job{}, fmt.Errorf("%w: unknown state %q of the job", ErrPayload,
			workload.Cut(p.Job.State, workload.MaxConclusion))
	}

	out := jobIn(organization, pipeline)
	out.ID, out.State = strings.ToLower(p.Job.ID), state
	out.Name = workload.Cut(cmp.Or(p.Job.Name, p.Job.Label, p.Job.StepKey), workload.MaxText)
	out.Priority = int32(p.Job.Priority)
	out.QueuedAt = firstOf(p.Job.RunnableAt, p.Job.ScheduledAt, p.Job.CreatedAt)

	if err := rules(&out, p.Job.AgentQueryRules); err != nil {
		return workload.Job{}, err
	}

	number := int64(0)
	if p.Build != nil {
		number = p.Build.Number
	}

	built(&out, pipeline, number)

	if p.Pipeline != nil {
		out.Workflow = workload.Cut(cmp.Or(p.Pipeline.Name, pipeline), workload.MaxText)
	}

	if state == v1alpha1.JobRunning || state == v1alpha1.JobCompleted {
		out.StartedAt = p.Job.StartedAt.meta()

		if p.Job.Agent != nil {
			out.RunnerName = workload.Cut(p.Job.Agent.Name, workload.MaxName)
		}
	}

	if state == v1alpha1.JobCompleted {
		out.Conclusion = workload.Cut(cmp.Or(conclusion, p.Job.result()), workload.MaxConclusion)
		out.CompletedAt = p.Job.FinishedAt.meta()
	}

	return out, nil
}

// result tells how a job ended whose state is but finished.
func (j *jobOf) result() string {
	switch {
	case j.Passed != nil && *j.Passed, j.Passed == nil && j.ExitStatus != nil && *j.ExitStatus == 0:
		return "passed"
	case j.Passed != nil, j.ExitStatus != nil:
		return "failed"
	default:
		return ""
	}
}

// polled reads a job of the queue's listing; false for one that cannot be told of.
func (p *provider) polled(job scheduledJob) (workload.Job, bool) {
	pipeline := slug(job.Pipeline.Slug)
	out := jobIn(p.organization, pipeline)
	out.ID, out.State, out.Queue = strings.ToLower(job.ID), v1alpha1.JobQueued, p.queue
	out.Name, out.Workflow = workload.Cut(job.Step.Key, workload.MaxText), pipeline
	out.Priority = bounded(job.Priority)
	out.QueuedAt = firstOf(job.RunnableAt, job.ScheduledAt)

	if err := rules(&out, job.AgentQueryRules); err != nil || !isJobID(job.ID) || pipeline == "" {
		return workload.Job{}, false
	}

	out.Queue = p.queue // whatever the rules call it, it was listed there
	built(&out, pipeline, job.Build.Number)

	return out, true
}

func jobIn(organization, pipeline string) workload.Job {
	return workload.Job{
		Platform: v1alpha1.WorkloadBuildkite, Organization: organization,
		Repository: workload.Cut(organization+"/"+pipeline, workload.MaxRepository),
	}
}

// built gives the job its build's number and its address.
func built(job *workload.Job, pipeline string, number int64) {
	link := url.URL{Scheme: "https", Host: webHost, Path: "/" + job.Organization + "/" + pipeline}
	if number > 0 {
		job.RunID = strconv.FormatInt(number, 10)
		link.Path += "/builds/" + job.RunID
		link.Fragment = job.ID
	}

	job.URL = link.String()
}

// rules gives the job its agent query rules and the queue that they name.
func rules(job *workload.Job, list []string) error {
	if len(list) > workload.MaxLabels {
		return fmt.Errorf("%w: the job has %d agent query rules, at most %d are possible", ErrPayload, len(list), workload.MaxLabels)
	}

	for _, rule := range list {
		if utf8.RuneCountInString(rule) > workload.MaxLabel {
			return fmt.Errorf("%w: an agent query rule of the job is longer than %d characters", ErrPayload, workload.MaxLabel)
		}

		if key, value, ok := strings.Cut(rule, "="); ok && strings.TrimSpace(key) == queueTag && strings.TrimSpace(value) != "*" {
			job.Queue = workload.Cut(strings.TrimSpace(value), workload.MaxName)
		}
	}

	job.Labels = list

	return nil
}

// stateOf translates a job's state, and gives the conclusion of one that is over, which
// "finished" does not tell. States are those of the REST and the GraphQL API
// (https://buildkite.com/docs/apis/graphql/schemas/enum/jobstates) in lower case, and
// "reserved" of the Stacks API. A job that is being cancelled still has its agent.
func stateOf(state string) (v1alpha1.JobState, string, bool) {
	switch state {
	case "pending", "waiting", "blocked", "unblocked", "limiting", "limited", "platform_limiting", "platform_limited":
		return v1alpha1.JobWaiting, "", true
	case "scheduled", stateReserved:
		return v1alpha1.JobQueued, "", true
	case "assigned", "accepted", "running", "canceling", "timing_out":
		return v1alpha1.JobRunning, "", true
	case "finished":
		return v1alpha1.JobCompleted, "", true
	case "passed", "failed", "canceled", "timed_out", "expired", "broken", "skipped",
		"waiting_failed", "blocked_failed", "unblocked_failed":
		return v1alpha1.JobCompleted, state, true
	default:
		return "", "", false
	}
}
