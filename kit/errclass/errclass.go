// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package errclass

import (
	"context"
	"errors"
	"fmt"
)

// Class says what has to happen before the same call can succeed.
type Class string

// The classes of the operator's document.
const (
	// Transient errors go away by themselves: retry with back-off.
	Transient Class = "Transient"
	// Permanent errors stay whatever is retried: the object has failed.
	Permanent Class = "Permanent"
	// Configuration errors need a person to change something.
	Configuration Class = "Configuration"
	// Resource errors last until somebody frees or adds resources: wait.
	Resource Class = "Resource"
)

// Error is an error with its class and the reason to show in a condition.
type Error struct {
	class  Class
	reason string
	err    error
}

// New makes an error of a class. The reason is one CamelCase word; format and
// args are those of fmt.Errorf, %w included.
func New(class Class, reason, format string, args ...any) *Error {
	return &Error{class: class, reason: reason, err: fmt.Errorf(format, args...)}
}

// Wrap gives an existing error a class and a reason; the text stays. It returns
// nil for nil. The result is an error and no *Error, so that nil stays nil.
func Wrap(class Class, reason string, err error) error {
	if err == nil {
		return nil
	}

	return &Error{class: class, reason: reason, err: err}
}

// Error returns the text of the wrapped error.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the wrapped error.
func (e *Error) Unwrap() error { return e.err }

// Class returns the error's class.
func (e *Error) Class() Class { return e.class }

// Reason returns the CamelCase word for conditions and events, possibly empty.
func (e *Error) Reason() string { return e.reason }

// Of returns the class of the outermost error in err's tree that has one.
// Errors without a class are Transient: trying again is the only answer that is
// never wrong for long. Of(nil) is empty.
func Of(err error) Class {
	if err == nil {
		return ""
	}

	var classed interface{ Class() Class }
	if errors.As(err, &classed) && classed.Class() != "" {
		return classed.Class()
	}

	return Transient
}

// Reason returns the reason of the outermost error in err's tree that has one,
// "Timeout" for an exceeded deadline, else fallback.
func Reason(err error, fallback string) string {
	var reasoned interface{ Reason() string }
	if errors.As(err, &reasoned) && reasoned.Reason() != "" {
		return reasoned.Reason()
	}

	if errors.Is(err, context.DeadlineExceeded) {
		return "Timeout"
	}

	return fallback
}
