// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/search"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// Code is a kind of error.
type Code struct {
	// ID identifies the code for programs: HYPERFLEET-CATEGORY-NUMBER.
	ID string
	// Status and Title are the same for every error with this code.
	Status int
	Title  string
}

// The codes. docs/reference/fleet-api.md describes each of them and what to do about it.
//
//nolint:gochecknoglobals // they never change
var (
	CodeInvalid         = &Code{"HYPERFLEET-VAL-001", http.StatusBadRequest, "The request is not valid"}
	CodeQuery           = &Code{"HYPERFLEET-VAL-007", http.StatusBadRequest, "The query is not valid"}
	CodeChildRoute      = &Code{"HYPERFLEET-VAL-101", http.StatusUnprocessableEntity, "The kind can't be created at this path"}
	CodeTooLarge        = &Code{"HYPERFLEET-VAL-104", http.StatusRequestEntityTooLarge, "The request is too large"}
	CodeMediaType       = &Code{"HYPERFLEET-VAL-105", http.StatusUnsupportedMediaType, "The media type is not supported"}
	CodeMethod          = &Code{"HYPERFLEET-VAL-102", http.StatusMethodNotAllowed, "The method is not allowed"}
	CodeCursorGone      = &Code{"HYPERFLEET-VAL-103", http.StatusGone, "The changes are no longer available"}
	CodeChanged         = &Code{"HYPERFLEET-VAL-106", http.StatusPreconditionFailed, "The resource has changed"}
	CodeUnauthenticated = &Code{"HYPERFLEET-AUT-001", http.StatusUnauthorized, "A token is required"}
	CodeInvalidToken    = &Code{"HYPERFLEET-AUT-002", http.StatusUnauthorized, "The token is not valid"}
	CodeForbidden       = &Code{"HYPERFLEET-AUZ-001", http.StatusForbidden, "The caller has no permission for this"}
	CodeNoRoute         = &Code{"HYPERFLEET-NTF-000", http.StatusNotFound, "The route does not exist"}
	CodeNoResource      = &Code{"HYPERFLEET-NTF-001", http.StatusNotFound, "The resource does not exist"}
	CodeExists          = &Code{"HYPERFLEET-CNF-001", http.StatusConflict, "The resource already exists"}
	CodeInUse           = &Code{"HYPERFLEET-CNF-101", http.StatusConflict, "The resource is in use"}
	CodeState           = &Code{"HYPERFLEET-CNF-003", http.StatusConflict, "The state of the resource does not allow this"}
	CodeInternal        = &Code{"HYPERFLEET-INT-001", http.StatusInternalServerError, "Internal error"}
	CodeRule            = &Code{"HYPERFLEET-INT-101", http.StatusInternalServerError, "A rule for conditions failed"}
	CodeUnavailable     = &Code{"HYPERFLEET-SVC-001", http.StatusServiceUnavailable, "The database is unavailable"}
	CodeKeysUnavailable = &Code{"HYPERFLEET-SVC-101", http.StatusServiceUnavailable, "Tokens can't be verified"}
)

// Error is an error that the API returns as a problem.
type Error struct {
	Code   *Code
	Detail string
	// Fields are the errors by field.
	Fields []entity.FieldError
	// Allow has the allowed methods for status 405.
	Allow string
	// Cause is logged and not returned to the caller.
	Cause error
}

// Error returns the text for logs. Callers get the problem instead.
func (e *Error) Error() string {
	var text strings.Builder

	text.WriteString(e.Code.ID + ": " + e.Detail)

	for _, field := range e.Fields {
		text.WriteString("; " + field.Field + " " + field.Message)
	}

	if e.Cause != nil {
		text.WriteString(": " + e.Cause.Error())
	}

	return text.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

func newProblem(code *Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// newInvalid returns an error with what is wrong by field, in a stable order.
func newInvalid(fields ...entity.FieldError) *Error {
	slices.SortFunc(fields, func(a, b entity.FieldError) int {
		return cmp.Or(strings.Compare(a.Field, b.Field), strings.Compare(a.Message, b.Message))
	})

	return &Error{Code: CodeInvalid, Detail: "errors lists the invalid fields", Fields: fields}
}

func newNotFound(kind, id string) *Error {
	if kind == "" {
		kind = "resource"
	}

	return newProblem(CodeNoResource, "%s %s does not exist", kind, id)
}

// toProblem converts any error to an *Error. For an unknown error, the problem has no details.
func toProblem(err error) *Error {
	var (
		apiErr *Error
		target *store.TargetError
		query  *search.Error
	)

	switch {
	case errors.As(err, &apiErr):
		return apiErr
	case errors.As(err, &target) && target.Problem == store.TargetDeleting:
		return newProblem(CodeState, "references.%s: %s is being deleted", target.Type, target.ID)
	case errors.As(err, &target):
		return newInvalid(entity.FieldError{Field: "references." + target.Type, Message: target.ID + ": " + target.Problem})
	case errors.As(err, &query):
		return &Error{Code: CodeQuery, Detail: query.Error()}
	case errors.Is(err, store.ErrUnstorable):
		return &Error{
			Code: CodeInvalid, Detail: "a value can't be stored: it has a NUL character, or it is nested too deeply", Cause: err,
		}
	case errors.Is(err, store.ErrOwnerDeleting):
		return newProblem(CodeState, "the parent is being deleted")
	case errors.Is(err, store.ErrCursorGone):
		return newProblem(CodeCursorGone, "list the resources, then follow the changes from a new cursor")
	case errors.Is(err, store.ErrCursorMalformed):
		return newInvalid(entity.FieldError{Field: "after", Message: "is not a cursor from an earlier response"})
	case errors.Is(err, store.ErrUnavailable):
		return &Error{Code: CodeUnavailable, Detail: "retry later", Cause: err}
	default:
		return &Error{Code: CodeInternal, Detail: "search the log of the API for the cause by trace ID or request ID", Cause: err}
	}
}

func writeProblem(w http.ResponseWriter, r *http.Request, apiErr *Error, now time.Time) {
	body := openapi.Problem{
		Code: apiErr.Code.ID, Detail: apiErr.Detail, Instance: r.URL.Path, Status: apiErr.Code.Status,
		Timestamp: &now, Title: apiErr.Code.Title, Type: "urn:hyperfleet:problem:" + apiErr.Code.ID,
		Errors: apiErr.Fields,
	}

	if span := trace.SpanContextFromContext(r.Context()); span.HasTraceID() {
		body.TraceId = span.TraceID().String()
	}

	header := w.Header()
	header.Set("Content-Type", "application/problem+json")
	header.Set("Cache-Control", "no-store")

	if apiErr.Allow != "" {
		header.Set("Allow", apiErr.Allow)
	}

	if apiErr.Code.Status == http.StatusUnauthorized {
		header.Set("WWW-Authenticate", "Bearer")
	}

	if apiErr.Code.Status == http.StatusServiceUnavailable {
		header.Set("Retry-After", "1")
	}

	w.WriteHeader(apiErr.Code.Status)
	_ = json.NewEncoder(w).Encode(body) //nolint:errchkjson // it has only strings and numbers
}
