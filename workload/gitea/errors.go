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

// Reasons of errors, for conditions and events. The first ones follow the server's name:
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

// limitWait is how long to wait where the server, or the proxy before it, names no time.
const limitWait = time.Minute

// answer is a call that was answered with a refusal.
type answer struct {
	status int
	// code of the Connect protocol, in answers to runners' calls.
	code  string
	said  string
	after time.Duration
}

// Error tells the status and what the server says.
func (a *answer) Error() string { return fmt.Sprintf("status %d%s", a.status, a.quote()) }

// quote is what the server says, for the end of a sentence.
func (a *answer) quote() string {
	if a.said == "" {
		return ""
	}

	return " (the server says: " + a.said + ")"
}

// statusOf gives the status of a refusal, 0 where there is none.
func statusOf(err error) int {
	if refused, ok := errors.AsType[*answer](err); ok {
		return refused.status
	}

	return 0
}

func newRedactor(token string) log.Redactor {
	// Tokens are 40 letters and digits; and what follows the name of a secret.
	return log.NewRedactor(regexp.MustCompile(`\b[0-9A-Za-z]{40}\b|`+
		`(?i:(bearer|token|access_token)[=: ]+)[A-Za-z0-9_.~+/-]{16,}=*|//[^/@\s]+@`), token)
}

// explain turns a failed call into what a person or the caller can act upon.
func (p *provider) explain(what string, err error) error {
	refused, ok := errors.AsType[*answer](err)
	if !ok {
		return fmt.Errorf("%s at %s: %w", what, p.kind, err)
	}

	said := refused.quote()

	switch refused.status {
	case http.StatusTooManyRequests:
		return &workload.Error{
			Kind: workload.RateLimited, Reason: p.kind.reason(reasonRateLimited), After: max(refused.after, time.Second),
			Message: fmt.Sprintf("%s waits: the rate limit of %s is spent", what, p.base),
		}
	case http.StatusUnauthorized:
		return workload.Reject(p.kind.reason(reasonCredentials), fmt.Sprintf(
			"%s does not accept the access token%s: it is wrong or was deleted; put a valid one into the Secret", p.kind, said))
	case http.StatusForbidden:
		return workload.Reject(p.kind.reason(reasonPermission), fmt.Sprintf(
			"%s of %s is not permitted%s: use %s", what, p.where, said, p.where.needs()))
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return workload.Reject(p.kind.reason(reasonScope), fmt.Sprintf(
			"%s: %s knows no %s with Actions, or hides it from this access token%s: check workload.config.%s, and use %s",
			what, p.kind, p.where, said, string(p.kind), p.where.needs()))
	case http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return workload.Reject(p.kind.reason(reasonConfig), fmt.Sprintf(
			"%s: %s sends callers on to another address: write the one that answers into workload.config.%s.url",
			what, p.base, string(p.kind)))
	case http.StatusBadRequest, http.StatusConflict, http.StatusUnprocessableEntity:
		return workload.Reject(p.kind.reason(reasonRequest), fmt.Sprintf("%s of %s was refused by %s%s", what, p.where, p.kind, said))
	default:
		return fmt.Errorf("%s at %s: %w", what, p.kind, refused)
	}
}
