// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
)

// Exit codes beside 0. Commands may have others above them.
const (
	// ExitFailed says that it could not be done, or that what was looked at is not well.
	ExitFailed = 1
	// ExitUsage says that the command line or the configuration can't be meant.
	ExitUsage = 2
)

// codedError is an error with the exit code that it ends the program with. Without an error
// of its own, everything is said already.
type codedError struct {
	err  error
	code int
}

// Error is the text of the error; empty where all is said already.
func (e codedError) Error() string {
	if e.err == nil {
		return ""
	}

	return e.err.Error()
}

// Unwrap gives the error itself.
func (e codedError) Unwrap() error { return e.err }

// WithCode gives the error an exit code.
func WithCode(err error, code int) error { return codedError{err, code} }

// Usage is the error of a command line or a configuration that can't be meant.
func Usage(err error) error { return WithCode(err, ExitUsage) }

// Usagef is Usage of a text, as fmt.Errorf makes it.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// Failed is the error of a command that has said already what is wrong: ExitFailed, no text.
func Failed() error { return WithCode(nil, ExitFailed) }

// ExitCode is the exit code that an error stands for: that which it was given, ExitFailed if
// it was given none, and 0 for no error.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}

	if coded, ok := errors.AsType[codedError](err); ok {
		return coded.code
	}

	return ExitFailed
}
