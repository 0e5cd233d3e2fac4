// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"errors"
	"fmt"
	"time"
)

// ErrSignature says that a webhook's signature does not match its body.
var ErrSignature = errors.New("webhook signature does not match: check that the platform and the pool hold the same secret")

// Kind says what a caller does about an error. An error without a kind is transient.
type Kind string

// Kinds of errors.
const (
	NotFound Kind = "NotFound"
	// RunnerBusy: the runner runs a job and was not removed.
	RunnerBusy Kind = "RunnerBusy"
	// Conflict: a live runner of that name exists.
	Conflict Kind = "Conflict"
	// RateLimited: try again after Error.After.
	RateLimited Kind = "RateLimited"
	// Rejected: a person must change something; Reason and Message say what.
	Rejected Kind = "Rejected"
)

// Error is an error with a kind, and what a person needs to know.
type Error struct {
	Kind Kind
	// Reason is a CamelCase word for conditions and events.
	Reason string
	// Message names the thing and the mend. It never holds a secret.
	Message string
	// After is when it is worth trying again.
	After time.Duration
	Err   error
}

// Error gives the message and the cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}

	return fmt.Sprintf("%s: %v", e.Message, e.Err)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf gives the kind of the first Error in err's chain, or "".
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}

	return ""
}

// Is tells whether err is of the kind.
func Is(err error, kind Kind) bool { return err != nil && KindOf(err) == kind }
