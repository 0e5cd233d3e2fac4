// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import "errors"

// Kind defines what a caller does about an error.
type Kind string

// Kinds of errors.
const (
	// Unavailable means that the provider is unreachable or cannot serve the request now. The
	// caller retries.
	Unavailable Kind = "Unavailable"
	// Rejected means that the provider rejects the request. The request fails until a person
	// changes something.
	Rejected Kind = "Rejected"
	// TrustDomainMismatch means that the provider has another trust domain than the configured
	// one.
	TrustDomainMismatch Kind = "TrustDomainMismatch"
)

// Error is an error with a kind.
type Error struct {
	Kind Kind
	// Err names the object and the fix. It never contains a token.
	Err error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether the first Error in err's chain has the kind.
func Is(err error, kind Kind) bool {
	e, ok := errors.AsType[*Error](err)

	return ok && e.Kind == kind
}
