// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
)

// Exit codes other than 0. A command may define further codes above these.
const (
	// ExitFailed is the exit code of a command that failed or that found a problem.
	ExitFailed = 1
	// ExitUsage is the exit code for an invalid command line or configuration.
	ExitUsage = 2
)

// codedError is an error with an exit code. err is nil if the command has already printed the problem.
type codedError struct {
	err  error
	code int
}

// Error returns the text of the error, or an empty string if the command has already printed the problem.
func (e codedError) Error() string {
	if e.err == nil {
		return ""
	}

	return e.err.Error()
}

// Unwrap returns the error without the exit code.
func (e codedError) Unwrap() error { return e.err }

// WithCode returns err with an exit code.
func WithCode(err error, code int) error { return codedError{err, code} }

// Usage returns err with ExitUsage, for an invalid command line or configuration.
func Usage(err error) error { return WithCode(err, ExitUsage) }

// Usagef formats an error as fmt.Errorf does and returns it with ExitUsage.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// Failed returns an error with ExitFailed and without text, for a command that has already printed the
// problem.
func Failed() error { return WithCode(nil, ExitFailed) }

// ExitCode returns the exit code of an error. It returns 0 for nil and ExitFailed for an error without an
// exit code.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}

	if coded, ok := errors.AsType[codedError](err); ok {
		return coded.code
	}

	return ExitFailed
}
