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

// Code tells kinds of errors apart, for programs: HYPERFLEET-CAT-NUM.
type Code string

// The codes. docs/reference/fleet-api.md has them with what to do about each.
const (
	CodeInvalid      Code = "HYPERFLEET-VAL-001"
	CodeQuery        Code = "HYPERFLEET-VAL-007"
	CodeChildRoute   Code = "HYPERFLEET-VAL-101"
	CodeTooLarge     Code = "HYPERFLEET-VAL-104"
	CodeMedia        Code = "HYPERFLEET-VAL-105"
	CodeMethod       Code = "HYPERFLEET-VAL-102"
	CodeCursorGone   Code = "HYPERFLEET-VAL-103"
	CodeUnknown      Code = "HYPERFLEET-AUT-001"
	CodeNotTrusted   Code = "HYPERFLEET-AUT-002"
	CodeForbidden    Code = "HYPERFLEET-AUZ-001"
	CodeNoRoute      Code = "HYPERFLEET-NTF-000"
	CodeNoResource   Code = "HYPERFLEET-NTF-001"
	CodeExists       Code = "HYPERFLEET-CNF-001"
	CodeInUse        Code = "HYPERFLEET-CNF-101"
	CodeState        Code = "HYPERFLEET-CNF-003"
	CodeInternal     Code = "HYPERFLEET-INT-001"
	CodeRule         Code = "HYPERFLEET-INT-101"
	CodeUnavailable  Code = "HYPERFLEET-SVC-001"
	CodeKeysNotThere Code = "HYPERFLEET-SVC-101"
)

// Meaning is what a code says to every caller.
type Meaning struct {
	Status int
	Title  string
}

// Meanings are those of all codes.
func Meanings() map[Code]Meaning {
	return map[Code]Meaning{
		CodeInvalid:      {http.StatusBadRequest, "The request is not valid"},
		CodeQuery:        {http.StatusBadRequest, "The query is not valid"},
		CodeChildRoute:   {http.StatusUnprocessableEntity, "The kind is not created here"},
		CodeTooLarge:     {http.StatusRequestEntityTooLarge, "The request is too large"},
		CodeMedia:        {http.StatusUnsupportedMediaType, "The media type is not taken"},
		CodeMethod:       {http.StatusMethodNotAllowed, "The method is not allowed"},
		CodeCursorGone:   {http.StatusGone, "The changes are not kept any more"},
		CodeUnknown:      {http.StatusUnauthorized, "A token is needed"},
		CodeNotTrusted:   {http.StatusUnauthorized, "The token is not valid"},
		CodeForbidden:    {http.StatusForbidden, "The caller may not do this"},
		CodeNoRoute:      {http.StatusNotFound, "There is no such route"},
		CodeNoResource:   {http.StatusNotFound, "There is no such resource"},
		CodeExists:       {http.StatusConflict, "The resource exists"},
		CodeInUse:        {http.StatusConflict, "The resource is in use"},
		CodeState:        {http.StatusConflict, "The state of the resource does not allow this"},
		CodeInternal:     {http.StatusInternalServerError, "Something went wrong"},
		CodeRule:         {http.StatusInternalServerError, "A rule for conditions failed"},
		CodeUnavailable:  {http.StatusServiceUnavailable, "The database does not answer"},
		CodeKeysNotThere: {http.StatusServiceUnavailable, "Tokens can not be checked"},
	}
}

// Error is an answer that is a problem.
type Error struct {
	Code   Code
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

	text.WriteString(string(e.Code) + ": " + e.Detail)

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

func problem(code Code, format string, args ...any) *Error {
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
	meaning := Meanings()[what.Code]
	body := openapi.Problem{
		Code: string(what.Code), Detail: what.Detail, Instance: r.URL.Path, Status: meaning.Status,
		Timestamp: &now, Title: meaning.Title, Type: "urn:hyperfleet:problem:" + string(what.Code),
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

	if meaning.Status == http.StatusUnauthorized {
		header.Set("WWW-Authenticate", "Bearer")
	}

	if meaning.Status == http.StatusServiceUnavailable {
		header.Set("Retry-After", "1")
	}

	w.WriteHeader(meaning.Status)
	_ = json.NewEncoder(w).Encode(body) //nolint:errchkjson // of texts and numbers alone
}
