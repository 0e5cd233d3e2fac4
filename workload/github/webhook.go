// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Headers of a webhook delivery
// (https://docs.github.com/webhooks/webhook-events-and-payloads#delivery-headers), in the
// form that Go gives to their names.
const (
	HeaderEvent     = "X-Github-Event"
	HeaderSignature = "X-Hub-Signature-256"
	// HeaderDelivery is the delivery's GUID, the same when it is delivered again.
	HeaderDelivery = "X-Github-Delivery"
)

const (
	eventJob        = "workflow_job"
	signaturePrefix = "sha256="
)

// Errors of a webhook that is not what GitHub sends. They name the fix.
var (
	ErrNoSignature = errors.New("webhook has no " + HeaderSignature +
		" header: set a secret on the webhook at GitHub, the one that the RunnerPool's workload.webhook.secret holds")
	ErrNoSecret = errors.New("webhook secret is empty: an empty secret would let anybody in")
	ErrNoEvent  = errors.New("webhook has no " + HeaderEvent + " header: it was not sent by GitHub")
	ErrPayload  = errors.New("webhook body is not a workflow_job event of GitHub")
)

// Webhooks reads the webhooks of GitHub. The zero value is ready; it holds nothing.
type Webhooks struct{}

var _ workload.WebhookParser = Webhooks{}

// payload is the part of a workflow_job event that matters here.
type payload struct {
	Job          *jobPayload   `json:"workflow_job"`
	Repository   *repository   `json:"repository"`
	Organization *organization `json:"organization"`
}

// jobPayload is a job as webhooks and the REST API describe it.
type jobPayload struct {
	ID           int64    `json:"id"`
	RunID        int64    `json:"run_id"`
	Name         string   `json:"name"`
	WorkflowName string   `json:"workflow_name"`
	HTMLURL      string   `json:"html_url"`
	Status       string   `json:"status"`
	Conclusion   string   `json:"conclusion"`
	Labels       []string `json:"labels"`
	RunnerName   string   `json:"runner_name"`
	CreatedAt    stamp    `json:"created_at"`
	StartedAt    stamp    `json:"started_at"`
	CompletedAt  stamp    `json:"completed_at"`
}

type repository struct {
	FullName string `json:"full_name"`
}

type organization struct {
	Login string `json:"login"`
}

// stamp is a time as GitHub writes it. What is no time is none: an odd time is no
// reason to lose a job.
type stamp struct{ time.Time }

// UnmarshalJSON reads RFC 3339, and nothing else, without ever failing.
func (s *stamp) UnmarshalJSON(text []byte) error {
	at, err := time.Parse(`"`+time.RFC3339+`"`, string(text))
	if err == nil && at.Year() > 0 && at.Year() <= 9999 {
		s.Time = at.UTC()
	}

	return nil
}

func (s *stamp) meta() *metav1.Time {
	if s.IsZero() {
		return nil
	}

	return &metav1.Time{Time: s.Time}
}

// Scope reads whose webhook it claims to be. Nothing of it is to be trusted before
// Verify. A ping, and other events of a repository or an organisation, have a scope too.
func (Webhooks) Scope(header http.Header, body []byte) (workload.Scope, error) {
	if header.Get(HeaderEvent) == "" {
		return workload.Scope{}, ErrNoEvent
	}

	var claimed struct {
		Repository   *repository   `json:"repository"`
		Organization *organization `json:"organization"`
	}
	if err := json.Unmarshal(body, &claimed); err != nil {
		return workload.Scope{}, fmt.Errorf("%w: %w", ErrPayload, err)
	}

	scope := workload.Scope{}
	if claimed.Repository != nil {
		scope.Repository = claimed.Repository.FullName
	}

	if claimed.Organization != nil {
		scope.Organization = claimed.Organization.Login
	}

	return scope, nil
}

// Verify checks the HMAC-SHA256 of the raw body in constant time
// (https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries). The
// older SHA-1 header is not accepted. The error is workload.ErrSignature,
// ErrNoSignature or ErrNoSecret.
func (Webhooks) Verify(header http.Header, body, secret []byte) error {
	if len(secret) == 0 {
		return ErrNoSecret
	}

	given := header.Get(HeaderSignature)
	if given == "" {
		return ErrNoSignature
	}

	text, ok := strings.CutPrefix(given, signaturePrefix)
	if !ok {
		return workload.ErrSignature
	}

	mac, err := hex.DecodeString(text)
	if err != nil {
		return workload.ErrSignature
	}

	if !hmac.Equal(mac, Sign(body, secret)) {
		return workload.ErrSignature
	}

	return nil
}

// Sign gives the HMAC-SHA256 of a body.
func Sign(body, secret []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write(body)

	return mac.Sum(nil)
}

// Parse reads the job. The job's status counts and not the event's action: GitHub sends
// action "queued" with status "waiting" for a job of a protected environment. Other
// events than workflow_job, ping among them, speak of no job. Texts longer than a
// RunnerJob's fields are cut; labels are never cut, for they decide who takes the job.
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

	return job, true, nil
}

func (p *payload) job() (workload.Job, error) {
	switch {
	case p.Job == nil || p.Job.ID <= 0:
		return workload.Job{}, fmt.Errorf("%w: workflow_job.id is missing", ErrPayload)
	case p.Repository == nil || !isFullName(p.Repository.FullName):
		return workload.Job{}, fmt.Errorf("%w: repository.full_name is not owner/name", ErrPayload)
	}

	state, err := stateOf(p.Job.Status)
	if err != nil {
		return workload.Job{}, err
	}

	if err := checkLabels(p.Job.Labels); err != nil {
		return workload.Job{}, err
	}

	job := workload.Job{
		Platform:   v1alpha1.WorkloadGitHubActions,
		ID:         strconv.FormatInt(p.Job.ID, 10),
		Name:       workload.Cut(p.Job.Name, workload.MaxText),
		Repository: p.Repository.FullName,
		Workflow:   workload.Cut(p.Job.WorkflowName, workload.MaxText),
		URL:        workload.Link(p.Job.HTMLURL),
		Labels:     p.Job.Labels,
		State:      state,
		QueuedAt:   p.Job.CreatedAt.meta(),
	}
	if p.Job.RunID > 0 {
		job.RunID = strconv.FormatInt(p.Job.RunID, 10)
	}

	if p.Organization != nil {
		job.Organization = workload.Cut(p.Organization.Login, workload.MaxName)
	}

	// A queued job may already bear a runner's name and a start: both mean nothing yet.
	if state == v1alpha1.JobRunning || state == v1alpha1.JobCompleted {
		job.RunnerName = workload.Cut(p.Job.RunnerName, workload.MaxName)
		job.StartedAt = p.Job.StartedAt.meta()
	}

	if state == v1alpha1.JobCompleted {
		job.Conclusion = workload.Cut(p.Job.Conclusion, workload.MaxConclusion)
		job.CompletedAt = p.Job.CompletedAt.meta()
	}

	return job, nil
}

// stateOf translates a job's status. "requested" and "pending" (held back by a
// concurrency limit) are words of the REST API only; such a job must not have a runner.
func stateOf(status string) (v1alpha1.JobState, error) {
	switch status {
	case "queued":
		return v1alpha1.JobQueued, nil
	case "waiting", "requested", "pending":
		return v1alpha1.JobWaiting, nil
	case "in_progress":
		return v1alpha1.JobRunning, nil
	case "completed":
		return v1alpha1.JobCompleted, nil
	default:
		return "", fmt.Errorf("%w: unknown status %q of the job", ErrPayload, workload.Cut(status, workload.MaxConclusion))
	}
}

func checkLabels(labels []string) error {
	if len(labels) > workload.MaxLabels {
		return fmt.Errorf("%w: the job has %d labels, at most %d are possible", ErrPayload, len(labels), workload.MaxLabels)
	}

	for _, label := range labels {
		if utf8.RuneCountInString(label) > workload.MaxLabel {
			return fmt.Errorf("%w: a label of the job is longer than %d characters", ErrPayload, workload.MaxLabel)
		}
	}

	return nil
}

func isFullName(name string) bool {
	owner, repo, ok := strings.Cut(name, "/")

	return ok && owner != "" && repo != "" && !strings.Contains(repo, "/") && utf8.RuneCountInString(name) <= workload.MaxRepository
}
