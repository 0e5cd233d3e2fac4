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

// Headers of a delivery (services/webhook/deliver.go of either server).
const (
	HeaderEvent     = "X-Gitea-Event"
	HeaderSignature = "X-Gitea-Signature"

	eventJob = "workflow_job"
)

// Errors of a webhook that can't be verified or read. They name the fix.
var (
	ErrNoEvent     = errors.New("webhook has no " + HeaderEvent + " header: it was not sent by Gitea or Forgejo")
	ErrNoSignature = errors.New("webhook has no " + HeaderSignature +
		" header: set the secret of the webhook at the server to what the RunnerPool's workload.webhook.secret holds")
	ErrNoSecret = errors.New("webhook secret is empty: an empty secret would let anybody in")
)

// Webhooks reads the webhooks of a server. Forgejo has none that speaks of single jobs: its
// others are taken and are no news.
type Webhooks struct{ kind kind }

var _ workload.WebhookParser = Webhooks{}

// payload is the part of a webhook that matters here.
type payload struct {
	Job        *giteaJob `json:"workflow_job"`
	Repository struct {
		FullName string `json:"full_name"`
		HTMLURL  string `json:"html_url"`
	} `json:"repository"`
}

// Scope reads whose webhook it claims to be. Nothing of it is to be trusted before Verify.
func (Webhooks) Scope(header http.Header, body []byte) (workload.Scope, error) {
	if header.Get(HeaderEvent) == "" {
		return workload.Scope{}, ErrNoEvent
	}

	var claimed payload
	if err := json.Unmarshal(body, &claimed); err != nil {
		return workload.Scope{}, fmt.Errorf("%w: %w", ErrPayload, err)
	}

	out := workload.Scope{Repository: claimed.Repository.FullName}
	out.Organization, _, _ = strings.Cut(out.Repository, "/")

	if home, err := url.Parse(claimed.Repository.HTMLURL); err == nil {
		out.Server = strings.ToLower(home.Host)
	}

	return out, nil
}

// Verify checks the HMAC-SHA256 of the body, in constant time. The error is
// workload.ErrSignature or one of those above.
func (Webhooks) Verify(header http.Header, body, secret []byte) error {
	if len(secret) == 0 {
		return ErrNoSecret
	}

	given := header.Get(HeaderSignature)
	if given == "" {
		return ErrNoSignature
	}

	mac, err := hex.DecodeString(given)
	if err != nil || !hmac.Equal(mac, Sign(secret, body)) {
		return workload.ErrSignature
	}

	return nil
}

// Sign gives the HMAC-SHA256 of a body.
func Sign(secret, body []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write(body)

	return mac.Sum(nil)
}

// Parse reads the job of a workflow_job event. Other events speak of no job. Texts longer
// than a RunnerJob's fields are cut.
func (w Webhooks) Parse(header http.Header, body []byte) (workload.Job, bool, error) {
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

	job, err := event.Job.job(event.Repository.FullName)
	if err != nil {
		return workload.Job{}, false, err
	}

	return job, true, nil
}
