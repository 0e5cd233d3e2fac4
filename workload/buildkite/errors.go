// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Reasons of errors, for conditions and events.
const (
	ReasonConfig       = "BuildkiteConfigInvalid"
	ReasonCredentials  = "BuildkiteCredentialsInvalid" //nolint:gosec // the name of a reason
	ReasonOrganization = "BuildkiteOrganizationWrong"
	ReasonStack        = "BuildkiteStackRefused"
	ReasonQueue        = "BuildkiteQueueNotFound"
	ReasonQueuePaused  = "BuildkiteQueuePaused"
	ReasonToken        = "BuildkiteTokenRefused"
	ReasonRequest      = "BuildkiteRequestRefused"
	ReasonRateLimited  = "BuildkiteRateLimited"
	ReasonJobGone      = "JobGone"
)

const (
	maxErrorBody = 4 << 10
	maxMessage   = 500
)

func noJobID(id string) error {
	return workload.Reject(ReasonRequest, fmt.Sprintf("job id %q is not one of Buildkite's: ids are UUIDs", workload.Cut(id, maxID)))
}

func newRedactor(token string) log.Redactor {
	// Buildkite's tokens: bkct_ (cluster), bkjat_ (job acquisition), bkaa_ (session),
	// bkaj_ (job) and others; and credentials in a URL or after their name.
	return log.NewRedactor(regexp.MustCompile(
		`bk[a-z]{1,4}_[A-Za-z0-9_.-]+|(?i:(bearer|token)[= ]+)[A-Za-z0-9_.~+/-]{16,}=*|//[^/@\s]+@`), token)
}

// answer is a refusal of Buildkite's.
type answer struct {
	status int
	// said is Buildkite's message, without secrets.
	said  string
	after time.Duration
}

// Error tells the status and the message.
func (a *answer) Error() string { return fmt.Sprintf("status %d%s", a.status, a.quote()) }

func (a *answer) quote() string {
	if a.said == "" {
		return ""
	}

	return fmt.Sprintf(" (Buildkite says: %s)", a.said)
}

// unknown tells whether Buildkite knows no such thing.
func unknown(err error) bool {
	got, ok := errors.AsType[*answer](err)

	return ok && got.status == http.StatusNotFound
}

// explain turns a failed call into what a person or the caller can act upon.
func (p *provider) explain(what string, err error) error {
	got, ok := errors.AsType[*answer](err)
	if !ok {
		return fmt.Errorf("%s at Buildkite: %w", what, err)
	}

	switch got.status {
	case http.StatusTooManyRequests:
		return &workload.Error{
			Kind: workload.RateLimited, Reason: ReasonRateLimited, After: got.after,
			Message: what + " waits: Buildkite's rate limit is spent",
		}
	case http.StatusUnauthorized:
		return workload.Reject(ReasonCredentials,
			fmt.Sprintf("Buildkite does not accept the agent token%s: it is wrong, expired or revoked, "+
				"or not one of a cluster; put one of the cluster's page Agent Tokens into the Secret", got.quote()))
	case http.StatusForbidden:
		return workload.Reject(ReasonStack, fmt.Sprintf("%s for queue %s of organization %s is not permitted%s: the organization "+
			"has as many stacks as it may have, or the token does not allow this address; remove stacks or ask Buildkite for more",
			what, p.queue, p.organization, got.quote()))
	case http.StatusNotFound:
		return workload.Reject(ReasonQueue, fmt.Sprintf("%s: the cluster of the agent token has no self-hosted queue %s%s: "+
			"make it at Buildkite or change workload.config.buildkite.queue", what, p.queue, got.quote()))
	case http.StatusBadRequest, http.StatusConflict, http.StatusUnprocessableEntity:
		return workload.Reject(ReasonRequest, fmt.Sprintf("%s for queue %s of organization %s was refused by Buildkite%s",
			what, p.queue, p.organization, got.quote()))
	default:
		return fmt.Errorf("%s at Buildkite: %w", what, got)
	}
}

// cut shortens a text to so many characters.
// explained tells whether an error is one of the boundary's already.
func explained(err error) bool { return workload.KindOf(err) != "" }
