// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package httpcall

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/hyperfleet/hyperfleet/platform/client"
)

// StatusError is the error of a response with a status that is not 2xx. Its text contains the method and the
// URL without the query. Of the response, it contains only the status and the problem of the fleet API.
type StatusError struct {
	// Status is the HTTP status.
	Status int
	// Code and Title come from the fleet API's problem (RFC 9457). Both are empty without a problem.
	Code, Title string
	// Gone is true if a problem of the fleet API states that the resource does not exist. It is false
	// for any other response with status 404.
	Gone bool

	call       string
	isRedirect bool
	retryAfter time.Duration
}

// Error returns the call and the status.
func (e *StatusError) Error() string {
	switch {
	case e.isRedirect:
		return fmt.Sprintf("%s: status %d redirects to another host, which is not followed", e.call, e.Status)
	case e.Code != "":
		return fmt.Sprintf("%s: status %d, %s: %s", e.call, e.Status, e.Code, e.Title)
	default:
		return fmt.Sprintf("%s: status %d %s", e.call, e.Status, http.StatusText(e.Status))
	}
}

// networkError is the error of an attempt without a complete response.
type networkError struct {
	call string
	err  error
}

// Error returns the call and the cause.
func (e *networkError) Error() string { return e.call + ": " + e.err.Error() }

// Unwrap returns the cause.
func (e *networkError) Unwrap() error { return e.err }

// IsTransient reports whether an error can go away by itself: an error of the network, or a response with
// status 408, 429 or 5xx.
func IsTransient(err error) bool {
	var status *StatusError
	if errors.As(err, &status) {
		return status.Status == http.StatusRequestTimeout || status.Status == http.StatusTooManyRequests ||
			status.Status >= http.StatusInternalServerError
	}

	var network *networkError

	return errors.As(err, &network)
}

// newStatusError returns the error of a response that is not 2xx, with the problem of the fleet API. It does
// not include the body of other servers, because the body may repeat parts of the request.
func (c *Client) newStatusError(call string, target *url.URL, response *http.Response) error {
	out := &StatusError{
		Status: response.StatusCode, call: call, retryAfter: c.parseRetryAfter(response),
		isRedirect: response.StatusCode >= 300 && response.StatusCode < 400 && response.Header.Get("Location") != "",
	}

	if c.isAPI(target) {
		problem := client.NewError(call, response)
		out.Code, out.Title, out.Gone = problem.Code, problem.Title, errors.Is(problem, client.ErrNotFound)
	}

	return out
}

// parseRetryAfter returns the delay of the Retry-After header, which is a number of seconds or a date (RFC
// 9110, 10.2.3). It limits seconds to one hour, and returns 0 if the header is missing or invalid.
func (c *Client) parseRetryAfter(response *http.Response) time.Duration {
	text := response.Header.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil && seconds > 0 {
		return time.Duration(min(seconds, int(time.Hour/time.Second))) * time.Second
	}

	if date, err := http.ParseTime(text); err == nil {
		return max(0, date.Sub(c.clock.Now()))
	}

	return 0
}

// stripURL removes the *url.Error that net/http wraps around an error, because it contains the URL with its
// query.
func stripURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}

	return err
}
