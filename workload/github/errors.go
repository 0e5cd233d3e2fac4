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
	ReasonPaced        = "GitHubRegistrationsPaced"
	ReasonHook         = "GitHubWebhookNotFound"
)

var errForeignHost = errors.New("refuse to send GitHub credentials to a host that is not configured")

const (
	// secondaryWait is what GitHub asks for where a secondary limit names no time.
	secondaryWait = time.Minute
	maxErrorBody  = 4 << 10
	maxMessage    = 500
)

func newRedactor(config *Settings) log.Redactor {
	// Tokens of GitHub (ghp_, gho_, ghu_, ghs_, ghr_, github_pat_), JSON web tokens,
	// and whatever follows the name of a secret in a URL or a header.
	return log.NewRedactor(regexp.MustCompile(`(gh[a-z]_|github_pat_)[A-Za-z0-9_.-]+|eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_.-]+|`+
		`(?i:(bearer|token|access_token|client_secret)[= ]+)[A-Za-z0-9_.~+/-]{16,}=*|//[^/@\s]+@`), strings.TrimSpace(config.Token))
}

// answer is what GitHub said, whichever library heard it.
type answer struct {
	status  int
	message string
	header  http.Header
}

func readAnswer(err error) (answer, bool) {
	if e, ok := errors.AsType[*gh.ErrorResponse](err); ok && e.Response != nil {
		message := e.Message
		for _, more := range e.Errors {
			message = strings.TrimSpace(message + " " + more.Message)
		}

		return answer{e.Response.StatusCode, message, e.Response.Header}, true
	}

	if e, ok := errors.AsType[*ghinstallation.HTTPError](err); ok && e.Response != nil {
		text, _ := io.ReadAll(io.LimitReader(e.Response.Body, maxErrorBody))
		_ = e.Response.Body.Close()

		return answer{e.Response.StatusCode, string(text), e.Response.Header}, true
	}

	return answer{}, false
}

// explain turns a failed call into what a person or the caller can act upon. It names
// what was done, the scope and, where rights are missing, the ones that are needed.
func (p *provider) explain(what, needs string, err error) error {
	return p.explainOf(p.urls.scope, what, needs, err)
}

// explainOf is explain for a call about another scope than the provider's own.
func (p *provider) explainOf(where scope, what, needs string, err error) error {
	if refused, ok := errors.AsType[*workload.Error](err); ok {
		return refused
	}

	if limited := p.limited(what, err); limited != nil {
		return limited
	}

	got, ok := readAnswer(err)
	if !ok {
		return fmt.Errorf("%s at GitHub: %w", what, p.redact.Cause(err))
	}

	said := p.said(got.message)

	if _, app := errors.AsType[*ghinstallation.HTTPError](err); app {
		return p.explainApp(got, said)
	}

	switch got.status {
	case http.StatusUnauthorized:
		return workload.Reject(ReasonCredentials, fmt.Sprintf(
			"GitHub does not accept the credentials%s: the token is wrong, expired or revoked; put a valid one into the Secret", said))
	case http.StatusForbidden, http.StatusUnavailableForLegalReasons:
		return workload.Reject(ReasonPermission, fmt.Sprintf("%s of %s is not permitted%s: grant %s%s",
			what, where, said, needs, accepted(got.header)))
	case http.StatusNotFound:
		return workload.Reject(ReasonScope, fmt.Sprintf(
			"%s: GitHub knows no %s%s, or hides it from these credentials: check the name, and grant access to it with %s",
			what, where, said, needs))
	case http.StatusBadRequest, http.StatusConflict, http.StatusUnprocessableEntity:
		return workload.Reject(ReasonRequest, fmt.Sprintf("%s of %s was refused by GitHub%s", what, where, said))
	default:
		return fmt.Errorf("%s at GitHub: status %d%s", what, got.status, said) //nolint:err113 // transient, nobody asks for it
	}
}

// explainApp explains why an installation got no token.
func (p *provider) explainApp(got answer, said string) error {
	switch got.status {
	case http.StatusUnauthorized:
		return workload.Reject(ReasonCredentials, fmt.Sprintf(
			"GitHub does not accept the GitHub App's key%s: check appId and privateKey, and this machine's clock", said))
	case http.StatusForbidden:
		return workload.Reject(ReasonInstallation, fmt.Sprintf(
			"the GitHub App's installation may not be used%s: it may be suspended; see the installation's settings", said))
	case http.StatusNotFound:
		return workload.Reject(ReasonInstallation, fmt.Sprintf(
			"the GitHub App has no such installation%s: check installationId, and that the App is installed on the owner of %s",
			said, p.urls.scope))
	case http.StatusUnprocessableEntity:
		return workload.Reject(ReasonInstallation, "GitHub refuses a token to the GitHub App's installation"+said)
	default:
		return fmt.Errorf("get the App's token at GitHub: status %d%s", got.status, said) //nolint:err113 // transient
	}
}

// said quotes GitHub, without secrets and not at length.
func (p *provider) said(message string) string {
	message = workload.Cut(p.redact.Text(strings.Join(strings.Fields(message), " ")), maxMessage)
	if message == "" {
		return ""
	}

	return fmt.Sprintf(" (GitHub says: %s)", message)
}

// accepted quotes the header in which GitHub names the permission that a call needs.
func accepted(header http.Header) string {
	for _, name := range []string{"X-Accepted-Github-Permissions", "X-Accepted-Oauth-Scopes"} {
		if value := header.Get(name); value != "" {
			return "; GitHub asks for " + value
		}
	}

	return ""
}

// limited recognises the primary and the secondary rate limit.
func (p *provider) limited(what string, err error) error {
	if primary, ok := errors.AsType[*gh.RateLimitError](err); ok {
		return limitedError(primary.Rate.Reset.Sub(p.clock.Now()), what+" waits: GitHub's rate limit is spent")
	}

	if after, ok := secondary(err); ok {
		return limitedError(after, what+" waits: GitHub asked for a pause (secondary rate limit)")
	}

	return nil
}

// secondary gives the pause that GitHub asks for.
func secondary(err error) (time.Duration, bool) {
	if abuse, ok := errors.AsType[*gh.AbuseRateLimitError](err); ok {
		if abuse.RetryAfter != nil {
			return *abuse.RetryAfter, true
		}

		return secondaryWait, true
	}

	return readLimit(err)
}

// readLimit reads an answer that the library does not take for a limit: status 429, or
// the App's own token refused for one.
func readLimit(err error) (time.Duration, bool) {
	var resp *http.Response

	if e, ok := errors.AsType[*gh.ErrorResponse](err); ok {
		resp = e.Response
	} else if e, ok := errors.AsType[*ghinstallation.HTTPError](err); ok {
		resp = e.Response
	}

	if resp == nil {
		return 0, false
	}

	after, retryErr := strconv.Atoi(resp.Header.Get("Retry-After"))
	hasAfter := retryErr == nil && after >= 0

	switch {
	case resp.StatusCode != http.StatusTooManyRequests && (resp.StatusCode != http.StatusForbidden || !hasAfter):
		return 0, false
	case hasAfter:
		return time.Duration(after) * time.Second, true
	default:
		return secondaryWait, true
	}
}
