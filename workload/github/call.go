// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	gh "github.com/google/go-github/v88/github"
)

// caller makes calls with one credential and within its budget.
type caller struct {
	client *gh.Client
	budget *budget
}

// request is one call.
type request struct {
	class  callClass
	action string // for people, such as "list runners"
	method string // default: GET
	path   string // without a leading slash, or a whole URL
	query  url.Values
	body   any
	etag   string // of the cached response
}

// send makes a call and decodes its response into out, unless out is nil. If the budget does not
// allow the call, the error has kind RateLimited. Other errors come from the library. Pass them
// to explain.
func (c caller) send(ctx context.Context, r request, out any) (*gh.Response, error) {
	if r.method == "" {
		r.method = http.MethodGet
	}

	if err := c.budget.allow(r.class, r.method, r.action); err != nil {
		return nil, err
	}

	if len(r.query) > 0 {
		r.path += "?" + r.query.Encode()
	}

	req, err := c.client.NewRequest(ctx, r.method, r.path, r.body)
	if err != nil {
		return nil, err
	}

	// The library requests the media type of version 3.
	req.Header.Set("Accept", "application/vnd.github+json")

	if r.etag != "" {
		req.Header.Set("If-None-Match", r.etag)
	}

	resp, err := c.client.Do(req, out)
	if _, isAccepted := errors.AsType[*gh.AcceptedError](err); isAccepted {
		err = nil // the library returns an error for status 202
	}

	if delay, ok := parseSecondaryLimit(err); ok {
		c.budget.pause(delay)
	}

	return resp, err
}

// pageQuery returns the query of a page.
func pageQuery(page int) url.Values {
	query := url.Values{"per_page": {strconv.Itoa(perPage)}}
	if page > 1 {
		query.Set("page", strconv.Itoa(page))
	}

	return query
}
