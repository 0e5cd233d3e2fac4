// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

const (
	maxProblemSize  = 64 << 10
	maxDetailLength = 512
)

// networkError is the error of an attempt without a complete response.
type networkError struct {
	description string
	err         error
}

// Error returns the description of the request and the cause.
func (e *networkError) Error() string { return e.description + ": " + e.err.Error() }

// Unwrap returns the cause.
func (e *networkError) Unwrap() error { return e.err }

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

	errNotFleetAPI = errors.New("the response is not from the fleet API")
)

// Error is a response that is not a success. Of the response to a Call, its text contains only the status, and the code
// and the title of the fleet API's problem, because the rest can repeat parts of the request.
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

	description        string
	isCall, isRedirect bool
	retryAfter         time.Duration
}

// Error returns the description of the request, followed by the problem.
func (e *Error) Error() string {
	switch {
	case e.isRedirect:
		return fmt.Sprintf("%s: status %d redirects to another host or with another method, which is not followed",
			e.description, e.Status)
	case e.Code == "" && e.isCall:
		return fmt.Sprintf("%s: status %d %s", e.description, e.Status, http.StatusText(e.Status))
	case e.Code == "":
		return fmt.Sprintf("%s: %v: status %d", e.description, errNotFleetAPI, e.Status)
	}

	text := fmt.Sprintf("%s: %s (%d %s)", e.description, e.Title, e.Status, e.Code)
	if e.Detail != "" {
		text += ": " + e.Detail
	}

	return text
}

// Is returns true for ErrNotFound and ErrCursorGone if the response has that meaning.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrNotFound:
		return e.Status == http.StatusNotFound && IsNoResource(e.Code)
	case ErrCursorGone:
		return e.Status == http.StatusGone && e.Code != ""
	default:
		return false
	}
}

// IsTransient reports whether the same request may succeed later: the network has failed, the server is unavailable or
// overloaded, something other than the fleet API responded, the request conflicts with another one, or the credential is
// not accepted yet. All other errors of the fleet API are terminal, and those of the other servers of a Call.
func IsTransient(err error) bool {
	if errors.Is(err, errNotFleetAPI) || isOutage(err) {
		return true
	}

	response, ok := errors.AsType[*Error](err)
	if !ok {
		return false
	}

	switch response.Status {
	case http.StatusConflict, http.StatusUnauthorized, http.StatusForbidden:
		return true
	default:
		return response.Code == "" && (!response.isCall || response.Status == http.StatusNotFound)
	}
}

// isOutage reports whether the next attempt may succeed: an error of the network, or a response with status 408, 429 or
// 5xx.
func isOutage(err error) bool {
	if _, ok := errors.AsType[*networkError](err); ok {
		return true
	}

	response, ok := errors.AsType[*Error](err)

	return ok && (response.Status == http.StatusRequestTimeout || response.Status == http.StatusTooManyRequests ||
		response.Status >= http.StatusInternalServerError)
}

// newErrorOf converts a response that is not a success to an error. Only the problem of the fleet API has a meaning.
func (c *Client) newErrorOf(x *exchange, response *Response) *Error {
	out := &Error{Status: response.Status, description: x.description}
	if c.isAPI(x.target) {
		out = newError(x.description, response)
	}

	out.isCall, out.retryAfter = x.isCall, c.parseRetryAfter(response.header)
	out.isRedirect = out.Status >= 300 && out.Status < 400 && response.header.Get("Location") != ""

	if x.isCall {
		out.Detail = ""
	}

	return out
}

// newError converts a response of the fleet API that is not a success to an error. The description of the request is the
// prefix of the error's text.
func newError(description string, response *Response) *Error {
	apiErr := &Error{
		Status: response.Status, IsTenantScoped: response.header.Get(openapi.HeaderTenant) != "", description: description,
	}

	contentType, _, err := mime.ParseMediaType(response.header.Get("Content-Type"))
	if err != nil || contentType != "application/problem+json" || len(response.Body) > maxProblemSize {
		return apiErr
	}

	var problem openapi.Problem
	if err := json.Unmarshal(response.Body, &problem); err != nil ||
		problem.Status != response.Status || !strings.HasPrefix(problem.Code, "HYPERFLEET-") {
		return apiErr
	}

	apiErr.Code, apiErr.Title, apiErr.Detail = sanitizeText(problem.Code), sanitizeText(problem.Title), sanitizeText(problem.Detail)

	return apiErr
}

// parseRetryAfter returns the delay of the Retry-After header, which is a number of seconds or a date (RFC
// 9110, 10.2.3). It limits seconds to one hour, and returns 0 if the header is missing or invalid.
func (c *Client) parseRetryAfter(header http.Header) time.Duration {
	text := header.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil && seconds > 0 {
		return time.Duration(min(seconds, int(time.Hour/time.Second))) * time.Second
	}

	if date, err := http.ParseTime(text); err == nil {
		return max(0, date.Sub(c.options.Clock.Now()))
	}

	return 0
}

// stripURL removes the *url.Error that net/http wraps around an error, because it contains the URL with its
// query.
func stripURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}

	return err
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
