// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dryrun

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

// Responses is the content of the --api-responses file. Rules are tried in the order of the file. The first
// rule whose pattern matches the whole path applies. If there is none, the first rule whose pattern matches a
// part of the path applies, as in upstream's files.
type Responses struct {
	Responses []Rule `yaml:"responses"`
}

// Rule defines the responses to matching calls.
type Rule struct {
	Match Match `yaml:"match"`
	// Responses are returned one after the other. The last response is repeated.
	Responses []CannedResponse `yaml:"responses"`

	// whole matches the whole path, and part a part of it.
	whole, part *regexp.Regexp
	used        int
}

// Match matches calls by method and URL. An empty method matches all methods. URLPattern is a regular
// expression for the path with the query, or for the whole URL if the call is not to the fleet API.
type Match struct {
	Method     string `yaml:"method"`
	URLPattern string `yaml:"urlPattern"`
}

// CannedResponse is one response of a rule.
type CannedResponse struct {
	StatusCode int               `yaml:"statusCode"`
	Headers    map[string]string `yaml:"headers"`
	// Body is returned as JSON. A string is returned unchanged.
	Body any `yaml:"body"`
}

// Call records a call of the event.
type Call struct {
	Method string `json:"method"`
	URL    string `json:"url"`
	// Body is the body of the request.
	Body string `json:"body,omitempty"`
	// Status is the status of the response. It is 0 if the file has no response for the call.
	Status int `json:"status"`
}

// api is an http.RoundTripper that returns the responses of a file.
type api struct {
	rules []Rule

	// host is the host of the fleet API. Calls to other hosts are matched by their whole URL.
	host string
	// id, kind and generation belong to the event's resource.
	id, kind   string
	generation int32

	calls []Call
	// gone is true if a response has stated that the event's resource does not exist.
	gone bool
}

// newAPI decodes the file and compiles its patterns. Base is the base URL of the fleet API.
func newAPI(data []byte, base string, event cloudevents.Event) (*api, error) {
	var (
		out       = api{calls: []Call{}}
		responses Responses
		resource  struct {
			ID         string `json:"id"`
			Kind       string `json:"kind"`
			Generation int32  `json:"generation"`
		}
	)

	_ = json.Unmarshal(event.Data(), &resource) // the pipeline reports invalid data
	out.id, out.kind, out.generation = resource.ID, resource.Kind, resource.Generation

	if parsed, err := url.Parse(base); err == nil {
		out.host = parsed.Host
	}

	if err := strictyaml.Decode("responses", data, &responses); err != nil {
		return nil, fmt.Errorf("read API responses: %w", err)
	}

	var errs []error

	for i, response := range responses.Responses {
		part, err := regexp.Compile(response.Match.URLPattern)

		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("responses[%d].match.urlPattern: %w", i, err))
		case response.Match.URLPattern == "":
			errs = append(errs, fmt.Errorf(
				"responses[%d].match.urlPattern: set a pattern, for example /api/hyperfleet/v1/clusters/.*", i))
		case len(response.Responses) == 0:
			errs = append(errs, fmt.Errorf("responses[%d].responses: want at least one response", i))
		}

		for j, answer := range response.Responses {
			if answer.StatusCode < 100 || answer.StatusCode > 599 {
				errs = append(errs, fmt.Errorf("responses[%d].responses[%d].statusCode: %d is not an HTTP status", i, j, answer.StatusCode))
			}
		}

		if err == nil {
			response.part, response.whole = part, regexp.MustCompile("^(?:"+response.Match.URLPattern+")$")
		}

		out.rules = append(out.rules, response)
	}

	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("read API responses: %w", err)
	}

	return &out, nil
}

// RoundTrip returns the next response of the first matching rule. Without a matching rule, it accepts status
// reports and returns the event's resource. For any other call it returns an error.
func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	call := Call{Method: r.Method, URL: r.URL.RequestURI()}
	if r.URL.Host != a.host {
		call.URL = r.URL.String()
	}

	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		_ = r.Body.Close()

		if err != nil {
			return nil, err
		}

		call.Body = string(body)
	}

	response, ok := a.findResponse(call)
	if !ok {
		a.recordUnanswered(call)

		return nil, fmt.Errorf("the API responses file has no response for %s %s", call.Method, call.URL)
	}

	path, _, _ := strings.Cut(call.URL, "?")
	if response.StatusCode == http.StatusNotFound && strings.HasSuffix(path, "/"+a.id) {
		a.gone = a.gone || isNoResource(response.Body)
	}

	call.Status = response.StatusCode
	a.calls = append(a.calls, call)

	return response.newHTTPResponse(r)
}

// isNoResource returns true if a body has an error code of the fleet API for a missing resource.
func isNoResource(body any) bool {
	words := strings.FieldsFunc(fmt.Sprint(body), func(r rune) bool {
		return r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})

	return slices.ContainsFunc(words, client.IsNoResource)
}

// recordUnanswered records a call without a response. It records several attempts of the call only once.
func (a *api) recordUnanswered(call Call) {
	if n := len(a.calls); n > 0 && a.calls[n-1] == call {
		return
	}

	a.calls = append(a.calls, call)
}

func (a *api) findResponse(call Call) (CannedResponse, bool) {
	for _, isWhole := range []bool{true, false} {
		for i := range a.rules {
			rule := &a.rules[i]

			pattern := rule.part
			if isWhole {
				pattern = rule.whole
			}

			if method := rule.Match.Method; method != "" && !strings.EqualFold(method, call.Method) || !pattern.MatchString(call.URL) {
				continue
			}

			i := min(rule.used, len(rule.Responses)-1)
			rule.used++

			return rule.Responses[i], true
		}
	}

	return a.defaultResponse(call)
}

// defaultResponse returns the response to a call without a matching rule. It accepts status reports, and
// returns the event's resource with the event's generation.
func (a *api) defaultResponse(call Call) (CannedResponse, bool) {
	switch {
	case call.Method == http.MethodPut && strings.HasSuffix(call.URL, "/statuses"):
		return CannedResponse{StatusCode: http.StatusCreated, Body: call.Body}, true
	case call.Method != http.MethodGet || call.URL != "/api/hyperfleet/v1/resources/"+a.id:
		return CannedResponse{}, false
	case a.gone:
		return CannedResponse{StatusCode: http.StatusNotFound, Body: map[string]any{
			"type": "about:blank", "title": "no such resource", "status": http.StatusNotFound, "code": "HYPERFLEET-NTF-001",
		}}, true
	default:
		return CannedResponse{StatusCode: http.StatusOK, Body: map[string]any{
			"id": a.id, "kind": a.kind, "name": a.id, "href": call.URL, "spec": map[string]any{}, "generation": a.generation,
			"created_time": "1970-01-01T00:00:00Z", "updated_time": "1970-01-01T00:00:00Z",
			"status": map[string]any{"conditions": []any{}},
		}}, true
	}
}

// newHTTPResponse returns the canned response as an HTTP response. It writes a text body unchanged and
// encodes any other body as JSON.
func (a *CannedResponse) newHTTPResponse(r *http.Request) (*http.Response, error) {
	header := http.Header{"Content-Type": {"application/json"}}
	if a.StatusCode >= http.StatusBadRequest {
		header.Set("Content-Type", "application/problem+json")
	}

	for name, value := range a.Headers {
		header.Set(name, value)
	}

	text, isText := a.Body.(string)
	body := []byte(text)

	if !isText && a.Body != nil {
		var err error
		if body, err = json.Marshal(a.Body); err != nil {
			return nil, fmt.Errorf("encode response body: %w", err)
		}
	}

	return &http.Response{
		StatusCode: a.StatusCode, Header: header, Request: r,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}, nil
}
