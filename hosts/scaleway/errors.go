// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scaleway

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/scaleway/scaleway-sdk-go/scw"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
)

// Kind says what a caller does about an error.
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

// Error of a call, with its kind and the words for people. It has the class of its kind.
type Error struct {
	Kind Kind
	// Message names what was tried and the fix. It holds no secret.
	Message string
	cause   error
}

// Error gives the message.
func (e *Error) Error() string { return e.Message }

// Unwrap gives what the API said, where that may be looked at.
func (e *Error) Unwrap() error { return e.cause }

// Reason is the kind, for conditions and events.
func (e *Error) Reason() string { return "Scaleway" + string(e.Kind) }

// Class says whether to wait, to try again, or to ask a person.
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

// Is tells whether err is of the kind.
func Is(err error, kind Kind) bool {
	e, ok := errors.AsType[*Error](err)

	return ok && e.Kind == kind
}

// Decided says that the API answered an order with no: nothing was ordered. After any
// other error it may have been.
func Decided(err error) bool {
	e, ok := errors.AsType[*Error](err)

	return ok && e.Kind != Unavailable
}

// fix is what a person is told for a kind.
func fix(kind Kind) string {
	switch kind {
	case OutOfStock:
		return "no such Mac is free in this zone: wait, or choose another type or zone"
	case Quota:
		return "the organization's quota is used up: give servers back, or ask Scaleway for more"
	case Busy:
		return "the server or the API is busy"
	case Denied:
		return "check the API key, and that it may use Apple silicon and SSH keys in this project"
	case Rejected:
		return "fix what was asked for"
	case NotFound:
		return "it is not there (any more), or belongs to another project or zone"
	case Unavailable:
		return "the API cannot be reached or has an outage"
	default:
		return ""
	}
}

// failure turns an error of the SDK into one with a kind. Whatever the API repeated of the
// secret key is taken out.
func (c *Client) failure(verb string, err error) error {
	if err == nil {
		return nil
	}

	if private, ok := errors.AsType[*httpbound.AddressError](err); ok {
		return &Error{Kind: Denied, Message: verb + ": SCW_API_URL is not called: " + private.Error(), cause: private}
	}

	kind, cause := kindOf(err), c.redact.Cause(err)
	said := strings.TrimPrefix(cause.Error(), "scaleway-sdk-go: ")

	return &Error{Kind: kind, Message: fmt.Sprintf("%s: %s (%s)", verb, fix(kind), clip(said)), cause: cause}
}

// kindOf reads the standard errors (https://www.scaleway.com/en/developers/api/#standard-errors)
// as the SDK has them, and statuses where a body is of no known type.
func kindOf(err error) Kind {
	if kind := kindOfStandard(err); kind != "" {
		return kind
	}

	answer, ok := errors.AsType[*scw.ResponseError](err)
	if !ok {
		return Unavailable
	}

	switch status := answer.StatusCode; {
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

func kindOfStandard(err error) Kind {
	kinds := map[Kind][]func(error) bool{
		NotFound:   {is[*scw.ResourceNotFoundError], is[*scw.ResourceExpiredError]},
		OutOfStock: {is[*scw.OutOfStockError]},
		Quota:      {is[*scw.QuotasExceededError]},
		Busy:       {is[*scw.TransientStateError], is[*scw.ResourceLockedError]},
		Denied:     {is[*scw.PermissionsDeniedError], is[*scw.DeniedAuthenticationError]},
		Rejected:   {is[*scw.InvalidArgumentsError], is[*scw.PreconditionFailedError]},
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

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)

	return ok
}

func clip(text string) string {
	const most = 300
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}

	return text
}
