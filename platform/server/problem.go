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

// Code tells kinds of errors apart.
type Code struct {
	// ID is for programs: HYPERFLEET-CAT-NUM.
	ID string
	// Status and Title are what it says to every caller.
	Status int
	Title  string
}

// The codes. docs/reference/fleet-api.md has them with what to do about each.
//
//nolint:gochecknoglobals // they are not changed
var (
	CodeInvalid      = &Code{"HYPERFLEET-VAL-001", http.StatusBadRequest, "The request is not valid"}
	CodeQuery        = &Code{"HYPERFLEET-VAL-007", http.StatusBadRequest, "The query is not valid"}
	CodeChildRoute   = &Code{"HYPERFLEET-VAL-101", http.StatusUnprocessableEntity, "The kind is not created here"}
	CodeTooLarge     = &Code{"HYPERFLEET-VAL-104", http.StatusRequestEntityTooLarge, "The request is too large"}
	CodeMedia        = &Code{"HYPERFLEET-VAL-105", http.StatusUnsupportedMediaType, "The media type is not taken"}
	CodeMethod       = &Code{"HYPERFLEET-VAL-102", http.StatusMethodNotAllowed, "The method is not allowed"}
	CodeCursorGone   = &Code{"HYPERFLEET-VAL-103", http.StatusGone, "The changes are not kept any more"}
	CodeUnknown      = &Code{"HYPERFLEET-AUT-001", http.StatusUnauthorized, "A token is needed"}
	CodeNotTrusted   = &Code{"HYPERFLEET-AUT-002", http.StatusUnauthorized, "The token is not valid"}
	CodeForbidden    = &Code{"HYPERFLEET-AUZ-001", http.StatusForbidden, "The caller may not do this"}
	CodeNoRoute      = &Code{"HYPERFLEET-NTF-000", http.StatusNotFound, "There is no such route"}
	CodeNoResource   = &Code{"HYPERFLEET-NTF-001", http.StatusNotFound, "There is no such resource"}
	CodeExists       = &Code{"HYPERFLEET-CNF-001", http.StatusConflict, "The resource exists"}
	CodeInUse        = &Code{"HYPERFLEET-CNF-101", http.StatusConflict, "The resource is in use"}
	CodeState        = &Code{"HYPERFLEET-CNF-003", http.StatusConflict, "The state of the resource does not allow this"}
	CodeInternal     = &Code{"HYPERFLEET-INT-001", http.StatusInternalServerError, "Something went wrong"}
	CodeRule         = &Code{"HYPERFLEET-INT-101", http.StatusInternalServerError, "A rule for conditions failed"}
	CodeUnavailable  = &Code{"HYPERFLEET-SVC-001", http.StatusServiceUnavailable, "The database does not answer"}
	CodeKeysNotThere = &Code{"HYPERFLEET-SVC-101", http.StatusServiceUnavailable, "Tokens can not be checked"}
)

// Error is an answer that is a problem.
type Error struct {
	Code   *Code
	Detail string
	// Fields are what is wrong field by field.
	Fields []entity.FieldError
	// Allow are the methods of a 405.
	Allow string
	// Cause is logged and not told.
	Cause error
}

// Error is for logs; what callers are told is the problem.
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

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

func problem(code *Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// invalid says what is wrong field by field, in an order that does not depend on chance.
func invalid(fields ...entity.FieldError) *Error {
	slices.SortFunc(fields, func(a, b entity.FieldError) int {
		return cmp.Or(strings.Compare(a.Field, b.Field), strings.Compare(a.Message, b.Message))
	})

	return &Error{Code: CodeInvalid, Detail: "see errors for what is wrong by field", Fields: fields}
}

func notFound(kind, id string) *Error {
	if kind == "" {
		kind = "resource"
	}

	return problem(CodeNoResource, "there is no %s %s", kind, id)
}

// asProblem makes an *Error of any error. What is not known is told as little as possible.
func asProblem(err error) *Error {
	var (
		known  *Error
		target *store.TargetError
		query  *search.Error
	)

	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &target) && target.Problem == store.TargetDeleting:
		return problem(CodeState, "references.%s: %s is being deleted", target.Type, target.ID)
	case errors.As(err, &target):
		return invalid(entity.FieldError{Field: "references." + target.Type, Message: target.ID + ": " + target.Problem})
	case errors.As(err, &query):
		return &Error{Code: CodeQuery, Detail: query.Error()}
	case errors.Is(err, store.ErrUnstorable):
		return &Error{
			Code: CodeInvalid, Detail: "a value can not be stored: a NUL character, or nesting without end", Cause: err,
		}
	case errors.Is(err, store.ErrOwnerDeleting):
		return problem(CodeState, "the parent is being deleted")
	case errors.Is(err, store.ErrCursorGone):
		return problem(CodeCursorGone, "list the resources, and follow the changes from a new cursor")
	case errors.Is(err, store.ErrCursorMalformed):
		return invalid(entity.FieldError{Field: "after", Message: "is not a cursor of an earlier answer"})
	case errors.Is(err, store.ErrUnavailable):
		return &Error{Code: CodeUnavailable, Detail: "try again", Cause: err}
	default:
		return &Error{Code: CodeInternal, Detail: "the log of the API has the cause under the trace or request id", Cause: err}
	}
}

// writeProblem answers with a problem.
func writeProblem(w http.ResponseWriter, r *http.Request, what *Error, now time.Time) {
	body := openapi.Problem{
		Code: what.Code.ID, Detail: what.Detail, Instance: r.URL.Path, Status: what.Code.Status,
		Timestamp: &now, Title: what.Code.Title, Type: "urn:hyperfleet:problem:" + what.Code.ID,
		Errors: what.Fields,
	}

	if span := trace.SpanContextFromContext(r.Context()); span.HasTraceID() {
		body.TraceId = span.TraceID().String()
	}

	header := w.Header()
	header.Set("Content-Type", "application/problem+json")
	header.Set("Cache-Control", "no-store")

	if what.Allow != "" {
		header.Set("Allow", what.Allow)
	}

	if what.Code.Status == http.StatusUnauthorized {
		header.Set("WWW-Authenticate", "Bearer")
	}

	if what.Code.Status == http.StatusServiceUnavailable {
		header.Set("Retry-After", "1")
	}

	w.WriteHeader(what.Code.Status)
	_ = json.NewEncoder(w).Encode(body) //nolint:errchkjson // of texts and numbers alone
}
