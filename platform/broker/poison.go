// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import "errors"

// poison marks an error that no further try fixes.
type poison struct{ error }

// Unwrap gives the error itself.
func (p poison) Unwrap() error { return p.error }

// Poison marks a handler's error: the event goes to the dead letters at once. Nil stays
// nil.
func Poison(err error) error {
	if err == nil {
		return nil
	}

	return poison{err}
}

// IsPoison says whether an error, or one that it wraps, was marked with Poison.
func IsPoison(err error) bool {
	_, ok := errors.AsType[poison](err)

	return ok
}
