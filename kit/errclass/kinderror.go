// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package errclass

import (
	"errors"
	"fmt"
	"time"
)

// KindError is an error of a boundary package such as hypervisor or workload. The caller decides by the
// Kind what to do. Reason and Message are for people. Each boundary defines its own kinds:
//
//	type Error = errclass.KindError[Kind]
type KindError[K ~string] struct {
	Kind K
	// Reason is a CamelCase word for conditions and events, for example TemplateNotFound.
	Reason string
	// Message names the object of the problem and the fix. It must not contain a secret.
	Message string
	// RetryAfter is the time after which a retry is useful. If it is 0, the caller decides.
	RetryAfter time.Duration
	// Err is the cause. It may be nil.
	Err error
}

// Error returns the message and the cause.
func (e *KindError[K]) Error() string {
	if e.Err == nil {
		return e.Message
	}

	return fmt.Sprintf("%s: %v", e.Message, e.Err)
}

// Unwrap returns the cause.
func (e *KindError[K]) Unwrap() error { return e.Err }

// KindOf returns the kind of the first KindError[K] in err's chain, or "" if the chain has none.
func KindOf[K ~string](err error) K {
	if e, ok := errors.AsType[*KindError[K]](err); ok {
		return e.Kind
	}

	return ""
}
