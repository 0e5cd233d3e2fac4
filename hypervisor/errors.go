// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"fmt"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
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
type Error = errclass.KindError[Kind]

// KindOf gives the kind of the first Error in err's chain, or "".
func KindOf(err error) Kind { return errclass.KindOf[Kind](err) }

// Is tells whether err is of the kind.
func Is(err error, kind Kind) bool { return err != nil && KindOf(err) == kind }

// Errorf makes an error of a kind; the message is written as by fmt.Sprintf.
func Errorf(kind Kind, reason, format string, args ...any) *Error {
	return &Error{Kind: kind, Reason: reason, Message: fmt.Sprintf(format, args...)}
}
