// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package errclass

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Class says what has to happen before the same call can succeed.
type Class string

// The classes of errors.
const (
	// Transient errors disappear without intervention. The caller retries with back-off.
	Transient Class = "Transient"
	// Permanent errors occur again on every retry. The object has failed.
	Permanent Class = "Permanent"
	// Configuration errors last until a person changes the configuration.
	Configuration Class = "Configuration"
	// Resource errors last until resources are freed or added. The caller waits.
	Resource Class = "Resource"
)

// Error is an error with a class and with a reason for a condition.
type Error struct {
	class  Class
	reason string
	err    error
}

// New returns an error of the class. The reason is one CamelCase word. format and args are as in
// fmt.Errorf, including %w.
func New(class Class, reason, format string, args ...any) *Error {
	return &Error{class: class, reason: reason, err: fmt.Errorf(format, args...)}
}

// Wrap adds a class and a reason to err and keeps its text. It returns nil if err is nil. The result
// type is error and not *Error, so that a nil result compares equal to nil.
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

// Reason returns the CamelCase word for conditions and events. It may be empty.
func (e *Error) Reason() string { return e.reason }

// ReasonQuotaExceeded is the reason of errors for which IsOverQuota returns true.
const ReasonQuotaExceeded = "QuotaExceeded"

// IsOverQuota returns whether an API server rejected an object because of a ResourceQuota that is used up, or whose usage
// is not calculated yet. Only the text of the error tells (k8s.io/apiserver, pkg/admission/plugin/resourcequota).
func IsOverQuota(err error) bool {
	if err == nil || !apierrors.IsForbidden(err) {
		return false
	}

	text := err.Error()

	return strings.Contains(text, "exceeded quota") || strings.Contains(text, "status unknown for quota")
}

// ClassOf returns the class of the outermost error in err's tree that has a class. For other errors, it returns Resource
// if a ResourceQuota is used up, and Transient otherwise, because a retry does no lasting harm. It returns "" for nil.
func ClassOf(err error) Class {
	if err == nil {
		return ""
	}

	var target interface{ Class() Class }
	if errors.As(err, &target) && target.Class() != "" {
		return target.Class()
	}

	if IsOverQuota(err) {
		return Resource
	}

	return Transient
}

// ReasonOf returns the reason of the outermost error in err's tree that has a reason. For other errors,
// it returns "Timeout" if a deadline was exceeded, ReasonQuotaExceeded if a ResourceQuota is used up, and fallback
// otherwise.
func ReasonOf(err error, fallback string) string {
	var target interface{ Reason() string }
	if errors.As(err, &target) && target.Reason() != "" {
		return target.Reason()
	}

	if errors.Is(err, context.DeadlineExceeded) {
		return "Timeout"
	}

	if IsOverQuota(err) {
		return ReasonQuotaExceeded
	}

	return fallback
}
