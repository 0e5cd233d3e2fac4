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
	ReasonOrganization = "BuildkiteOrganizationMismatch"
	ReasonStack        = "BuildkiteStackRefused"
	ReasonQueue        = "BuildkiteQueueNotFound"
	ReasonQueuePaused  = "BuildkiteQueuePaused"
	ReasonToken        = "BuildkiteTokenRefused"
	ReasonRequest      = "BuildkiteRequestRefused"
	ReasonRateLimited  = "BuildkiteRateLimited"
	ReasonJobGone      = "JobGone"
)

const (
	maxErrorBodyBytes = 4 << 10
	maxMessageLength  = 500
)

func newInvalidJobIDError(id string) error {
	return workload.NewRejected(ReasonRequest,
		fmt.Sprintf("job id %q is not valid: Buildkite's job ids are UUIDs", workload.Truncate(id, maxIDLength)))
}

func newRedactor(token string) log.Redactor {
	// Redact Buildkite's tokens, which begin with bkct_ (cluster), bkjat_ (job acquisition), bkaa_
	// (session), bkaj_ (job) and similar prefixes, and credentials in a URL or after their name.
	return log.NewRedactor(regexp.MustCompile(
		`bk[a-z]{1,4}_[A-Za-z0-9_.-]+|(?i:(bearer|token)[= ]+)[A-Za-z0-9_.~+/-]{16,}=*|//[^/@\s]+@`), token)
}

// responseError is a response from Buildkite with a status other than 2xx.
type responseError struct {
	status int
	// message is Buildkite's message, with secrets redacted.
	message    string
	retryAfter time.Duration
}

// Error returns the status and the message.
func (a *responseError) Error() string { return fmt.Sprintf("status %d%s", a.status, a.quoteMessage()) }

func (a *responseError) quoteMessage() string {
	if a.message == "" {
		return ""
	}

	return fmt.Sprintf(" (Buildkite's message: %s)", a.message)
}

// isNotFound reports whether Buildkite's response has status 404.
func isNotFound(err error) bool {
	response, ok := errors.AsType[*responseError](err)

	return ok && response.status == http.StatusNotFound
}

// explain converts the error of a failed call into an error that names the fix, or that the caller
// can handle by its kind.
func (p *provider) explain(action string, err error) error {
	response, ok := errors.AsType[*responseError](err)
	if !ok {
		return fmt.Errorf("%s at Buildkite: %w", action, err)
	}

	switch response.status {
	case http.StatusTooManyRequests:
		return &workload.Error{
			Kind: workload.RateLimited, Reason: ReasonRateLimited, RetryAfter: response.retryAfter,
			Message: action + ": Buildkite's rate limit is exceeded",
		}
	case http.StatusUnauthorized:
		return workload.NewRejected(ReasonCredentials,
			fmt.Sprintf("Buildkite rejected the agent token%s: the token is wrong, expired or revoked, "+
				"or it is no cluster's token; put a token of the cluster's Agent Tokens page into the Secret of "+
				"bootstrap.config.buildkite.credentials", response.quoteMessage()))
	case http.StatusForbidden:
		return workload.NewRejected(ReasonStack, fmt.Sprintf("%s for queue %s of organization %s: Buildkite denied permission%s: "+
			"the organization has reached its limit of stacks, or the token does not allow this IP address; "+
			"delete stacks, ask Buildkite for a higher limit, or allow the address",
			action, p.queue, p.organization, response.quoteMessage()))
	case http.StatusNotFound:
		return workload.NewRejected(ReasonQueue, fmt.Sprintf("%s: the cluster of the agent token has no self-hosted queue %s%s: "+
			"create the queue at Buildkite or change workload.config.buildkite.queue", action, p.queue, response.quoteMessage()))
	case http.StatusBadRequest, http.StatusConflict, http.StatusUnprocessableEntity:
		return workload.NewRejected(ReasonRequest, fmt.Sprintf("%s for queue %s of organization %s: Buildkite rejected the request%s",
			action, p.queue, p.organization, response.quoteMessage()))
	default:
		return fmt.Errorf("%s at Buildkite: %w", action, response)
	}
}

// isExplained reports whether err already has a kind of the workload package.
func isExplained(err error) bool { return workload.KindOf(err) != "" }
