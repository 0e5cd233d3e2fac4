// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"fmt"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// Kind defines what a caller does about an error. An error without a kind is transient, so
// the caller retries with back-off.
type Kind string

// Kinds of errors.
const (
	// NotFound means that the object does not exist.
	NotFound Kind = "NotFound"
	// NoCapacity means that no node has enough free capacity now. The caller waits.
	NoCapacity Kind = "NoCapacity"
	// Busy means that a lock or a limit of the hypervisor blocks the call. The caller waits.
	Busy Kind = "Busy"
	// Rejected means that the call fails until a person changes something. Conditions show
	// Reason and Message to that person.
	Rejected Kind = "Rejected"
	// UnknownOutcome means that the call may or may not have had its effect. The caller
	// reads the current state before it acts again.
	UnknownOutcome Kind = "UnknownOutcome"
	// IDTaken means that the reserved id belongs to a machine with another owner. The caller
	// reserves another id.
	IDTaken Kind = "IDTaken"
	// NotOwned means that the machine has another owner. The provider did not change it.
	NotOwned Kind = "NotOwned"
	// Unavailable means that the hypervisor does not respond.
	Unavailable Kind = "Unavailable"
)

// Error is an error with a kind, and with a reason and a message for people.
type Error = errclass.KindError[Kind]

// KindOf returns the kind of the first Error in err's chain, or "" if the chain has none.
func KindOf(err error) Kind { return errclass.KindOf[Kind](err) }

// Is reports whether err has the kind. It returns false for a nil error.
func Is(err error, kind Kind) bool { return err != nil && KindOf(err) == kind }

// ReasonNamesake is the reason of NewNamesakeError.
const ReasonNamesake = "PreviousMachineExists"

// ReasonAddressInUse is the reason of an error of Reserve, Ensure and Start if another machine has the address.
const ReasonAddressInUse = "AddressInUse"

// NewNamesakeError returns the error of Reserve if a machine belongs to an earlier claim of the same
// namespace and name. The operator deletes this machine, so the caller waits.
func NewNamesakeError(earlier Owner, machine string) *Error {
	return Errorf(NoCapacity, ReasonNamesake, "%s belongs to an earlier MachineClaim %s/%s (uid %s), which no longer exists: "+
		"the operator deletes the machine once its runner is not busy", machine, earlier.Namespace, earlier.Name, earlier.UID)
}

// Errorf returns an error with the kind and the reason. It formats the message as
// fmt.Sprintf does. The error wraps no cause.
func Errorf(kind Kind, reason, format string, args ...any) *Error {
	return &Error{Kind: kind, Reason: reason, Message: fmt.Sprintf(format, args...)}
}
