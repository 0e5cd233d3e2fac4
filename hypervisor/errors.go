// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"errors"
	"fmt"
	"time"
)

// Kind says what a caller does about an error. An error without a kind is transient:
// try again with back-off.
type Kind string

// Kinds of errors.
const (
	// NotFound: the thing is not there.
	NotFound Kind = "NotFound"
	// NoCapacity: no node has room now; wait.
	NoCapacity Kind = "NoCapacity"
	// Busy: a lock or a limit of the hypervisor; wait.
	Busy Kind = "Busy"
	// Rejected: it will not work until a person changes something. Reason and Message
	// are shown to that person.
	Rejected Kind = "Rejected"
	// UnknownOutcome: the call may or may not have had its effect; look before acting.
	UnknownOutcome Kind = "UnknownOutcome"
	// IDTaken: the reserved id belongs to another's machine; reserve another.
	IDTaken Kind = "IDTaken"
	// NotOwned: the machine is not this owner's and was not touched.
	NotOwned Kind = "NotOwned"
	// Unavailable: the hypervisor does not answer.
	Unavailable Kind = "Unavailable"
)

// Error is an error with a kind, and what a person needs to know.
type Error struct {
	Kind Kind
	// Reason is a CamelCase word for conditions and events, e.g. TemplateNotFound.
	Reason string
	// Message names the thing and the mend. It never holds a secret.
	Message string
	// After is when it is worth trying again; 0 leaves that to the caller.
	After time.Duration
	// Err is the cause, if there is one.
	Err error
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
