// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import "errors"

// Kind says what an error means for whoever called.
type Kind string

// Kinds of errors.
const (
	// Unavailable: the provider was not reached, or is not able at present. Try again.
	Unavailable Kind = "Unavailable"
	// Rejected: the provider refuses; a person has to change something.
	Rejected Kind = "Rejected"
	// TrustDomainMismatch: the provider is of another trust domain than was configured.
	TrustDomainMismatch Kind = "TrustDomainMismatch"
)

// Error is an error with a meaning.
type Error struct {
	Kind Kind
	// Err names the thing and the fix. It never holds a token.
	Err error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is says whether an error is of a kind.
func Is(err error, kind Kind) bool {
	known, ok := errors.AsType[*Error](err)

	return ok && known.Kind == kind
}
