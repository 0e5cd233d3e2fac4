// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/adapter"
)

// maxCallBody is the maximum size of the response to a Call, in bytes.
const maxCallBody = 4 << 20

// Call is an HTTP call of a task file (api_call) with rendered texts.
type Call struct {
	// Method is the HTTP method. Default: GET.
	Method string
	// URL is absolute, or relative to the fleet API's root.
	URL string
	// Header contains the headers of this call.
	Header http.Header
	// Body may be empty. The default Content-Type of a body is application/json.
	Body string
	// Timeout is the timeout of one attempt. Default: that of the client.
	Timeout time.Duration
	// Attempts is the maximum number of attempts, at most adapter.MaxAttempts. Default: that of Options.Policy.
	Attempts int
	// Backoff is Exponential, Linear or Constant. Default: that of Options.Policy.
	Backoff string
}

// Response is a response with a status of class 2xx.
type Response struct {
	Status int
	Body   []byte

	header http.Header
}

// Call sends a call, with retries. It sends the fleet API's token only to the fleet API. It returns an *Error for a
// response with a status of another class than 2xx.
func (c *Client) Call(ctx context.Context, call Call) (*Response, error) {
	target, err := c.resolve(call.URL)
	if err != nil {
		return nil, err
	}

	policy := c.options.Policy
	policy.Attempts = min(cmp.Or(call.Attempts, policy.Attempts), adapter.MaxAttempts)
	policy.Backoff = cmp.Or(call.Backoff, policy.Backoff)
	method := cmp.Or(call.Method, http.MethodGet)

	return c.send(ctx, &exchange{
		description: method + " " + redactURL(target), method: method, target: target, header: call.Header, body: call.Body,
		timeout: cmp.Or(call.Timeout, c.timeout), policy: policy, maxBody: maxCallBody, isCall: true,
	})
}

// root is the path of the fleet API below its base URL.
const root = "api/hyperfleet/"

// resolve returns the absolute URL of a call. A relative URL is below /api/hyperfleet/VERSION of the fleet
// API, or below its base URL if it starts with api/.
func (c *Client) resolve(text string) (*url.URL, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, errors.New("api_call: the URL is empty")
	}

	target, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("api_call: the URL is invalid") // the text is omitted because it may contain a secret
	}

	if target.IsAbs() {
		if target.Scheme != "http" && target.Scheme != "https" || target.Host == "" {
			return nil, fmt.Errorf("api_call: %s: only http and https are supported", redactURL(target))
		}

		return target, nil
	}

	if target.Host != "" {
		return nil, fmt.Errorf("api_call: %s: the scheme is missing; write http or https", redactURL(target))
	}

	// A rendered value must not lead out of the path in the task file.
	if slices.ContainsFunc(strings.Split(target.Path, "/"), func(s string) bool { return s == ".." || s == "." }) {
		return nil, fmt.Errorf("api_call: %s: a relative URL must not contain . or .. as a part", redactURL(target))
	}

	relative := strings.TrimPrefix(target.EscapedPath(), "/")
	if !strings.HasPrefix(relative, "api/") {
		relative = root + c.options.Version + "/" + relative
	}

	out := c.base.JoinPath(relative)
	out.RawQuery = target.RawQuery

	return out, nil
}

// redactURL returns a URL for messages, without user and query, which may contain secrets.
func redactURL(target *url.URL) string {
	return (&url.URL{Scheme: target.Scheme, Host: target.Host, Path: target.Path}).String()
}
