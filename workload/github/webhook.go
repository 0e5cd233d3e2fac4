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
// (https://docs.github.com/webhooks/webhook-events-and-payloads#delivery-headers), in Go's
// canonical form.
const (
	HeaderEvent     = "X-Github-Event"
	HeaderSignature = "X-Hub-Signature-256"
	// HeaderDelivery is the delivery's GUID. A redelivery has the same GUID.
	HeaderDelivery = "X-Github-Delivery"
)

const (
	eventJob        = "workflow_job"
	signaturePrefix = "sha256="
)

// Errors of webhooks that GitHub did not send or that cannot be verified. They name the fix.
var (
	ErrNoSignature = errors.New("webhook has no " + HeaderSignature +
		" header: set the webhook's secret at GitHub to the secret of the RunnerPool's workload.webhook.secret")
	ErrNoSecret = errors.New("webhook secret is empty: set the RunnerPool's workload.webhook.secret, or anyone could sign webhooks")
	ErrNoEvent  = errors.New("webhook has no " + HeaderEvent + " header: GitHub did not send it")
	ErrPayload  = errors.New("webhook body is not a workflow_job event of GitHub")
)

// Webhooks verifies and parses the webhooks of GitHub. The zero value is ready to use.
type Webhooks struct{}

var _ workload.WebhookParser = Webhooks{}

// payload contains the used fields of a workflow_job event.
type payload struct {
	Job          *jobPayload   `json:"workflow_job"`
	Repository   *repository   `json:"repository"`
	Organization *organization `json:"organization"`
}

// jobPayload is a job in webhooks and in the REST API.
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
	CreatedAt    jsonTime `json:"created_at"`
	StartedAt    jsonTime `json:"started_at"`
	CompletedAt  jsonTime `json:"completed_at"`
}

type repository struct {
	FullName string `json:"full_name"`
}

type organization struct {
	Login string `json:"login"`
}

// jsonTime is a time in GitHub's format. An invalid time counts as no time, so that a job with an
// unexpected time is not lost.
type jsonTime struct{ time.Time }

// UnmarshalJSON decodes RFC 3339. It never returns an error.
func (s *jsonTime) UnmarshalJSON(data []byte) error {
	parsed, err := time.Parse(`"`+time.RFC3339+`"`, string(data))
	if err == nil && parsed.Year() > 0 && parsed.Year() <= 9999 {
		s.Time = parsed.UTC()
	}

	return nil
}

func (s *jsonTime) toMetaTime() *metav1.Time {
	if s.IsZero() {
		return nil
	}

	return &metav1.Time{Time: s.Time}
}

// ParseScope returns the scope that the webhook claims to come from. It is untrusted until Verify
// succeeds. Pings and other events of a repository or an organization have a scope too.
func (Webhooks) ParseScope(header http.Header, body []byte) (workload.Scope, error) {
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
// (https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries). It does not
// accept the older SHA-1 header. The error is workload.ErrSignature, ErrNoSignature or ErrNoSecret.
func (Webhooks) Verify(header http.Header, body, secret []byte) error {
	if len(secret) == 0 {
		return ErrNoSecret
	}

	signature := header.Get(HeaderSignature)
	if signature == "" {
		return ErrNoSignature
	}

	text, ok := strings.CutPrefix(signature, signaturePrefix)
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

// Sign returns the HMAC-SHA256 of a body.
func Sign(body, secret []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write(body)

	return mac.Sum(nil)
}

// ParseJob returns the job of a workflow_job event. It uses the job's status and not the event's
// action, because GitHub sends action "queued" with status "waiting" for a job of a protected
// environment. It returns false for other events, such as ping. It truncates texts that are longer
// than a RunnerJob's fields, but never labels, because they decide which runner takes the job.
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

	return job, true, nil
}

// toJob converts the payload of a webhook to a job. It cuts long texts, and returns an error if the job,
// its repository, its labels or its state is missing or invalid.
func (p *payload) toJob() (workload.Job, error) {
	switch {
	case p.Job == nil || p.Job.ID <= 0:
		return workload.Job{}, fmt.Errorf("%w: workflow_job.id is missing", ErrPayload)
	case p.Repository == nil || !isFullName(p.Repository.FullName):
		return workload.Job{}, fmt.Errorf("%w: repository.full_name is not owner/name", ErrPayload)
	}

	state, err := convertState(p.Job.Status)
	if err != nil {
		return workload.Job{}, err
	}

	if err := validateLabels(p.Job.Labels); err != nil {
		return workload.Job{}, err
	}

	job := workload.Job{
		Platform:   v1alpha1.WorkloadGitHubActions,
		ID:         strconv.FormatInt(p.Job.ID, 10),
		Name:       workload.Truncate(p.Job.Name, workload.MaxTextLength),
		Repository: p.Repository.FullName,
		Workflow:   workload.Truncate(p.Job.WorkflowName, workload.MaxTextLength),
		URL:        workload.DropLongURL(p.Job.HTMLURL),
		Labels:     p.Job.Labels,
		State:      state,
		QueuedAt:   p.Job.CreatedAt.toMetaTime(),
	}
	if p.Job.RunID > 0 {
		job.RunID = strconv.FormatInt(p.Job.RunID, 10)
	}

	if p.Organization != nil {
		job.Organization = workload.Truncate(p.Organization.Login, workload.MaxNameLength)
	}

	// The runner's name and the start time of a queued job have no meaning yet.
	if state == v1alpha1.JobRunning || state == v1alpha1.JobCompleted {
		job.RunnerName = workload.Truncate(p.Job.RunnerName, workload.MaxNameLength)
		job.StartedAt = p.Job.StartedAt.toMetaTime()
	}

	if state == v1alpha1.JobCompleted {
		job.Conclusion = workload.Truncate(p.Job.Conclusion, workload.MaxConclusionLength)
		job.CompletedAt = p.Job.CompletedAt.toMetaTime()
	}

	return job, nil
}

// convertState converts a job's status. Only the REST API uses "requested" and "pending" (a
// concurrency limit holds the job back). Such a job must not get a runner.
func convertState(status string) (v1alpha1.JobState, error) {
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
		return "", fmt.Errorf("%w: the job's status %q is unknown", ErrPayload, workload.Truncate(status, workload.MaxConclusionLength))
	}
}

func validateLabels(labels []string) error {
	if len(labels) > workload.MaxLabels {
		return fmt.Errorf("%w: the job has %d labels, which is more than %d", ErrPayload, len(labels), workload.MaxLabels)
	}

	for _, label := range labels {
		if utf8.RuneCountInString(label) > workload.MaxLabelLength {
			return fmt.Errorf("%w: a label of the job is longer than %d characters", ErrPayload, workload.MaxLabelLength)
		}
	}

	return nil
}

func isFullName(name string) bool {
	owner, repo, ok := strings.Cut(name, "/")

	return ok && owner != "" && repo != "" && !strings.Contains(repo, "/") &&
		utf8.RuneCountInString(name) <= workload.MaxRepositoryLength
}
