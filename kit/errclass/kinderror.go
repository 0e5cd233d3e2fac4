// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package errclass

import (
	"errors"
	"fmt"
	"time"
)

// KindError is an error of a boundary: its kind says what the caller does about it, the
// rest is for people. Each boundary names its own kinds:
//
//	type Error = errclass.KindError[Kind]
type KindError[K ~string] struct {
	Kind K
	// Reason is a CamelCase word for conditions and events, e.g. TemplateNotFound.
	Reason string
	// Message names the thing and the fix. It never holds a secret.
	Message string
	// After is when it is worth trying again; 0 leaves that to the caller.
	After time.Duration
	// Err is the cause, if there is one.
	Err error
}

// Error gives the message and the cause.
func (e *KindError[K]) Error() string {
	if e.Err == nil {
		return e.Message
	}

	return fmt.Sprintf("%s: %v", e.Message, e.Err)
}

// Unwrap gives the cause.
func (e *KindError[K]) Unwrap() error { return e.Err }

// KindOf gives the kind of the first error of K's boundary in err's chain, or "".
func KindOf[K ~string](err error) K {
	if e, ok := errors.AsType[*KindError[K]](err); ok {
		return e.Kind
	}

	return ""
}
