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

// maxIDLength bounds a job's id, in characters.
const maxIDLength = 128

const stateReserved = "reserved"

// webHost is the host of Buildkite's web pages. The name of a RunnerJob is derived from the job's
// URL and id, so webhooks and polls must produce the same URL.
const webHost = "buildkite.com"

// payload contains the used fields of an event. Its objects are as in the REST API
// (https://buildkite.com/docs/apis/rest-api/jobs).
type payload struct {
	Job          *jobPayload    `json:"job"`
	Build        *objectPayload `json:"build"`
	Pipeline     *objectPayload `json:"pipeline"`
	Agent        *objectPayload `json:"agent"`
	Organization *slugPayload   `json:"organization"`
}

type jobPayload struct {
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
	CreatedAt   jsonTime `json:"created_at"`
	ScheduledAt jsonTime `json:"scheduled_at"`
	RunnableAt  jsonTime `json:"runnable_at"`
	StartedAt   jsonTime `json:"started_at"`
	FinishedAt  jsonTime `json:"finished_at"`
}

// objectPayload is a build, a pipeline or an agent.
type objectPayload struct {
	URL    string `json:"url"`
	WebURL string `json:"web_url"`
	Slug   string `json:"slug"`
	Name   string `json:"name"`
	Number int64  `json:"number"`
}

// priority is {"number": 1} in the REST API and 1 in other APIs. Any other value counts as 0, so
// that a job with an unexpected priority is not lost.
type priority int32

// UnmarshalJSON decodes both forms. It never returns an error.
func (p *priority) UnmarshalJSON(data []byte) error {
	var object struct {
		Number json.Number `json:"number"`
	}

	number := string(data)
	if json.Unmarshal(data, &object) == nil {
		number = object.Number.String()
	}

	if value, err := strconv.ParseInt(number, 10, 64); err == nil {
		*p = priority(clampInt32(value))
	}

	return nil
}

func clampInt32(value int64) int32 {
	return int32(max(min(value, math.MaxInt32), math.MinInt32)) //nolint:gosec // the value is clamped to int32
}

// jsonTime is a time in Buildkite's format. An invalid time counts as no time, so that a job with
// an unexpected time is not lost.
type jsonTime struct{ time.Time } //nolint:recvcheck // a pointer to decode, a value to use

// UnmarshalJSON decodes RFC 3339 and the format of older payloads. It never returns an error.
func (s *jsonTime) UnmarshalJSON(text []byte) error {
	for _, layout := range []string{`"` + time.RFC3339 + `"`, `"2006-01-02 15:04:05 UTC"`} {
		if at, err := time.Parse(layout, string(text)); err == nil && at.Year() > 0 && at.Year() <= 9999 {
			s.Time = at.UTC()
		}
	}

	return nil
}

func (s jsonTime) toMetaTime() *metav1.Time {
	if s.IsZero() {
		return nil
	}

	return &metav1.Time{Time: s.Time}
}

// findFirstTime returns the first time that is not zero, or nil.
func findFirstTime(stamps ...jsonTime) *metav1.Time {
	for _, s := range stamps {
		if !s.IsZero() {
			return s.toMetaTime()
		}
	}

	return nil
}

// parseScope returns the slugs of the organization and of the pipeline. The pipeline is empty if
// the event is not about one.
func (p *payload) parseScope() (organization, pipeline string) {
	addLink := func(link string) {
		org, pipe := parseSlugs(link)
		organization, pipeline = cmp.Or(organization, org), cmp.Or(pipeline, pipe)
	}

	for _, object := range []*objectPayload{p.Pipeline, p.Build, p.Agent} {
		if object != nil {
			addLink(object.URL)
			addLink(object.WebURL)
		}
	}

	if p.Job != nil {
		addLink(p.Job.BuildURL)
		addLink(p.Job.WebURL)
	}

	if p.Organization != nil {
		organization = cmp.Or(organization, sanitizeSlug(p.Organization.Slug))
	}

	if p.Pipeline != nil {
		pipeline = cmp.Or(pipeline, sanitizeSlug(p.Pipeline.Slug))
	}

	return organization, pipeline
}

// parseSlugs returns the organization and the pipeline of a URL of the REST API
// (/v2/organizations/ORG/pipelines/PIPELINE/...) or of the web pages (/ORG/PIPELINE/...).
func parseSlugs(link string) (organization, pipeline string) {
	parsed, err := url.Parse(link)
	if err != nil || parsed.Host == "" {
		return "", ""
	}

	// The empty parts at the end make the indexes below valid for each path.
	parts := append(strings.Split(strings.Trim(parsed.Path, "/"), "/"), "", "", "", "", "")

	switch {
	case parts[1] == "organizations" && parts[3] == "pipelines":
		return sanitizeSlug(parts[2]), sanitizeSlug(parts[4])
	case parts[1] == "organizations":
		return sanitizeSlug(parts[2]), ""
	case parts[0] == "organizations":
		return sanitizeSlug(parts[1]), ""
	default:
		return sanitizeSlug(parts[0]), sanitizeSlug(parts[1])
	}
}

// sanitizeSlug returns the text if it can be a slug, and "" otherwise.
func sanitizeSlug(text string) string {
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`).MatchString(text) || len(text) > workload.MaxNameLength {
		return ""
	}

	return text
}

// isJobID reports whether a text is a UUID, as all job ids are.
func isJobID(text string) bool {
	return regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`).MatchString(text)
}

// toJob converts the payload of a webhook to a job. It returns ErrPayload if the job, its scope or its
// state is missing or unknown.
func (p *payload) toJob() (workload.Job, error) {
	organization, pipeline := p.parseScope()

	switch {
	case !isJobID(p.Job.ID):
		return workload.Job{}, fmt.Errorf("%w: job.id is not a UUID", ErrPayload)
	case organization == "" || pipeline == "":
		return workload.Job{}, fmt.Errorf("%w: no URL in it names the organization and the pipeline", ErrPayload)
	}

	state, conclusion, ok := convertState(strings.ToLower(p.Job.State))
	if !ok {
		return workload.Job{}, fmt.Errorf("%w: the job's state %q is unknown", ErrPayload,
			workload.Truncate(p.Job.State, workload.MaxConclusionLength))
	}

	out := newJob(organization, pipeline)
	out.ID, out.State = strings.ToLower(p.Job.ID), state
	out.Name = workload.Truncate(cmp.Or(p.Job.Name, p.Job.Label, p.Job.StepKey), workload.MaxTextLength)
	out.Priority = int32(p.Job.Priority)
	out.QueuedAt = findFirstTime(p.Job.RunnableAt, p.Job.ScheduledAt, p.Job.CreatedAt)

	if err := setQueryRules(&out, p.Job.AgentQueryRules); err != nil {
		return workload.Job{}, err
	}

	number := int64(0)
	if p.Build != nil {
		number = p.Build.Number
	}

	setBuild(&out, pipeline, number)

	if p.Pipeline != nil {
		out.Workflow = workload.Truncate(cmp.Or(p.Pipeline.Name, pipeline), workload.MaxTextLength)
	}

	if state == v1alpha1.JobRunning || state == v1alpha1.JobCompleted {
		out.StartedAt = p.Job.StartedAt.toMetaTime()

		if p.Job.Agent != nil {
			out.RunnerName = workload.Truncate(p.Job.Agent.Name, workload.MaxNameLength)
		}
	}

	if state == v1alpha1.JobCompleted {
		out.Conclusion = workload.Truncate(cmp.Or(conclusion, p.Job.conclusion()), workload.MaxConclusionLength)
		out.CompletedAt = p.Job.FinishedAt.toMetaTime()
	}

	return out, nil
}

// conclusion returns the result of a job whose state is "finished", and "" if the job does not
// contain its result.
func (j *jobPayload) conclusion() string {
	switch {
	case j.Passed != nil && *j.Passed, j.Passed == nil && j.ExitStatus != nil && *j.ExitStatus == 0:
		return "passed"
	case j.Passed != nil, j.ExitStatus != nil:
		return "failed"
	default:
		return ""
	}
}

// convertScheduledJob converts a job of the queue's list. It returns false if the job is invalid.
func (p *provider) convertScheduledJob(job scheduledJob) (workload.Job, bool) {
	pipeline := sanitizeSlug(job.Pipeline.Slug)
	out := newJob(p.organization, pipeline)
	out.ID, out.State = strings.ToLower(job.ID), v1alpha1.JobQueued
	out.Name, out.Workflow = workload.Truncate(job.Step.Key, workload.MaxTextLength), pipeline
	out.Priority = clampInt32(job.Priority)
	out.QueuedAt = findFirstTime(job.RunnableAt, job.ScheduledAt)

	if err := setQueryRules(&out, job.AgentQueryRules); err != nil || !isJobID(job.ID) || pipeline == "" {
		return workload.Job{}, false
	}

	out.Queue = p.queue // the queue that listed the job overrides the job's rules
	setBuild(&out, pipeline, job.Build.Number)

	return out, true
}

func newJob(organization, pipeline string) workload.Job {
	return workload.Job{
		Platform: v1alpha1.WorkloadBuildkite, Organization: organization,
		Repository: workload.Truncate(organization+"/"+pipeline, workload.MaxRepositoryLength),
	}
}

// setBuild sets the job's build number and URL.
func setBuild(job *workload.Job, pipeline string, number int64) {
	link := url.URL{Scheme: "https", Host: webHost, Path: "/" + job.Organization + "/" + pipeline}
	if number > 0 {
		job.RunID = strconv.FormatInt(number, 10)
		link.Path += "/builds/" + job.RunID
		link.Fragment = job.ID
	}

	job.URL = link.String()
}

// setQueryRules sets the job's labels to its agent query rules, and its queue to the one that the
// rules name.
func setQueryRules(job *workload.Job, rules []string) error {
	if len(rules) > workload.MaxLabels {
		return fmt.Errorf("%w: the job has %d agent query rules, which is more than %d", ErrPayload, len(rules), workload.MaxLabels)
	}

	for _, rule := range rules {
		if utf8.RuneCountInString(rule) > workload.MaxLabelLength {
			return fmt.Errorf("%w: an agent query rule of the job is longer than %d characters", ErrPayload, workload.MaxLabelLength)
		}

		if key, value, ok := strings.Cut(rule, "="); ok && strings.TrimSpace(key) == queueTag && strings.TrimSpace(value) != "*" {
			job.Queue = workload.Truncate(strings.TrimSpace(value), workload.MaxNameLength)
		}
	}

	job.Labels = rules

	return nil
}

// convertState converts a job's state, and returns the conclusion of a completed job. The state
// "finished" has no conclusion. States are those of the REST and GraphQL APIs
// (https://buildkite.com/docs/apis/graphql/schemas/enum/jobstates) in lower case, and "reserved" of
// the Stacks API. A job that is being canceled still has its agent, so it counts as running.
func convertState(state string) (jobState v1alpha1.JobState, conclusion string, isKnown bool) {
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
