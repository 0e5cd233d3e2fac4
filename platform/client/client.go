// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/exactjson"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

const (
	// BasePath is the path of the API below the base URL.
	BasePath = "/api/hyperfleet/v1"
	// MaxPageSize is the maximum number of resources on a page of the API.
	MaxPageSize = 100
	// MaxWait is the maximum time for which the API lets a request for changes wait.
	MaxWait = 55 * time.Second
	// DefaultTimeout is the timeout of an attempt without clients.hyperfleet_api.timeout.
	DefaultTimeout = 10 * time.Second

	// maxBodySize is the maximum size of a response body in bytes. The API ends a page before it has more than
	// 8 MiB in the database.
	maxBodySize = 64 << 20

	// orderByID is the default order of lists.
	orderByID = "id asc"
)

// Client calls the fleet API. It is safe for concurrent use.
type Client struct {
	options   Options
	timeout   time.Duration
	tokenFile string
	base      *url.URL
	// api sends the requests to the fleet API, and others those to other servers.
	api, others *http.Client
	// random returns numbers in [0,1) for the jitter.
	random func() float64
}

// Options configure New. The zero value is valid.
type Options struct {
	// Calls, if it is not nil, counts and times each attempt under the system "hyperfleet-api", and attempts of a Call to
	// another server under "api_call".
	Calls *metrics.CallMetrics
	// Transport sends the requests. Default: a transport that trusts the API's CA.
	Transport http.RoundTripper
	// Headers are sent with each request to the API, for example those that name a tenant.
	Headers map[string]string
	// UserAgent names the program. Default: hyperfleet.
	UserAgent string
	// Policy is the policy of Call. Default: one attempt.
	Policy Policy
	// Version is the version of the API for relative URLs of a Call. Default: v1.
	Version string
	// Clock times the delays between attempts. Default: the real clock.
	Clock clock.Clock
}

// New returns a client for a configuration, which it validates. It sends no request.
func New(conf platform.APIClient, options Options) (*Client, error) {
	base, ok := ParseBaseURL(conf.BaseURL)
	if !ok {
		return nil, errors.New("clients.hyperfleet_api.base_url: write http(s)://HOST:PORT, and put the token into a file")
	}

	base.Path = cmp.Or(base.Path, "/") // JoinPath would omit the slash
	options.Clock = cmp.Or[clock.Clock](options.Clock, clock.RealClock{})
	options.UserAgent = cmp.Or(options.UserAgent, "hyperfleet")
	options.Version = cmp.Or(options.Version, "v1")

	c := &Client{
		options: options, base: base, tokenFile: conf.TokenFile, random: rand.Float64,
		timeout: cmp.Or(max(conf.Timeout, 0), DefaultTimeout),
	}

	err := c.newHTTPClients(conf.CAFile)

	return c, err
}

// ParseBaseURL parses the base URL of a fleet API: an http or https URL without user, query or
// fragment. It returns false if the text is not such a URL. It returns no error, because the text
// can contain a password.
func ParseBaseURL(text string) (base *url.URL, ok bool) {
	base, err := url.Parse(text)

	return base, err == nil && (base.Scheme == "http" || base.Scheme == "https") && base.Host != "" && base.User == nil &&
		base.RawQuery == "" && base.Fragment == ""
}

// Get returns one resource of any kind. It returns ErrNotFound if there is none.
func (c *Client) Get(ctx context.Context, id string) (*openapi.Resource, error) {
	return callJSON[openapi.Resource](ctx, c, request{
		description: "get resource " + id, method: http.MethodGet, path: []string{"resources", id},
	})
}

// ListOptions select the resources of a list and its page.
type ListOptions struct {
	// Page is the number of the page, counted from 1. Default: 1.
	Page int
	// Size is the size of a page, at most MaxPageSize. Default: MaxPageSize.
	Size int
	// Order is the order of the resources, for example "created_time desc". Default: "id asc".
	Order string
	// Search is a condition in the API's search language.
	Search string
	// Fields are the fields to return, separated by commas. Default: all fields.
	Fields string
}

// List returns one page of a collection: the collection of a kind ("clusters"), or "resources". The API ends a
// page early if its resources are large. With the default order, List then reads the rest of the page as well.
// It continues after the last ID instead of at an offset, so that it misses no resource if others are deleted.
func (c *Client) List(ctx context.Context, plural string, options ListOptions) (*openapi.ResourceList, error) {
	if options.Size <= 0 || options.Size > MaxPageSize {
		options.Size = MaxPageSize
	}

	options.Page = max(options.Page, 1)
	options.Order = cmp.Or(options.Order, orderByID)

	list, err := c.listOnce(ctx, plural, options)
	if err != nil || options.Order != orderByID {
		return list, err
	}

	rest := options
	rest.Page = 1

	for last := list; last.NextOffset > 0 && len(last.Items) > 0 && len(list.Items) < options.Size; {
		rest.Size = options.Size - len(list.Items)
		rest.Search = "id > '" + last.Items[len(last.Items)-1].Id + "'"

		if options.Search != "" {
			rest.Search += " and (" + options.Search + ")"
		}

		if last, err = c.listOnce(ctx, plural, rest); err != nil {
			return nil, err
		}

		list.Items = append(list.Items, last.Items...)
		list.Size = len(list.Items)
	}

	return list, nil
}

func (c *Client) listOnce(ctx context.Context, plural string, options ListOptions) (*openapi.ResourceList, error) {
	query := url.Values{
		"page": {strconv.Itoa(options.Page)}, "size": {strconv.Itoa(options.Size)}, "order": {options.Order},
	}
	setNonEmpty(query, "search", options.Search)
	setNonEmpty(query, "fields", options.Fields)

	return callJSON[openapi.ResourceList](ctx, c, request{
		description: "list " + plural, method: http.MethodGet, path: []string{plural}, query: query,
	})
}

// Changes returns at most 500 changes after the cursor to resources of the kind, or of all kinds if
// kind is empty. If there is no change, the API waits for one for up to wait, rounded down to whole
// seconds. If the cursor is empty, the API responds immediately with the current cursor. Changes
// returns ErrCursorGone if the API no longer has the changes after the cursor. The caller then has
// to list the resources and start from a new cursor.
func (c *Client) Changes(ctx context.Context, after, kind string, wait time.Duration) (*openapi.ChangeList, error) {
	seconds := int(min(max(wait, 0), MaxWait) / time.Second)

	query := url.Values{"wait": {strconv.Itoa(seconds)}}
	setNonEmpty(query, "after", after)
	setNonEmpty(query, "kind", kind)

	return callJSON[openapi.ChangeList](ctx, c, request{
		description: "read changes", method: http.MethodGet, path: []string{"changes"}, query: query,
		wait: time.Duration(seconds) * time.Second,
	})
}

// PutStatus reports a status as an adapter. It returns false if the API discarded the report
// because the report had nothing new, and ErrNotFound if the resource does not exist.
func (c *Client) PutStatus(ctx context.Context, id string, report openapi.StatusReport) (isStored bool, err error) {
	put := request{
		description: "put status of " + id, method: http.MethodPut, path: []string{"resources", id, "statuses"}, body: report,
	}

	response, err := c.sendRequest(ctx, put)

	switch {
	case err != nil:
		return false, err
	case response.Status == http.StatusCreated:
		return true, nil
	case response.Status == http.StatusNoContent:
		return false, nil
	default:
		return false, newError(put.description, response)
	}
}

// PutLease acquires or renews a lease for ttl, in whole seconds and at most 300. If ttl is 0, it
// releases the lease. The caller has the lease if the result names its holder.
func (c *Client) PutLease(ctx context.Context, name, holder string, ttl time.Duration) (*openapi.Lease, error) {
	return callJSON[openapi.Lease](ctx, c, request{
		description: "put lease " + name, method: http.MethodPut, path: []string{"leases", name},
		body: openapi.LeaseRequest{Holder: holder, TtlSeconds: int(ttl / time.Second)},
	})
}

func setNonEmpty(query url.Values, name, value string) {
	if value != "" {
		query.Set(name, value)
	}
}

type request struct {
	// description is the prefix of errors, for example "get resource ID".
	description, method string
	// path has the route's segments below BasePath, not escaped.
	path  []string
	query url.Values
	// body is sent as JSON. Nil means no body.
	body any
	// wait is the time for which the API lets the request wait.
	wait time.Duration
}

// callJSON sends a request and decodes the response, which has to be a success with a T as JSON.
func callJSON[T any](ctx context.Context, c *Client, req request) (*T, error) {
	response, err := c.sendRequest(ctx, req)
	if err != nil {
		return nil, err
	}

	if response.Status != http.StatusOK {
		return nil, newError(req.description, response)
	}

	contentType := response.header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(contentType); err != nil || media != "application/json" {
		return nil, fmt.Errorf("%s: %w: status %d with content type %q: check that base_url is the fleet API",
			req.description, errNotFleetAPI, response.Status, sanitizeText(contentType))
	}

	var result T
	if err := exactjson.Unmarshal(response.Body, &result); err != nil {
		return nil, fmt.Errorf("%s: decode the response: %w: %w", req.description, errNotFleetAPI, err)
	}

	return &result, nil
}

// sendRequest sends a request to a route of the API, with retries.
func (c *Client) sendRequest(ctx context.Context, req request) (*Response, error) {
	var path strings.Builder

	path.WriteString(strings.TrimSuffix(c.base.String(), "/") + BasePath)

	for _, segment := range req.path {
		path.WriteString("/" + url.PathEscape(segment))
	}

	target, err := url.Parse(path.String())
	if err != nil {
		return nil, fmt.Errorf("%s: create the request: %w", req.description, err)
	}

	target.RawQuery = req.query.Encode()
	out := &exchange{
		description: req.description, method: req.method, target: target,
		timeout: c.timeout + req.wait, policy: ownPolicy(), maxBody: maxBodySize,
	}

	if req.body != nil {
		data, err := json.Marshal(req.body)
		if err != nil {
			return nil, fmt.Errorf("%s: encode the body: %w", req.description, err)
		}

		out.body = string(data)
	}

	return c.send(ctx, out)
}
