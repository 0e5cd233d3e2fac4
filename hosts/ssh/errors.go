// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"errors"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// Kind says what is at fault, and so what has to happen next.
type Kind string

const (
	// Unreachable is the network, or a host that is off or cut the connection: try again
	// later. A script that was running may have done all, a part or nothing of its work, and
	// may still run.
	Unreachable Kind = "Unreachable"
	// AuthRefused is a user, password or key that the host does not take.
	AuthRefused Kind = "AuthRefused"
	// HostKeyChanged is another key than the pinned one: another host, or somebody between.
	HostKeyChanged Kind = "HostKeyChanged"
	// HostCertificateRefused is a host without a certificate that holds for it: it, or its authority,
	// may bring another one.
	HostCertificateRefused Kind = "HostCertificateRefused"
	// SudoRefused is a user who may not become root.
	SudoRefused Kind = "SudoRefused"
	// Rejected is a script that ended with an error.
	Rejected Kind = "Rejected"
	// TimedOut is a script that was ended because its time was up.
	TimedOut Kind = "TimedOut"
	// NotKept is a script that ended well, and whose work the host does not show.
	NotKept Kind = "NotKept"
	// Misconfigured is a target that can't be right, such as one without a key. Nothing was
	// sent.
	Misconfigured Kind = "Misconfigured"
)

// Error is what went wrong. Its reason is its kind; its message names the host and the
// fix, and has no secret that the target or the script names.
type Error = errclass.KindError[Kind]

// ErrHostKeyChanged is in the chain of every error of kind HostKeyChanged.
var ErrHostKeyChanged = errors.New("host key has changed")

// KindOf gives the kind of an error of this package; empty for others.
func KindOf(err error) Kind { return errclass.KindOf[Kind](err) }

// Class gives the class of an error of this package, which is that of its kind.
func Class(err error) errclass.Class {
	switch KindOf(err) {
	case AuthRefused, HostKeyChanged, HostCertificateRefused, SudoRefused, Misconfigured:
		return errclass.Configuration
	case Rejected, NotKept:
		return errclass.Permanent
	case Unreachable, TimedOut:
		return errclass.Transient
	default:
		return errclass.Of(err)
	}
}

func fault(kind Kind, err error, message string) *Error {
	return &Error{Kind: kind, Reason: string(kind), Message: message, Err: err}
}

// presented is an error of a host that had shown its key.
type presented struct {
	error

	hostKey string
}

func (p *presented) Unwrap() error { return p.error }

// HostKeyOf gives the fingerprint of the key that a host had shown, and that was trusted, before
// Dial failed; empty if the host did not get that far.
func HostKeyOf(err error) string {
	if p, ok := errors.AsType[*presented](err); ok {
		return p.hostKey
	}

	return ""
}

const (
	defaultDialTimeout      = 15 * time.Second
	defaultHandshakeTimeout = 15 * time.Second
	defaultKeepAlive        = 15 * time.Second
	// DefaultTimeout is how long a script may run that names no time.
	DefaultTimeout = 15 * time.Minute
	// grace is how much longer than the host we wait for the end of a script that took all
	// of its time: the guard gives it 5 s to end by itself.
	grace = 30 * time.Second
)
