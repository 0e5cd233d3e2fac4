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
	// codeNoResource is one of the API (facts of RFC 9457 problems: HYPERFLEET-CATEGORY-NUMBER).
	codeNoResource = "HYPERFLEET-NTF-001"

	maxProblem = 64 << 10
	maxDetail  = 512
)

// What errors of this package can be, for errors.Is.
var (
	// ErrNotFound says that the API knows no such resource: a well-formed problem with
	// code HYPERFLEET-NTF-001, and nothing else of status 404.
	ErrNotFound = errors.New("no such resource")
	// ErrCursorGone says that the change feed does not go back to the cursor.
	ErrCursorGone = errors.New("cursor is older than the changes that are kept")

	errAnswer = errors.New("the answer is not one of the fleet API")
)

// Error is an answer that is no success.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Code is the API's, for example HYPERFLEET-NTF-001; empty if the answer was no
	// well-formed problem of RFC 9457.
	Code string
	// Title and Detail are the API's words.
	Title, Detail string
	// OfTenant says that the API shows the caller the resources of one tenant alone: what it
	// does not have may be another's.
	OfTenant bool

	what string
}

// Error says what was asked, and what was answered.
func (e *Error) Error() string {
	if e.Code == "" {
		return fmt.Sprintf("%s: %v: status %d", e.what, errAnswer, e.Status)
	}

	text := fmt.Sprintf("%s: %s (%d %s)", e.what, e.Title, e.Status, e.Code)
	if e.Detail != "" {
		text += ": " + e.Detail
	}

	return text
}

// Is tells the kinds of answers apart.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrNotFound:
		return e.Status == http.StatusNotFound && e.Code == codeNoResource
	case ErrCursorGone:
		return e.Status == http.StatusGone && e.Code != ""
	default:
		return false
	}
}

// Temporary says that the same call may succeed later: the server is out of order or
// too busy, or something that is not the fleet API answered in its place. A refusal by
// the fleet API itself is not temporary, a conflict is.
func (e *Error) Temporary() bool {
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

// Problem reads an answer that is no success; errors say what was tried.
func Problem(what string, resp *http.Response) *Error {
	answer := &Error{Status: resp.StatusCode, OfTenant: resp.Header.Get(openapi.HeaderTenant) != "", what: what}

	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != "application/problem+json" {
		return answer
	}

	var said openapi.Problem
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxProblem)).Decode(&said); err != nil ||
		said.Status != resp.StatusCode || !strings.HasPrefix(said.Code, "HYPERFLEET-") {
		return answer
	}

	answer.Code, answer.Title, answer.Detail = clip(said.Code), clip(said.Title), clip(said.Detail)

	return answer
}

// clip makes foreign text fit for a line of an error.
func clip(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}

		return r
	}, text)

	if len(text) > maxDetail {
		text = strings.ToValidUTF8(text[:maxDetail], "") + "..."
	}

	return text
}
