// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"

	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/search"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// ofStore makes a problem of what the store says; false if it is none of the caller's.
func ofStore(err error) (*Error, bool) {
	var (
		target *store.TargetError
		query  *search.Error
	)

	switch {
	case errors.As(err, &target):
		return ofTarget(target), true
	case errors.As(err, &query):
		return &Error{Code: CodeQuery, Detail: query.Error()}, true
	case errors.Is(err, store.ErrUnstorable):
		return &Error{
			Code: CodeInvalid, Detail: "a value can not be stored: a NUL character, or nesting without end", Cause: err,
		}, true
	case errors.Is(err, store.ErrOwnerDeleting):
		return problem(CodeState, "the parent is being deleted"), true
	case errors.Is(err, store.ErrCursorGone):
		return problem(CodeCursorGone, "list the resources, and follow the changes from a new cursor"), true
	case errors.Is(err, store.ErrCursorMalformed):
		return invalid(entity.FieldError{Field: "after", Message: "is not a cursor of an earlier answer"}), true
	case errors.Is(err, store.ErrUnavailable):
		return &Error{Code: CodeUnavailable, Detail: "try again", Cause: err}, true
	default:
		return nil, false
	}
}

func ofTarget(err *store.TargetError) *Error {
	if err.Problem == store.TargetDeleting {
		return problem(CodeState, "references.%s: %s is being deleted", err.Type, err.ID)
	}

	return invalid(entity.FieldError{Field: "references." + err.Type, Message: err.ID + ": " + err.Problem})
}
