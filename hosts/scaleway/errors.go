// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scaleway

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/scaleway/scaleway-sdk-go/scw"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// Kind tells the caller what to do about an error.
type Kind string

// The kinds.
const (
	NotFound    Kind = "NotFound"
	OutOfStock  Kind = "OutOfStock"
	Quota       Kind = "Quota"
	Busy        Kind = "Busy"
	Denied      Kind = "Denied"
	Rejected    Kind = "Rejected"
	Unavailable Kind = "Unavailable"
)

// Error is the error of a call. Its kind determines its class.
type Error struct {
	Kind Kind
	// Message names the operation and the fix. It contains no secret.
	Message string
	cause   error
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the API's error, without secrets, or nil.
func (e *Error) Unwrap() error { return e.cause }

// Reason returns the kind as a reason for conditions and events.
func (e *Error) Reason() string { return "Scaleway" + string(e.Kind) }

// Class returns the class of the error's kind.
func (e *Error) Class() errclass.Class {
	switch e.Kind {
	case OutOfStock, Quota, Busy:
		return errclass.Resource
	case Denied, Rejected:
		return errclass.Configuration
	case NotFound:
		return errclass.Permanent
	case Unavailable:
		return errclass.Transient
	default:
		return errclass.Transient
	}
}

// IsKind returns true if err is an Error of the kind.
func IsKind(err error, kind Kind) bool {
	e, ok := errors.AsType[*Error](err)

	return ok && e.Kind == kind
}

// IsOrderRejected returns true if the API rejected an order, so that nothing was ordered. After any
// other error, the server may have been ordered.
func IsOrderRejected(err error) bool {
	e, ok := errors.AsType[*Error](err)

	return ok && e.Kind != Unavailable
}

// fixFor returns the advice for errors of a kind.
func fixFor(kind Kind) string {
	switch kind {
	case OutOfStock:
		return "no Mac of this type is available in this zone: wait, or delete the machine and create it with another type or zone"
	case Quota:
		return "the organization's quota is used up: delete servers, or ask Scaleway for a higher quota"
	case Busy:
		return "the server or the API is busy"
	case Denied:
		return "check the API key and its permissions for Apple silicon and SSH keys in this project"
	case Rejected:
		return "the API rejected the request: correct its values"
	case NotFound:
		return "it does not exist, or belongs to another project or zone"
	case Unavailable:
		return "the API cannot be reached or has an outage"
	default:
		return ""
	}
}

// newError converts an error of the SDK to an Error. It redacts the secret key, which the API may
// have repeated.
func (c *Client) newError(operation string, err error) error {
	if err == nil {
		return nil
	}

	if addressErr, ok := errors.AsType[*bounds.AddressError](err); ok {
		return &Error{Kind: Denied, Message: operation + ": SCW_API_URL is not allowed: " + addressErr.Error(), cause: addressErr}
	}

	kind, cause := kindOf(err), c.redact.RedactError(err)
	text := strings.TrimPrefix(cause.Error(), "scaleway-sdk-go: ")

	return &Error{Kind: kind, Message: fmt.Sprintf("%s: %s (%s)", operation, fixFor(kind), truncate(text)), cause: cause}
}

// kindOf returns the kind of an error. It maps the errors of the API
// (https://www.scaleway.com/en/developers/api/#standard-errors) for which the SDK has types, and the
// HTTP status of any other response.
func kindOf(err error) Kind {
	if kind := kindOfSDKError(err); kind != "" {
		return kind
	}

	response, ok := errors.AsType[*scw.ResponseError](err)
	if !ok {
		return Unavailable
	}

	switch status := response.StatusCode; {
	case status == http.StatusNotFound || status == http.StatusGone:
		return NotFound
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return Denied
	case status == http.StatusTooManyRequests || status == http.StatusConflict || status == http.StatusLocked:
		return Busy
	case status >= http.StatusBadRequest && status < http.StatusInternalServerError:
		return Rejected
	default:
		return Unavailable
	}
}

// kindOfSDKError returns the kind of an error for which the SDK has a type of its own, and "" for other errors.
func kindOfSDKError(err error) Kind {
	kinds := map[Kind][]func(error) bool{
		NotFound:   {isError[*scw.ResourceNotFoundError], isError[*scw.ResourceExpiredError]},
		OutOfStock: {isError[*scw.OutOfStockError]},
		Quota:      {isError[*scw.QuotasExceededError]},
		Busy:       {isError[*scw.TransientStateError], isError[*scw.ResourceLockedError]},
		Denied:     {isError[*scw.PermissionsDeniedError], isError[*scw.DeniedAuthenticationError]},
		Rejected:   {isError[*scw.InvalidArgumentsError], isError[*scw.PreconditionFailedError]},
	}

	for kind, tests := range kinds {
		for _, test := range tests {
			if test(err) {
				return kind
			}
		}
	}

	return ""
}

func isError[E error](err error) bool {
	_, ok := errors.AsType[E](err)

	return ok
}

func truncate(text string) string {
	const maxLength = 300
	if len(text) > maxLength {
		text = strings.ToValidUTF8(text[:maxLength], "") + "..."
	}

	return text
}
