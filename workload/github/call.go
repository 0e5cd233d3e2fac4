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

// caller makes calls as one credential, within its budget.
type caller struct {
	client *gh.Client
	budget *budget
}

// request is one call.
type request struct {
	class  class
	what   string // for people, such as "listing runners"
	method string // default: GET
	path   string // without a slash before it, or a whole URL
	query  url.Values
	body   any
	etag   string // of the answer that is there already
}

// send makes a call and reads its answer into out, unless that is nil. A call that the
// budget refuses is an error of kind RateLimited; other errors are the library's, for
// explain.
func (c caller) send(ctx context.Context, r request, out any) (*gh.Response, error) {
	if r.method == "" {
		r.method = http.MethodGet
	}

	if err := c.budget.allow(r.class, r.method, r.what); err != nil {
		return nil, err
	}

	if len(r.query) > 0 {
		r.path += "?" + r.query.Encode()
	}

	req, err := c.client.NewRequest(ctx, r.method, r.path, r.body)
	if err != nil {
		return nil, err
	}

	if r.etag != "" {
		req.Header.Set("If-None-Match", r.etag)
	}

	resp, err := c.client.Do(req, out)
	if _, accepted := errors.AsType[*gh.AcceptedError](err); accepted {
		err = nil
	}

	if after, ok := secondary(err); ok {
		c.budget.pause(after)
	}

	return resp, err
}

// paged is a page's query.
func paged(page int) url.Values {
	query := url.Values{"per_page": {strconv.Itoa(perPage)}}
	if page > 1 {
		query.Set("page", strconv.Itoa(page))
	}

	return query
}
