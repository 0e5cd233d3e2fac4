// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

const (
	maxProblemSize  = 64 << 10
	maxDetailLength = 512
)

// IsNoResource returns true if an error code says that a resource does not exist. Codes in the API's problems (RFC 9457)
// have the form HYPERFLEET-CATEGORY-NUMBER. Our API sends NTF-001. Upstream's API also has NTF-002 for clusters and
// NTF-003 for node pools. NTF-000 means that the route does not exist.
func IsNoResource(code string) bool {
	return code == "HYPERFLEET-NTF-001" || code == "HYPERFLEET-NTF-002" || code == "HYPERFLEET-NTF-003"
}

// Errors of this package, for errors.Is.
var (
	// ErrNotFound means that the API has no such resource. Only a well-formed problem with such a code
	// (IsNoResource) is this error; other responses with status 404 are not.
	ErrNotFound = errors.New("no such resource")
	// ErrCursorGone means that the change feed no longer has the changes after the cursor, or that the
	// database was restored since.
	ErrCursorGone = errors.New("the cursor is older than the oldest change in the feed, or from before a restore")
	// ErrChanged means that the resource does not have the ETag of IfMatch.
	ErrChanged = errors.New("the resource has changed")

	errNotFleetAPI = errors.New("the response is not from the fleet API")
)

// Error is a response that is not a success.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Code is the API's error code, for example HYPERFLEET-NTF-001. It is empty if the response is
	// not a well-formed problem (RFC 9457).
	Code string
	// Title and Detail are the texts of the API's problem.
	Title, Detail string
	// IsTenantScoped is true if the API returns only the resources of one tenant to the caller. A
	// resource that it does not find can then belong to another tenant.
	IsTenantScoped bool

	description string
}

// Error returns the description of the request, followed by the problem.
func (e *Error) Error() string {
	if e.Code == "" {
		return fmt.Sprintf("%s: %v: status %d", e.description, errNotFleetAPI, e.Status)
	}

	text := fmt.Sprintf("%s: %s (%d %s)", e.description, e.Title, e.Status, e.Code)
	if e.Detail != "" {
		text += ": " + e.Detail
	}

	return text
}

// Is returns true for ErrNotFound, ErrCursorGone and ErrChanged if the response has that meaning.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrNotFound:
		return e.Status == http.StatusNotFound && IsNoResource(e.Code)
	case ErrCursorGone:
		return e.Status == http.StatusGone && e.Code != ""
	case ErrChanged:
		return e.Status == http.StatusPreconditionFailed && e.Code != ""
	default:
		return false
	}
}

// IsTransient returns true if the same request may succeed later: the server is unavailable or
// overloaded, something other than the fleet API responded, the request conflicts with another one,
// or the credential is not accepted yet. All other errors of the fleet API are terminal.
func (e *Error) IsTransient() bool {
	if e.Code == "" || e.Status >= http.StatusInternalServerError {
		return true
	}

	switch e.Status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusConflict,
		http.StatusUnauthorized, http.StatusForbidden:
		return true
	default:
		return false
	}
}

// NewError converts a response that is not a success to an error. The description of the request is
// the prefix of the error's text.
func NewError(description string, resp *http.Response) *Error {
	apiErr := &Error{Status: resp.StatusCode, IsTenantScoped: resp.Header.Get(openapi.HeaderTenant) != "", description: description}

	contentType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || contentType != "application/problem+json" {
		return apiErr
	}

	var problem openapi.Problem
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxProblemSize)).Decode(&problem); err != nil ||
		problem.Status != resp.StatusCode || !strings.HasPrefix(problem.Code, "HYPERFLEET-") {
		return apiErr
	}

	apiErr.Code, apiErr.Title, apiErr.Detail = sanitizeText(problem.Code), sanitizeText(problem.Title), sanitizeText(problem.Detail)

	return apiErr
}

// sanitizeText replaces control characters of a server's text with spaces and cuts it to
// maxDetailLength bytes, so that it fits into one line of an error.
func sanitizeText(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}

		return r
	}, text)

	if len(text) > maxDetailLength {
		text = strings.ToValidUTF8(text[:maxDetailLength], "") + "..."
	}

	return text
}
