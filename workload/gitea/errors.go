// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Reasons of errors, for conditions and events. The server's name is their prefix, for example
// ForgejoConfigInvalid.
const (
	reasonConfig      = "ConfigInvalid"
	reasonCredentials = "CredentialsInvalid"
	reasonPermission  = "PermissionMissing"
	reasonScope       = "ScopeNotFound"
	reasonRequest     = "RequestRefused"
	reasonRateLimited = "RateLimited"
	reasonVersion     = "VersionTooOld"
)

// defaultRetryAfter is the delay if the server, or a proxy before it, does not request one.
const defaultRetryAfter = time.Minute

// responseError is a response with a status other than 2xx.
type responseError struct {
	status int
	// code is set in responses of the Connect protocol, which runners use.
	code       string
	message    string
	retryAfter time.Duration
}

// Error returns the status and the server's message.
func (a *responseError) Error() string { return fmt.Sprintf("status %d%s", a.status, a.quoteMessage()) }

// quoteMessage returns the server's message in parentheses, to append to a sentence.
func (a *responseError) quoteMessage() string {
	if a.message == "" {
		return ""
	}

	return " (the server's message: " + a.message + ")"
}

// statusOf returns the status of a *responseError, and 0 for other errors.
func statusOf(err error) int {
	if response, ok := errors.AsType[*responseError](err); ok {
		return response.status
	}

	return 0
}

func newRedactor(token string) log.Redactor {
	// Redact tokens, which have 40 letters and digits, texts that follow the name of a secret, and
	// credentials in a URL.
	return log.NewRedactor(regexp.MustCompile(`\b[0-9A-Za-z]{40}\b|`+
		`(?i:(bearer|token|access_token)[=: ]+)[A-Za-z0-9_.~+/-]{16,}=*|//[^/@\s]+@`), token)
}

// explain converts the error of a failed call into an error that names the fix, or that the caller
// can handle by its kind.
func (p *provider) explain(action string, err error) error {
	response, ok := errors.AsType[*responseError](err)
	if !ok {
		return fmt.Errorf("%s at %s: %w", action, p.kind, err)
	}

	message := response.quoteMessage()

	switch response.status {
	case http.StatusTooManyRequests:
		return &workload.Error{
			Kind: workload.RateLimited, Reason: p.kind.newReason(reasonRateLimited), RetryAfter: max(response.retryAfter, time.Second),
			Message: fmt.Sprintf("%s: the rate limit of %s is exceeded", action, p.base),
		}
	case http.StatusUnauthorized:
		return workload.NewRejected(p.kind.newReason(reasonCredentials), fmt.Sprintf(
			"%s rejected the access token%s: the token is wrong or deleted; put a valid token into the Secret "+
				"of bootstrap.config.%s.credentials", p.kind, message, string(p.kind)))
	case http.StatusForbidden:
		return workload.NewRejected(p.kind.newReason(reasonPermission), fmt.Sprintf(
			"%s of %s: %s denied permission%s: use %s", action, p.scope, p.kind, message, p.scope.requiredToken()))
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return workload.NewRejected(p.kind.newReason(reasonScope), fmt.Sprintf(
			"%s: %s has no %s with Actions, or hides it from this access token%s: check workload.config.%s, and use %s",
			action, p.kind, p.scope, message, string(p.kind), p.scope.requiredToken()))
	case http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return workload.NewRejected(p.kind.newReason(reasonConfig), fmt.Sprintf(
			"%s: %s redirects to another URL: set workload.config.%s.url to the final URL",
			action, p.base, string(p.kind)))
	case http.StatusBadRequest, http.StatusConflict, http.StatusUnprocessableEntity:
		return workload.NewRejected(p.kind.newReason(reasonRequest),
			fmt.Sprintf("%s of %s: %s rejected the request%s", action, p.scope, p.kind, message))
	default:
		return fmt.Errorf("%s at %s: %w", action, p.kind, response)
	}
}
