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
	"strings"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Responses are the answers of the API, as the file of --api-responses has them. Answers
// are matched in the order of the file.
type Responses struct {
	Responses []Response `yaml:"responses"`
}

// Response is what a call that matches is answered with.
type Response struct {
	Match Match `yaml:"match"`
	// Responses are given one after the other; the last one again and again.
	Responses []Answer `yaml:"responses"`

	pattern *regexp.Regexp
	given   int
}

// Match is met by calls with the method (empty: any) whose path, with its query, the
// regular expression describes as a whole.
type Match struct {
	Method     string `yaml:"method"`
	URLPattern string `yaml:"urlPattern"`
}

// Answer is one answer.
type Answer struct {
	StatusCode int               `yaml:"statusCode"`
	Headers    map[string]string `yaml:"headers"`
	// Body is sent as JSON, a text as it is.
	Body any `yaml:"body"`
}

// Call is a call that was made.
type Call struct {
	Method string `json:"method"`
	URL    string `json:"url"`
	// Body that was sent.
	Body string `json:"body,omitempty"`
	// Status of the answer; 0 if the file has none.
	Status int `json:"status"`
}

// api is an http.RoundTripper that answers out of a file.
type api struct {
	rules []Response

	// host is the fleet API's; calls of others are matched by their whole URL.
	host string
	// id, kind and generation are of the event's resource.
	id, kind   string
	generation int32

	calls []Call
	// gone says that the resource was answered for as missing.
	gone bool
}

// newAPI reads the file, and compiles its patterns. Base is where the fleet API is.
func newAPI(data []byte, base string, event cloudevents.Event) (*api, error) {
	var (
		out       = api{calls: []Call{}}
		responses Responses
		about     struct {
			ID         string `json:"id"`
			Kind       string `json:"kind"`
			Generation int32  `json:"generation"`
		}
	)

	_ = json.Unmarshal(event.Data(), &about) // the pipeline says what is wrong with it
	out.id, out.kind, out.generation = about.ID, about.Kind, about.Generation

	if parsed, err := url.Parse(base); err == nil {
		out.host = parsed.Host
	}

	if err := strictyaml.Decode("responses", data, &responses); err != nil {
		return nil, fmt.Errorf("read API responses: %w", err)
	}

	var errs []error

	for i, response := range responses.Responses {
		pattern, err := regexp.Compile("^(?:" + response.Match.URLPattern + ")$")

		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("responses[%d].match.urlPattern: %w", i, err))
		case response.Match.URLPattern == "":
			errs = append(errs, fmt.Errorf(
				"responses[%d].match.urlPattern: say which calls it is for, for example /api/hyperfleet/v1/clusters/.*", i))
		case len(response.Responses) == 0:
			errs = append(errs, fmt.Errorf("responses[%d].responses: it needs at least one", i))
		}

		for j, answer := range response.Responses {
			if answer.StatusCode < 100 || answer.StatusCode > 599 {
				errs = append(errs, fmt.Errorf("responses[%d].responses[%d].statusCode: %d is no HTTP status", i, j, answer.StatusCode))
			}
		}

		response.pattern = pattern
		out.rules = append(out.rules, response)
	}

	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("read API responses: %w", err)
	}

	return &out, nil
}

// RoundTrip answers with the next answer of the first rule that matches. A report of a
// status that no rule is for is taken.
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

	answer, ok := a.answer(call)
	if !ok {
		a.note(call)

		return nil, fmt.Errorf("the file of API responses has none for %s %s", call.Method, call.URL)
	}

	path, _, _ := strings.Cut(call.URL, "?")
	if answer.StatusCode == http.StatusNotFound && strings.HasSuffix(path, "/"+a.id) {
		a.gone = a.gone || strings.Contains(fmt.Sprint(answer.Body), "HYPERFLEET-NTF-001")
	}

	call.Status = answer.StatusCode
	a.calls = append(a.calls, call)

	return answer.response(r)
}

// note keeps a call without an answer once, however often it is tried.
func (a *api) note(call Call) {
	if n := len(a.calls); n > 0 && a.calls[n-1] == call {
		return
	}

	a.calls = append(a.calls, call)
}

func (a *api) answer(call Call) (Answer, bool) {
	for i := range a.rules {
		rule := &a.rules[i]
		if method := rule.Match.Method; method != "" && !strings.EqualFold(method, call.Method) || !rule.pattern.MatchString(call.URL) {
			continue
		}

		at := min(rule.given, len(rule.Responses)-1)
		rule.given++

		return rule.Responses[at], true
	}

	return a.usual(call)
}

// usual is what the API answers if the file does not say: it takes reports, and has the
// event's resource in the event's generation.
func (a *api) usual(call Call) (Answer, bool) {
	switch {
	case call.Method == http.MethodPut && strings.HasSuffix(call.URL, "/statuses"):
		return Answer{StatusCode: http.StatusCreated, Body: call.Body}, true
	case call.Method != http.MethodGet || call.URL != "/api/hyperfleet/v1/resources/"+a.id:
		return Answer{}, false
	case a.gone:
		return Answer{StatusCode: http.StatusNotFound, Body: map[string]any{
			"type": "about:blank", "title": "no such resource", "status": http.StatusNotFound, "code": "HYPERFLEET-NTF-001",
		}}, true
	default:
		return Answer{StatusCode: http.StatusOK, Body: map[string]any{
			"id": a.id, "kind": a.kind, "name": a.id, "href": call.URL, "spec": map[string]any{}, "generation": a.generation,
			"created_time": "1970-01-01T00:00:00Z", "updated_time": "1970-01-01T00:00:00Z",
			"status": map[string]any{"conditions": []any{}},
		}}, true
	}
}

func (a *Answer) response(r *http.Request) (*http.Response, error) {
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
			return nil, fmt.Errorf("write the body of the answer: %w", err)
		}
	}

	return &http.Response{
		StatusCode: a.StatusCode, Header: header, Request: r,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}, nil
}
