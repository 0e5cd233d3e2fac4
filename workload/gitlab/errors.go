// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	gl "gitlab.com/gitlab-org/api/client-go"

	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Reasons of errors, for conditions and events.
const (
	ReasonConfig      = "GitLabConfigInvalid"
	ReasonCredentials = "GitLabCredentialsInvalid" //nolint:gosec // the name of a reason
	ReasonPermission  = "GitLabPermissionMissing"
	ReasonScope       = "GitLabScopeNotFound"
	ReasonRequest     = "GitLabRequestRefused"
	ReasonRateLimited = "GitLabRateLimited"
)

// redirectError is the error of a call that a redirect or a link led to another server.
type redirectError struct{ server string }

// Error returns a message that names the server.
func (e *redirectError) Error() string {
	return "send the access token to " + e.server + ": it is not the configured server"
}

const (
	// defaultRetryAfter is the delay if GitLab does not request one. Its limits are per minute
	// (https://docs.gitlab.com/security/rate_limits/).
	defaultRetryAfter = time.Minute
	maxMessageLength  = 500
)

// Tokens and roles that calls need, with the names of GitLab's settings pages.
const (
	createRequirement = "an access token with the scope create_runner (or api) that belongs to an Owner of the group, " +
		"a Maintainer of the project or an administrator of the instance"
	manageRequirement = "an access token with the scope manage_runner (or api) that belongs to an Owner of the group, " +
		"a Maintainer of the project or an administrator of the instance"
	readRequirement = "an access token with the scope read_api (or api) that belongs to an Owner of the group, " +
		"a Maintainer of the project or an administrator of the instance"
	jobsRequirement = "an access token with the scope read_api (or api) that belongs to a project member " +
		"with at least the role Reporter"
)

func newRedactor(token string) log.Redactor {
	// Redact GitLab's tokens (glpat-, glrt-, gldt- and others, whsec_), texts that follow the name
	// of a secret in a URL or a header, and credentials in a URL
	// (https://docs.gitlab.com/security/tokens/#token-prefixes).
	return log.NewRedactor(regexp.MustCompile(`(gl[a-z]{1,8}-|whsec_)[A-Za-z0-9_./+=-]{8,}|`+
		`(?i:(bearer|token|private-token|access_token)[=: ]+)[A-Za-z0-9_.~+/-]{16,}=*|//[^/@\s]+@`), token)
}

// requireObject takes the results of a call of the library, and returns the object and the error. The error is
// ErrNoData for a successful response whose body is null.
func requireObject[T any](object *T, _ *gl.Response, err error) (*T, error) {
	if err == nil && object == nil {
		err = workload.ErrNoData
	}

	return object, err
}

// statusOf returns the status of GitLab's response, and false if there was no response.
func statusOf(err error) (int, bool) {
	if errors.Is(err, gl.ErrNotFound) {
		return http.StatusNotFound, true
	}

	response, ok := errors.AsType[*gl.ErrorResponse](err)
	if !ok || response.Response == nil {
		return 0, false
	}

	return response.Response.StatusCode, true
}

// explain converts the error of a failed call into an error that the caller can handle by its kind.
// The error names the action, the scope and the token that the call needs.
func (p *provider) explain(action, requirement string, err error) error {
	if redirect, ok := errors.AsType[*redirectError](err); ok {
		return workload.NewRejected(ReasonConfig, fmt.Sprintf(
			"%s: %s redirects to %s: set workload.config.gitlab.url to the final URL", action, p.base, redirect.server))
	}

	status, hasResponse := statusOf(err)
	if !hasResponse {
		return fmt.Errorf("%s at GitLab: %w", action, p.redactor.RedactError(err))
	}

	message := p.quoteMessage(err)

	switch status {
	case http.StatusTooManyRequests:
		return p.explainRateLimit(action, err)
	case http.StatusUnauthorized:
		return workload.NewRejected(ReasonCredentials, fmt.Sprintf(
			"GitLab rejected the access token%s: the token is wrong, expired or revoked; put a valid token into the Secret "+
				"of bootstrap.config.gitlab.credentials", message))
	case http.StatusForbidden:
		return workload.NewRejected(ReasonPermission,
			fmt.Sprintf("%s of %s: GitLab denied permission%s: use %s", action, p.scope, message, requirement))
	case http.StatusNotFound:
		return workload.NewRejected(ReasonScope, fmt.Sprintf(
			"%s: GitLab has no %s, or hides it from this access token: check workload.config.gitlab, and use %s",
			action, p.scope, requirement))
	case http.StatusBadRequest, http.StatusConflict, http.StatusPreconditionFailed, http.StatusUnprocessableEntity:
		return workload.NewRejected(ReasonRequest, fmt.Sprintf("%s of %s: GitLab rejected the request%s", action, p.scope, message))
	default:
		return fmt.Errorf("%s at GitLab: status %d%s", action, status, message) //nolint:err113 // transient, callers do not compare it
	}
}

// quoteMessage returns GitLab's message in parentheses, redacted and truncated. It returns "" if
// the response has no message.
func (p *provider) quoteMessage(err error) string {
	response, ok := errors.AsType[*gl.ErrorResponse](err)
	if !ok {
		return ""
	}

	message := workload.Truncate(p.redactor.Redact(strings.Join(strings.Fields(response.Message), " ")), maxMessageLength)
	if message == "" {
		return ""
	}

	return fmt.Sprintf(" (GitLab's message: %s)", message)
}

// explainRateLimit returns the error of a call that GitLab rejected with status 429.
func (p *provider) explainRateLimit(action string, err error) error {
	delay := defaultRetryAfter

	if response, ok := errors.AsType[*gl.ErrorResponse](err); ok {
		delay = parseRetryAfter(response.Response.Header, p.clock.Now())
	}

	return newRateLimitError(action, delay)
}

func newRateLimitError(action string, delay time.Duration) error {
	return &workload.Error{
		Kind: workload.RateLimited, Reason: ReasonRateLimited, RetryAfter: max(delay, time.Second),
		Message: action + ": GitLab's rate limit is exceeded",
	}
}

// parseRetryAfter returns the delay that GitLab requests, at most one hour, or defaultRetryAfter
// (https://docs.gitlab.com/administration/settings/user_and_ip_rate_limits/#response-headers).
func parseRetryAfter(header http.Header, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(header.Get("Retry-After")); err == nil && seconds >= 0 {
		return time.Duration(min(seconds, 3600)) * time.Second
	}

	if reset, err := strconv.ParseInt(header.Get("Ratelimit-Reset"), 10, 64); err == nil {
		if wait := time.Unix(reset, 0).Sub(now); wait > 0 && wait < time.Hour {
			return wait
		}
	}

	return defaultRetryAfter
}
