// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

const (
	// BasePath is where the API's routes are below the base URL.
	BasePath = "/api/hyperfleet/v1"
	// MaxPageSize is the most that the API puts on a page.
	MaxPageSize = 100
	// MaxWait is for how long the API lets a request for changes wait.
	MaxWait = 55 * time.Second

	defaultTimeout = 10 * time.Second
	// maxBody of an answer, in bytes. A page has at most 100 resources.
	maxBody = 64 << 20
)

// Client calls the fleet API. It may be used from any goroutine.
type Client struct {
	// base ends before the slash of a route.
	base string
	http *http.Client
}

// Options of New; the zero value will do.
type Options struct {
	// Calls, if there, count and time each try, with the system "hyperfleet-api".
	Calls *metrics.Calls
	// Transport of the connections. Default: one made for the API's CA.
	Transport http.RoundTripper
	// Headers are sent with each call, for example those of a tenant.
	Headers map[string]string
	// UserAgent names the program. Default: hyperfleet.
	UserAgent string
	// Clock of the pauses between tries. Default: the real one.
	Clock clock.Clock
}

// New checks the configuration. It makes no call.
func New(conf platform.APIClient, options Options) (*Client, error) {
	base, ok := ParseBase(conf.BaseURL)
	if !ok {
		return nil, errors.New("hyperfleet_api.base_url: write http(s)://HOST:PORT, with the token in token_file")
	}

	transport, err := newTransport(conf, options)
	if err != nil {
		return nil, err
	}

	doer := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}

	return &Client{base: strings.TrimSuffix(base.String(), "/") + BasePath, http: doer}, nil
}

// ParseBase reads where a fleet API is: http or https, without user, query or fragment. An
// error does not repeat the text, which may hold a password.
func ParseBase(text string) (base *url.URL, ok bool) {
	base, err := url.Parse(text)

	return base, err == nil && (base.Scheme == "http" || base.Scheme == "https") && base.Host != "" && base.User == nil &&
		base.RawQuery == "" && base.Fragment == ""
}

// Get reads one resource of any kind. ErrNotFound if there is none.
func (c *Client) Get(ctx context.Context, id string) (*openapi.Resource, error) {
	return call[openapi.Resource](ctx, c, request{
		what: "get resource " + id, method: http.MethodGet, path: []string{"resources", id},
	})
}

// ListOptions say which resources, and how many on a page.
type ListOptions struct {
	// Page counts from 1. Default: 1.
	Page int
	// Size of a page, at most MaxPageSize. Default: MaxPageSize.
	Size int
	// Order, for example "created_time desc". Default: "id asc".
	Order string
	// Search is a condition in the API's search language.
	Search string
	// Fields to answer with, comma-separated. Default: all.
	Fields string
}

// List reads one page of a collection: that of a kind ("clusters"), or "resources".
func (c *Client) List(ctx context.Context, plural string, options ListOptions) (*openapi.ResourceList, error) {
	if options.Size <= 0 || options.Size > MaxPageSize {
		options.Size = MaxPageSize
	}

	options.Page = max(options.Page, 1)
	options.Order = cmp.Or(options.Order, "id asc")

	query := url.Values{
		"page": {strconv.Itoa(options.Page)}, "size": {strconv.Itoa(options.Size)}, "order": {options.Order},
	}
	setIfGiven(query, "search", options.Search)
	setIfGiven(query, "fields", options.Fields)

	return call[openapi.ResourceList](ctx, c, request{
		what: "list " + plural, method: http.MethodGet, path: []string{plural}, query: query,
	})
}

// Changes reads what happened after the cursor to resources of the kind (empty: of all
// kinds), at most 500 at once, and waits for up to wait, in whole seconds, if nothing
// did. An empty cursor is answered at once with the cursor of now. ErrCursorGone if the
// API does not go back that far: list, and begin anew.
func (c *Client) Changes(ctx context.Context, after, kind string, wait time.Duration) (*openapi.ChangeList, error) {
	seconds := int(min(max(wait, 0), MaxWait) / time.Second)
	ctx = withWait(ctx, time.Duration(seconds)*time.Second)

	query := url.Values{"wait": {strconv.Itoa(seconds)}}
	setIfGiven(query, "after", after)
	setIfGiven(query, "kind", kind)

	return call[openapi.ChangeList](ctx, c, request{
		what: "read changes", method: http.MethodGet, path: []string{"changes"}, query: query,
	})
}

// PutStatus reports as an adapter. False: the report said nothing new, and the API
// discarded it. ErrNotFound if the resource is gone.
func (c *Client) PutStatus(ctx context.Context, id string, report openapi.StatusReport) (bool, error) {
	put := request{
		what: "put status of " + id, method: http.MethodPut, path: []string{"resources", id, "statuses"}, body: report,
	}

	resp, err := c.send(ctx, put)
	if err != nil {
		return false, err
	}
	defer drain(resp)

	switch resp.StatusCode {
	case http.StatusCreated:
		return true, nil
	case http.StatusNoContent:
		return false, nil
	default:
		return false, Problem(put.what, resp)
	}
}

// PutLease takes or renews a lease for ttl, in whole seconds, at most 300; 0 gives it
// back. The caller has it if the answer names its holder.
func (c *Client) PutLease(ctx context.Context, name, holder string, ttl time.Duration) (*openapi.Lease, error) {
	return call[openapi.Lease](ctx, c, request{
		what: "put lease " + name, method: http.MethodPut, path: []string{"leases", name},
		body: openapi.LeaseRequest{Holder: holder, TtlSeconds: int(ttl / time.Second)},
	})
}

func setIfGiven(query url.Values, name, value string) {
	if value != "" {
		query.Set(name, value)
	}
}

// request is one call.
type request struct {
	// what errors say was tried.
	what, method string
	// path has the route's segments below BasePath, not escaped.
	path  []string
	query url.Values
	// body is sent as JSON; nil: none.
	body any
}

// call makes a call whose one right answer is 200 with a T.
func call[T any](ctx context.Context, c *Client, ask request) (*T, error) {
	resp, err := c.send(ctx, ask)
	if err != nil {
		return nil, err
	}
	defer drain(resp)

	if resp.StatusCode != http.StatusOK {
		return nil, Problem(ask.what, resp)
	}

	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, fmt.Errorf("%s: %w: status %d with content type %q; is base_url that of the fleet API?",
			ask.what, errAnswer, resp.StatusCode, clip(resp.Header.Get("Content-Type")))
	}

	var answer T
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("%s: read the answer: %w", ask.what, err)
	}

	return &answer, nil
}

// send makes the call; the URL, which net/http puts into errors, says nothing here that
// the caller does not.
func (c *Client) send(ctx context.Context, ask request) (*http.Response, error) {
	segments := []string{c.base}
	for _, segment := range ask.path {
		segments = append(segments, url.PathEscape(segment))
	}

	target := strings.Join(segments, "/")

	if len(ask.query) > 0 {
		target += "?" + ask.query.Encode()
	}

	var body io.Reader

	if ask.body != nil {
		data, err := json.Marshal(ask.body)
		if err != nil {
			return nil, fmt.Errorf("%s: write the body: %w", ask.what, err)
		}

		body = bytes.NewReader(data)
	}

	r, err := http.NewRequestWithContext(ctx, ask.method, target, body)
	if err != nil {
		return nil, fmt.Errorf("%s: make the request: %w", ask.what, err)
	}

	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}

	resp, err := c.http.Do(r)
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}

	if err != nil {
		return nil, fmt.Errorf("%s: %w", ask.what, err)
	}

	return resp, nil
}

// drain lets the connection be used again.
func drain(resp *http.Response) {
	const most = 64 << 10

	_, _ = io.CopyN(io.Discard, resp.Body, most)
	_ = resp.Body.Close()
}
