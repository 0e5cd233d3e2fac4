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

// StatusError is an answer that is not 2xx. Its text holds nothing of the request, and of
// the answer only what the fleet API says in a problem.
type StatusError struct {
	// Status is the HTTP status.
	Status int
	// Code and Title are those of the fleet API's problem (RFC 9457), if it sent one.
	Code, Title string
	// Gone is the fleet API's well-formed answer that there is no such resource. A 404 that
	// says anything else, or nothing, is not one.
	Gone bool

	where      string
	redirect   bool
	retryAfter time.Duration
}

// Error names the call and the answer.
func (e *StatusError) Error() string {
	switch {
	case e.redirect:
		return fmt.Sprintf("%s: answered with %d and another host, which is not followed", e.where, e.Status)
	case e.Code != "":
		return fmt.Sprintf("%s: answered with %d, %s: %s", e.where, e.Status, e.Code, e.Title)
	default:
		return fmt.Sprintf("%s: answered with %d %s", e.where, e.Status, http.StatusText(e.Status))
	}
}

// networkError is a try without an answer.
type networkError struct {
	where string
	err   error
}

// Error names the call.
func (e *networkError) Error() string { return e.where + ": " + e.err.Error() }

// Unwrap gives the cause.
func (e *networkError) Unwrap() error { return e.err }

// Transient tells errors that may go away by themselves: of the network, and the answers
// 408, 429 and 5xx.
func Transient(err error) bool {
	var status *StatusError
	if errors.As(err, &status) {
		return status.Status == http.StatusRequestTimeout || status.Status == http.StatusTooManyRequests ||
			status.Status >= http.StatusInternalServerError
	}

	var network *networkError

	return errors.As(err, &network)
}

// statusError reads what the fleet API says of an answer that is not 2xx. What other
// servers say is not repeated: it may echo what they were sent.
func (c *Client) statusError(where string, target *url.URL, answer *http.Response) error {
	out := &StatusError{
		Status: answer.StatusCode, where: where, retryAfter: c.retryAfter(answer),
		redirect: answer.StatusCode >= 300 && answer.StatusCode < 400 && answer.Header.Get("Location") != "",
	}

	if c.isAPI(target) {
		problem := client.Problem(where, answer)
		out.Code, out.Title, out.Gone = problem.Code, problem.Title, errors.Is(problem, client.ErrNotFound)
	}

	return out
}

// retryAfter reads the header in both its forms (RFC 9110, 10.2.3).
func (c *Client) retryAfter(answer *http.Response) time.Duration {
	text := answer.Header.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil && seconds > 0 {
		return time.Duration(min(seconds, int(time.Hour/time.Second))) * time.Second
	}

	if at, err := http.ParseTime(text); err == nil {
		return max(0, at.Sub(c.clock.Now()))
	}

	return 0
}

// bare takes off what net/http wraps around an error: the URL with its query.
func bare(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}

	return err
}
