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

// strayError is a call that was led elsewhere, by a redirect or a link.
type strayError struct{ to string }

// Error names the address.
func (e *strayError) Error() string {
	return "refuse to send the access token to " + e.to + ", which is not the configured address"
}

const (
	// limitWait is how long to wait where GitLab names no time: its limits are per minute
	// (https://docs.gitlab.com/security/rate_limits/).
	limitWait  = time.Minute
	maxMessage = 500
)

// What calls need, in the words of GitLab's settings pages.
const (
	needsCreate = "an access token with the scope create_runner (or api), of an Owner of the group, " +
		"a Maintainer of the project or an administrator of the instance"
	needsManage = "an access token with the scope manage_runner (or api), of an Owner of the group, " +
		"a Maintainer of the project or an administrator of the instance"
	needsRead = "an access token with the scope read_api (or api), of an Owner of the group, " +
		"a Maintainer of the project or an administrator of the instance"
	needsJobs = "an access token with the scope read_api (or api), of a member of the project with the role Reporter or above"
)

func newRedactor(token string) log.Redactor {
	// Tokens of GitLab (glpat-, glrt-, gldt- ..., whsec_), whatever follows the name of
	// a secret in a URL or a header, and credentials in a URL
	// (https://docs.gitlab.com/security/tokens/#token-prefixes).
	return log.NewRedactor(regexp.MustCompile(`(gl[a-z]{1,8}-|whsec_)[A-Za-z0-9_./+=-]{8,}|`+
		`(?i:(bearer|token|private-token|access_token)[=: ]+)[A-Za-z0-9_.~+/-]{16,}=*|//[^/@\s]+@`), token)
}

// statusOf gives the status of GitLab's answer; false where there was none.
func statusOf(err error) (int, bool) {
	if errors.Is(err, gl.ErrNotFound) {
		return http.StatusNotFound, true
	}

	answer, ok := errors.AsType[*gl.ErrorResponse](err)
	if !ok || answer.Response == nil {
		return 0, false
	}

	return answer.Response.StatusCode, true
}

// explain turns a failed call into what a person or the caller can act upon. It names
// what was done, the scope and what is needed.
func (p *provider) explain(what, needs string, err error) error {
	if stray, ok := errors.AsType[*strayError](err); ok {
		return workload.Reject(ReasonConfig, fmt.Sprintf(
			"%s: %s sends callers on to %s: write the address that answers into workload.config.gitlab.url", what, p.base, stray.to))
	}

	status, answered := statusOf(err)
	if !answered {
		return fmt.Errorf("%s at GitLab: %w", what, p.redact.Cause(err))
	}

	said := p.said(err)

	switch status {
	case http.StatusTooManyRequests:
		return p.limited(what, err)
	case http.StatusUnauthorized:
		return workload.Reject(ReasonCredentials, fmt.Sprintf(
			"GitLab does not accept the access token%s: it is wrong, expired or revoked; put a valid one into the Secret", said))
	case http.StatusForbidden:
		return workload.Reject(ReasonPermission, fmt.Sprintf("%s of %s is not permitted%s: use %s", what, p.where, said, needs))
	case http.StatusNotFound:
		return workload.Reject(ReasonScope, fmt.Sprintf(
			"%s: GitLab knows no %s, or hides it from this access token: check workload.config.gitlab, and use %s", what, p.where, needs))
	case http.StatusBadRequest, http.StatusConflict, http.StatusPreconditionFailed, http.StatusUnprocessableEntity:
		return workload.Reject(ReasonRequest, fmt.Sprintf("%s of %s was refused by GitLab%s", what, p.where, said))
	default:
		return fmt.Errorf("%s at GitLab: status %d%s", what, status, said) //nolint:err113 // transient, nobody asks for it
	}
}

// said quotes GitLab, without secrets and not at length.
func (p *provider) said(err error) string {
	answer, ok := errors.AsType[*gl.ErrorResponse](err)
	if !ok {
		return ""
	}

	message := workload.Cut(p.redact.Text(strings.Join(strings.Fields(answer.Message), " ")), maxMessage)
	if message == "" {
		return ""
	}

	return fmt.Sprintf(" (GitLab says: %s)", message)
}

// limited is the error of a call that came too soon after many others.
func (p *provider) limited(what string, err error) error {
	after := limitWait

	if answer, ok := errors.AsType[*gl.ErrorResponse](err); ok {
		after = retryAfter(answer.Response.Header, p.clock.Now())
	}

	return rateLimited(what, after)
}

func rateLimited(what string, after time.Duration) error {
	return &workload.Error{
		Kind: workload.RateLimited, Reason: ReasonRateLimited, After: max(after, time.Second),
		Message: what + " waits: GitLab's rate limit is spent",
	}
}

// retryAfter reads how long to wait
// (https://docs.gitlab.com/administration/settings/user_and_ip_rate_limits/#response-headers).
func retryAfter(header http.Header, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(header.Get("Retry-After")); err == nil && seconds >= 0 {
		return time.Duration(min(seconds, 3600)) * time.Second
	}

	if reset, err := strconv.ParseInt(header.Get("Ratelimit-Reset"), 10, 64); err == nil {
		if wait := time.Unix(reset, 0).Sub(now); wait > 0 && wait < time.Hour {
			return wait
		}
	}

	return limitWait
}
