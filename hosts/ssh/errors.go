// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"errors"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// Kind says what failed, and therefore what the caller has to do.
type Kind string

const (
	// Unreachable means a network failure, or a host that is off or closed the connection. Retry
	// later. A script that was running may have done all, some or none of its work, and may still
	// be running.
	Unreachable Kind = "Unreachable"
	// AuthRefused means that the host refused the user, the password or the private key.
	AuthRefused Kind = "AuthRefused"
	// HostKeyChanged means that the host presented a key other than the pinned one. It is another
	// host, or somebody intercepts the connection.
	HostKeyChanged Kind = "HostKeyChanged"
	// HostCertificateRefused means that the host presented no certificate that is valid for it. The
	// host or its certificate authority may provide another certificate.
	HostCertificateRefused Kind = "HostCertificateRefused"
	// SudoRefused means that the user can't become root.
	SudoRefused Kind = "SudoRefused"
	// Rejected means that the script exited with an error.
	Rejected Kind = "Rejected"
	// TimedOut means that the script was stopped because of its timeout.
	TimedOut Kind = "TimedOut"
	// VerificationFailed means that the script succeeded, but the host's probe does not show its effect.
	VerificationFailed Kind = "VerificationFailed"
	// Misconfigured means that the target is invalid, for example without a private key. Nothing
	// was sent.
	Misconfigured Kind = "Misconfigured"
)

// Error is the error type of this package. Its reason is its kind. Its message names the host and
// the fix, and contains no secret of the target or the script.
type Error = errclass.KindError[Kind]

// ErrHostKeyChanged is in the chain of every error of kind HostKeyChanged.
var ErrHostKeyChanged = errors.New("host key has changed")

// KindOf returns the kind of an error of this package, or an empty kind for other errors.
func KindOf(err error) Kind { return errclass.KindOf[Kind](err) }

func newError(kind Kind, err error, message string) *Error {
	return &Error{Kind: kind, Reason: string(kind), Message: message, Err: err}
}

// hostKeyError is an error of a host that had presented its key before.
type hostKeyError struct {
	error

	hostKey string
}

func (p *hostKeyError) Unwrap() error { return p.error }

// HostKeyOf returns the fingerprint of the key that a host presented, and that was trusted, before
// Dial failed. It returns an empty string if the host presented no trusted key.
func HostKeyOf(err error) string {
	if p, ok := errors.AsType[*hostKeyError](err); ok {
		return p.hostKey
	}

	return ""
}

const (
	defaultDialTimeout      = 15 * time.Second
	defaultHandshakeTimeout = 15 * time.Second
	defaultKeepAlive        = 15 * time.Second
	// DefaultTimeout is the timeout of a script that sets none.
	DefaultTimeout = 15 * time.Minute
	// gracePeriod is how much longer than the script's timeout Run waits for the end of the script.
	// After the timeout, the guard gives the script 5 s to end before it kills it.
	gracePeriod = 30 * time.Second
)
