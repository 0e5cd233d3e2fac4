// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package providerpb

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// ProtocolVersion is the version of the protocol in provider.proto.
const ProtocolVersion = 1

// Names on the wire.
const (
	// SessionKey is the metadata key of the session's ID.
	SessionKey = "hyperfleet-session"
	// ReasonSessionUnknown is the reason of the error for a call with an unknown session.
	ReasonSessionUnknown = "SessionUnknown"
	// ReasonVersionMismatch is the reason of the error for another version of the protocol.
	ReasonVersionMismatch = "ProviderVersionMismatch"

	CapabilityConsole  = "console"
	CapabilityTerminal = "terminal"
	CapabilityCommands = "commands"
)

// MaxMessage limits a message in bytes. A seed with its files and a list of ten thousand machines are smaller.
const MaxMessage = 16 << 20

// maxErrorText limits the text of an error in bytes. Statuses are headers of HTTP/2, which proxies limit.
const maxErrorText = 4 << 10

// codeByKind has the status codes of errors, for clients of gRPC that do not know the Error in the details.
//
//nolint:gochecknoglobals // a table
var codeByKind = map[hypervisor.Kind]codes.Code{
	hypervisor.NotFound: codes.NotFound, hypervisor.NoCapacity: codes.ResourceExhausted, hypervisor.Busy: codes.Aborted,
	hypervisor.Rejected: codes.FailedPrecondition, hypervisor.UnknownOutcome: codes.Unknown,
	hypervisor.IDTaken: codes.AlreadyExists, hypervisor.NotOwned: codes.PermissionDenied, hypervisor.Unavailable: codes.Unavailable,
}

// NewStatus returns the status of an error of a provider. It returns nil for a nil error.
func NewStatus(err error) error {
	if err == nil {
		return nil
	}

	message := newErrorText(err.Error())
	detail := &Error{Kind: string(hypervisor.KindOf(err)), Reason: newErrorText(errclass.ReasonOf(err, "")), Message: message}
	code := codes.Unknown

	if e, ok := errors.AsType[*hypervisor.Error](err); ok {
		detail.Reason = newErrorText(e.Reason)

		if e.RetryAfter > 0 {
			detail.RetryAfter = durationpb.New(e.RetryAfter)
		}

		if known, ok := codeByKind[e.Kind]; ok {
			code = known
		}
	} else if errors.Is(err, context.DeadlineExceeded) {
		code = codes.DeadlineExceeded
	} else if errors.Is(err, context.Canceled) {
		code = codes.Canceled
	}

	withDetails, detailsErr := status.New(code, message).WithDetails(detail)
	if detailsErr != nil {
		return status.Error(code, message)
	}

	return withDetails.Err()
}

// newErrorText returns a text that a message can have: one of another encoding would lose the kind of the error.
func newErrorText(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxErrorText)], "?")
}

// FindError returns the Error in the details of a status, and nil if it has none.
func FindError(err error) *Error {
	for _, detail := range status.Convert(err).Details() {
		if found, ok := detail.(*Error); ok {
			return found
		}
	}

	return nil
}

// IsKind reports whether a kind of an Error is one of package hypervisor.
func IsKind(kind string) bool {
	_, ok := codeByKind[hypervisor.Kind(kind)]

	return ok
}
