// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/hyperfleet/hyperfleet/workload"
)

// Headers of a delivery (services/webhook/deliver.go of both servers).
const (
	HeaderEvent     = "X-Gitea-Event"
	HeaderSignature = "X-Gitea-Signature"

	eventJob = "workflow_job"
)

// Errors of webhooks that cannot be verified or parsed. They name the fix.
var (
	ErrNoEvent     = errors.New("webhook has no " + HeaderEvent + " header: neither Gitea nor Forgejo sent it")
	ErrNoSignature = errors.New("webhook has no " + HeaderSignature +
		" header: set the webhook's secret at the server to the secret of the RunnerPool's workload.webhook.secret")
	ErrNoSecret = errors.New("webhook secret is empty: set the RunnerPool's workload.webhook.secret, or anyone could sign webhooks")
)

// Webhooks verifies and parses the webhooks of a server. Forgejo has no webhooks for jobs: ParseJob
// accepts its other webhooks and returns no job.
type Webhooks struct{ kind kind }

var _ workload.WebhookParser = Webhooks{}

// payload contains the used fields of a webhook.
type payload struct {
	Job        *giteaJob `json:"workflow_job"`
	Repository struct {
		FullName string `json:"full_name"`
		HTMLURL  string `json:"html_url"`
	} `json:"repository"`
}

// ParseScope returns the scope that the webhook claims to come from. It is untrusted until Verify
// succeeds.
func (Webhooks) ParseScope(header http.Header, body []byte) (workload.Scope, error) {
	if header.Get(HeaderEvent) == "" {
		return workload.Scope{}, ErrNoEvent
	}

	var claimed payload
	if err := json.Unmarshal(body, &claimed); err != nil {
		return workload.Scope{}, fmt.Errorf("%w: %w", ErrPayload, err)
	}

	out := workload.Scope{Repository: claimed.Repository.FullName}
	out.Organization, _, _ = strings.Cut(out.Repository, "/")

	if homepage, err := url.Parse(claimed.Repository.HTMLURL); err == nil {
		out.Server = strings.ToLower(homepage.Host)
	}

	return out, nil
}

// Verify checks the HMAC-SHA256 of the body in constant time. The error is workload.ErrSignature,
// ErrNoSignature or ErrNoSecret.
func (Webhooks) Verify(header http.Header, body, secret []byte) error {
	if len(secret) == 0 {
		return ErrNoSecret
	}

	signature := header.Get(HeaderSignature)
	if signature == "" {
		return ErrNoSignature
	}

	mac, err := hex.DecodeString(signature)
	if err != nil || !hmac.Equal(mac, Sign(secret, body)) {
		return workload.ErrSignature
	}

	return nil
}

// Sign returns the HMAC-SHA256 of a body.
func Sign(secret, body []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write(body)

	return mac.Sum(nil)
}

// ParseJob returns the job of a workflow_job event, and false for other events. It truncates texts
// that are longer than a RunnerJob's fields.
func (w Webhooks) ParseJob(header http.Header, body []byte) (workload.Job, bool, error) {
	switch event := header.Get(HeaderEvent); {
	case event == "":
		return workload.Job{}, false, ErrNoEvent
	case event != eventJob || w.kind != kindGitea:
		return workload.Job{}, false, nil
	}

	var event payload
	if err := json.Unmarshal(body, &event); err != nil {
		return workload.Job{}, false, fmt.Errorf("%w: %w", ErrPayload, err)
	}

	if event.Job == nil {
		return workload.Job{}, false, fmt.Errorf("%w: workflow_job is missing", ErrPayload)
	}

	job, err := event.Job.toJob(event.Repository.FullName)
	if err != nil {
		return workload.Job{}, false, err
	}

	return job, true, nil
}
