// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/bradleyfalzon/ghinstallation/v2"
	gh "github.com/google/go-github/v88/github"

	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Reasons of errors, for conditions and events.
const (
	ReasonConfig       = "GitHubConfigInvalid"
	ReasonCredentials  = "GitHubCredentialsInvalid" //nolint:gosec // the name of a reason
	ReasonPermission   = "GitHubPermissionMissing"
	ReasonScope        = "GitHubScopeNotFound"
	ReasonGroup        = "GitHubRunnerGroupNotFound"
	ReasonInstallation = "GitHubInstallationNotFound"
	ReasonRequest      = "GitHubRequestRefused"
	ReasonRateLimited  = "GitHubRateLimited"
	ReasonPaced        = "GitHubRegistrationsThrottled"
	ReasonHook         = "GitHubWebhookNotFound"
)

var errForeignHost = errors.New("send GitHub credentials: the host is not configured")

const (
	// defaultSecondaryDelay is the delay that GitHub requires if a secondary rate limit names none.
	defaultSecondaryDelay = time.Minute
	maxErrorBodyBytes     = 4 << 10
	maxMessageLength      = 500
)

func newRedactor(config *Settings) log.Redactor {
	// Redact GitHub's tokens (ghp_, gho_, ghu_, ghs_, ghr_, github_pat_), JSON web tokens, texts
	// that follow the name of a secret in a URL or a header, and credentials in a URL.
	return log.NewRedactor(regexp.MustCompile(`(gh[a-z]_|github_pat_)[A-Za-z0-9_.-]+|eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_.-]+|`+
		`(?i:(bearer|token|access_token|client_secret)[= ]+)[A-Za-z0-9_.~+/-]{16,}=*|//[^/@\s]+@`), strings.TrimSpace(config.Token))
}

// errorResponse is an error response from GitHub, from either of the two libraries.
type errorResponse struct {
	status  int
	message string
	header  http.Header
}

func extractErrorResponse(err error) (errorResponse, bool) {
	if e, ok := errors.AsType[*gh.ErrorResponse](err); ok && e.Response != nil {
		message := e.Message
		for _, more := range e.Errors {
			message = strings.TrimSpace(message + " " + more.Message)
		}

		return errorResponse{e.Response.StatusCode, message, e.Response.Header}, true
	}

	if e, ok := errors.AsType[*ghinstallation.HTTPError](err); ok && e.Response != nil {
		text, _ := io.ReadAll(io.LimitReader(e.Response.Body, maxErrorBodyBytes))
		_ = e.Response.Body.Close()

		return errorResponse{e.Response.StatusCode, string(text), e.Response.Header}, true
	}

	return errorResponse{}, false
}

// explain converts the error of a failed call into an error that the caller can handle by its kind.
// The error names the action, the scope and, if a permission is missing, the required permission.
func (p *provider) explain(action, requirement string, err error) error {
	return p.explainScope(p.urls.scope, action, requirement, err)
}

// explainScope is like explain, for a call to a scope other than the provider's.
func (p *provider) explainScope(target scope, action, requirement string, err error) error {
	if explained, ok := errors.AsType[*workload.Error](err); ok {
		return explained
	}

	if limited := p.explainRateLimit(action, err); limited != nil {
		return limited
	}

	response, ok := extractErrorResponse(err)
	if !ok {
		return fmt.Errorf("%s at GitHub: %w", action, p.redactor.RedactError(err))
	}

	quoted := p.quoteMessage(response.message)

	if _, isApp := errors.AsType[*ghinstallation.HTTPError](err); isApp {
		return p.explainApp(response, quoted)
	}

	switch response.status {
	case http.StatusUnauthorized:
		if p.installationID != 0 {
			return p.explainApp(response, quoted)
		}

		return workload.NewRejected(ReasonCredentials, fmt.Sprintf(
			"GitHub rejected the credentials%s: the token is wrong, expired or revoked; put a valid token into the Secret "+
				"of bootstrap.config.github.credentials", quoted))
	case http.StatusForbidden, http.StatusUnavailableForLegalReasons:
		return workload.NewRejected(ReasonPermission, fmt.Sprintf("%s of %s: GitHub denied permission%s: grant %s%s",
			action, target, quoted, requirement, quoteAcceptedPermissions(response.header)))
	case http.StatusNotFound:
		return workload.NewRejected(ReasonScope, fmt.Sprintf(
			"%s: GitHub has no %s%s, or hides it from these credentials: check the name, and grant %s",
			action, target, quoted, requirement))
	case http.StatusBadRequest, http.StatusConflict, http.StatusUnprocessableEntity:
		return workload.NewRejected(ReasonRequest, fmt.Sprintf("%s of %s: GitHub rejected the request%s", action, target, quoted))
	default:
		return fmt.Errorf("%s at GitHub: status %d%s", action, response.status, quoted) //nolint:err113 // not compared
	}
}

// explainApp explains why GitHub issued no token for the App's installation.
func (p *provider) explainApp(response errorResponse, message string) error {
	switch response.status {
	case http.StatusUnauthorized:
		return workload.NewRejected(ReasonCredentials, fmt.Sprintf(
			"GitHub rejected the GitHub App's key%s: check appId and privateKey in the Secrets of bootstrap.config.github.app, "+
				"and this machine's clock", message))
	case http.StatusForbidden:
		return workload.NewRejected(ReasonInstallation, fmt.Sprintf(
			"GitHub denied access to the GitHub App's installation%s: check in its settings whether it is suspended", message))
	case http.StatusNotFound:
		return workload.NewRejected(ReasonInstallation, fmt.Sprintf(
			"the GitHub App has no such installation%s: check installationId, and install the App on the owner of %s",
			message, p.urls.scope))
	case http.StatusUnprocessableEntity:
		return workload.NewRejected(ReasonInstallation, "GitHub issued no token for the GitHub App's installation"+message)
	default:
		return fmt.Errorf("request the App's token at GitHub: status %d%s", response.status, message) //nolint:err113 // transient
	}
}

// quoteMessage returns GitHub's message in parentheses, redacted and truncated. It returns "" if
// the message is empty.
func (p *provider) quoteMessage(message string) string {
	message = workload.Truncate(p.redactor.Redact(strings.Join(strings.Fields(message), " ")), maxMessageLength)
	if message == "" {
		return ""
	}

	return fmt.Sprintf(" (GitHub's message: %s)", message)
}

// quoteAcceptedPermissions quotes the header in which GitHub names the permission that a call
// needs.
func quoteAcceptedPermissions(header http.Header) string {
	for _, name := range []string{"X-Accepted-Github-Permissions", "X-Accepted-Oauth-Scopes"} {
		if value := header.Get(name); value != "" {
			return "; GitHub accepts " + value
		}
	}

	return ""
}

// explainRateLimit returns the error of a call that exceeded the primary or the secondary rate
// limit, and nil for other errors.
func (p *provider) explainRateLimit(action string, err error) error {
	if primary, ok := errors.AsType[*gh.RateLimitError](err); ok {
		return newRateLimitError(primary.Rate.Reset.Sub(p.clock.Now()), action+": GitHub's rate limit is exceeded")
	}

	if delay, ok := parseSecondaryLimit(err); ok {
		return newRateLimitError(delay, action+": GitHub requested a delay (secondary rate limit)")
	}

	return nil
}

// parseSecondaryLimit returns the delay that a secondary rate limit requires. isLimit is false if err is
// not caused by one.
func parseSecondaryLimit(err error) (delay time.Duration, isLimit bool) {
	if abuse, ok := errors.AsType[*gh.AbuseRateLimitError](err); ok {
		if abuse.RetryAfter != nil {
			return *abuse.RetryAfter, true
		}

		return defaultSecondaryDelay, true
	}

	return parseStatusLimit(err)
}

// parseStatusLimit recognizes rate limits that the library does not recognize: status 429, and
// responses to the request for the App's token.
func parseStatusLimit(err error) (time.Duration, bool) {
	var resp *http.Response

	if e, ok := errors.AsType[*gh.ErrorResponse](err); ok {
		resp = e.Response
	} else if e, ok := errors.AsType[*ghinstallation.HTTPError](err); ok {
		resp = e.Response
	}

	if resp == nil {
		return 0, false
	}

	seconds, retryErr := strconv.Atoi(resp.Header.Get("Retry-After"))
	hasDelay := retryErr == nil && seconds >= 0
	isLimit := resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusForbidden && hasDelay

	switch {
	case !isLimit:
		return 0, false
	case hasDelay:
		return time.Duration(seconds) * time.Second, true
	default:
		return defaultSecondaryDelay, true
	}
}
