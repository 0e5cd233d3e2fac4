// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v4"

	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/workload"
)

// The protocol is that of GitHub's own client, https://github.com/actions/scaleset, which
// is not used: it takes no round tripper, so that its calls could neither be counted nor
// kept to the configured hosts, derives addresses from that of the repository alone,
// acknowledges messages before they are handled, and puts answers into error texts.
const (
	registrationPath  = "/actions/runner-registration"
	groupsPath        = "_apis/runtime/runnergroups/"
	scaleSetsPath     = "_apis/runtime/runnerscalesets"
	serviceAPIVersion = "6.0-preview"
	// capacityHeader is written X-ScaleSetMaxCapacity elsewhere: case does not matter.
	capacityHeader = "X-Scalesetmaxcapacity"

	// holdTime is how long the service holds a poll for which it has nothing, and some.
	holdTime = time.Minute
	// tokenMargin before its end an administrator's token is renewed.
	tokenMargin = time.Minute
	// opaqueLife is assumed of a token that does not tell when it ends.
	opaqueLife = 10 * time.Minute
	groupAge   = 10 * time.Minute
	maxService = 8 << 20
)

// service makes the calls to the Actions service, which knows runner scale sets.
type service struct {
	*provider

	http *http.Client

	mu      sync.Mutex
	base    *url.URL
	token   string
	expires time.Time

	groupID int64
	groupAt time.Time
}

func newService(p *provider, config Config) *service {
	next := config.network()
	if config.Transport != nil {
		next = config.Transport(next)
	}

	return &service{provider: p, http: &http.Client{
		Transport: retry.Transport(next, p.clock, mayRepeat),
		// A token goes where GitHub said, and nowhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// refusal is an answer other than the one wanted.
type refusal struct {
	status        int
	kind, message string
	after         time.Duration
}

// Error never holds an address or a whole answer: either may hold a secret.
func (r *refusal) Error() string {
	text := fmt.Sprintf("status %d", r.status)
	if r.kind != "" {
		text += " " + r.kind
	}

	if r.message != "" {
		text += ": " + r.message
	}

	return text
}

// is tells whether it is of the status, or of the kind where one is given.
func (r *refusal) is(status int, kind string) bool {
	return r != nil && (r.status == status && kind == "" || kind != "" && strings.Contains(r.kind, kind))
}

func asRefusal(err error) *refusal {
	out, _ := errors.AsType[*refusal](err)

	return out
}

// explain turns a failed call to the service into what a person or the caller can act upon.
func (s *service) explain(what string, err error) error {
	if known, ok := errors.AsType[*workload.Error](err); ok {
		return known
	}

	refused := asRefusal(err)
	if refused == nil {
		return fmt.Errorf("%s at GitHub's Actions service: %w", what, s.redact.Cause(err))
	}

	said := s.said(refused.message)

	switch refused.status {
	case http.StatusTooManyRequests:
		return &workload.Error{
			Kind: workload.RateLimited, Reason: ReasonRateLimited, After: max(refused.after, time.Second),
			Message: what + " waits: GitHub's Actions service is asked too often",
		}
	case http.StatusUnauthorized, http.StatusForbidden:
		return workload.Reject(ReasonPermission, fmt.Sprintf("%s of %s is not permitted by GitHub's Actions service%s: grant %s",
			what, s.urls.scope, said, s.urls.scope.needs()))
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return workload.Reject(ReasonScaleSet,
			fmt.Sprintf("%s of %s was refused by GitHub's Actions service%s", what, s.urls.scope, said))
	default:
		return fmt.Errorf("%s at GitHub's Actions service: status %d %s%s", what, refused.status, refused.kind, said)
	}
}

// connect gives the service's address and a token for it, and asks GitHub for both when the
// token is about to end.
func (s *service) connect(ctx context.Context) (*url.URL, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.token != "" && s.clock.Now().Add(tokenMargin).Before(s.expires) {
		return s.base, s.token, nil
	}

	given, err := s.registrationToken(ctx)
	if err != nil {
		return nil, "", err
	}

	var said struct {
		URL   string `json:"url"`
		Token string `json:"token"`
	}

	asked := map[string]string{"url": s.urls.runner, "runner_event": "register"}

	err = s.patiently(ctx, func() error {
		return s.send(ctx, call{
			method: http.MethodPost, url: s.urls.api + registrationPath, auth: "RemoteAuth " + given.GetToken(),
			body: asked, out: &said, limit: s.timeout,
		})
	})
	if err != nil {
		return nil, "", s.explain("registering", err)
	}

	base, err := s.serviceURL("url", said.URL)
	if err != nil || said.Token == "" {
		return nil, "", cmpErr(err, errNoCredential)
	}

	s.base, s.token, s.expires = base, said.Token, s.clock.Now().Add(opaqueLife)

	var claims jwt.RegisteredClaims
	if _, _, err := jwt.NewParser().ParseUnverified(said.Token, &claims); err == nil && claims.ExpiresAt != nil {
		s.expires = claims.ExpiresAt.Time
	}

	return s.base, s.token, nil
}

// patience bounds the tries of a call with a new token.
const patience = 3

// patiently repeats a call that is refused: a new token is not known everywhere at once.
func (s *service) patiently(ctx context.Context, do func() error) error {
	for try := 1; ; try++ {
		err := do()

		refused := asRefusal(err)
		if try == patience || !refused.is(http.StatusUnauthorized, "") && !refused.is(http.StatusForbidden, "") {
			return err
		}

		if err := retry.Pause(ctx, s.clock, time.Duration(try)*time.Second); err != nil {
			return err
		}
	}
}

func cmpErr(err, otherwise error) error {
	if err != nil {
		return err
	}

	return otherwise
}

// disown forgets a token that was refused.
func (s *service) disown(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.token == token {
		s.token = ""
	}
}

// serviceURL reads an address that GitHub gave. A token is sent there, so it must be as
// well protected as GitHub's own.
func (s *service) serviceURL(what, text string) (*url.URL, error) {
	out, err := url.Parse(text)
	if err != nil || out.Host == "" || out.User != nil ||
		out.Scheme != "https" && (!httpbound.Safe(out) || strings.HasPrefix(s.urls.api, "https:")) {
		return nil, fmt.Errorf("read GitHub's answer: %s is not the address of a service", what)
	}

	return out, nil
}

// call is one request.
type call struct {
	method, url, auth string
	header            http.Header
	body, out         any
	limit             time.Duration
}

// send makes a call and reads its answer into out. Status 202 leaves out alone.
func (s *service) send(ctx context.Context, c call) error {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()

	var body io.Reader

	if c.body != nil {
		text, err := json.Marshal(c.body)
		if err != nil {
			return fmt.Errorf("write request: %w", err)
		}

		body = bytes.NewReader(text)
	}

	req, err := http.NewRequestWithContext(ctx, c.method, c.url, body)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}

	maps.Copy(req.Header, c.header)

	req.Header.Set("Authorization", c.auth)
	req.Header.Set("User-Agent", userAgent)

	if c.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}

	resp, err := s.http.Do(req)
	if err != nil {
		return s.bare(err, c.auth)
	}

	defer func() { _ = resp.Body.Close() }()

	text, err := io.ReadAll(io.LimitReader(resp.Body, maxService))
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}

	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))

	switch {
	case resp.StatusCode >= http.StatusMultipleChoices:
		return readRefusal(resp, text)
	case resp.StatusCode == http.StatusAccepted, resp.StatusCode == http.StatusNoContent, c.out == nil:
		return nil
	}

	if err := json.Unmarshal(text, c.out); err != nil {
		return fmt.Errorf("read answer: it is not the JSON that was asked for (%d bytes)", len(text))
	}

	return nil
}

// bare takes the address and the credential off an error of the HTTP client.
func (s *service) bare(err error, auth string) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}

	_, token, _ := strings.Cut(auth, " ")

	return s.redact.Cause(err, token)
}

func readRefusal(resp *http.Response, text []byte) error {
	out := &refusal{status: resp.StatusCode}

	var said struct {
		TypeName string `json:"typeName"`
		Message  string `json:"message"`
	}
	if json.Unmarshal(text, &said) == nil {
		kind, _, _ := strings.Cut(said.TypeName, ",")
		out.kind, out.message = kind[strings.LastIndex(kind, ".")+1:], said.Message
	}

	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		out.after = time.Duration(seconds) * time.Second
	}

	return out
}

// ask makes a call with an administrator's token. One that is refused is renewed once: such
// a call did nothing.
func (s *service) ask(ctx context.Context, method, path string, query url.Values, body, out any) error {
	for try := 1; ; try++ {
		base, token, err := s.connect(ctx)
		if err != nil {
			return err
		}

		err = s.send(ctx, call{
			method: method, url: address(base, path, query), auth: "Bearer " + token, body: body, out: out, limit: s.timeout,
		})
		if try > 1 || !asRefusal(err).is(http.StatusUnauthorized, "") {
			return err
		}

		s.disown(token)
	}
}

func address(base *url.URL, path string, query url.Values) string {
	out := base.JoinPath(path)

	all := url.Values{"api-version": {serviceAPIVersion}}
	maps.Copy(all, query)

	out.RawQuery = all.Encode()

	return out.String()
}

type setLabel struct {
	Type string `json:"type"`
	Name string `json:"name"`
}

// scaleSet is a runner scale set as the service describes it.
type scaleSet struct {
	ID      int64          `json:"id,omitempty"`
	Name    string         `json:"name"`
	GroupID int64          `json:"runnerGroupId"`
	Labels  []setLabel     `json:"labels"`
	Setting *runnerSetting `json:"RunnerSetting,omitempty"`
}

type runnerSetting struct {
	Ephemeral     bool `json:"ephemeral"`
	DisableUpdate bool `json:"disableUpdate"`
}

// group gives the id that the service has for a runner group.
func (s *service) group(ctx context.Context, name string) (int64, error) {
	if key := strings.ToLower(strings.TrimSpace(name)); key == "" || key == defaultGroupName {
		return defaultGroup, nil
	}

	s.mu.Lock()
	id, fresh := s.groupID, s.clock.Since(s.groupAt) < groupAge
	s.mu.Unlock()

	if id > 0 && fresh {
		return id, nil
	}

	var found struct {
		Value []struct {
			ID   int64  `json:"id"`
			Name string `json:"name"`
		} `json:"value"`
	}
	if err := s.ask(ctx, http.MethodGet, groupsPath, url.Values{"groupName": {name}}, nil, &found); err != nil {
		return 0, s.explain("looking for runner group "+name, err)
	}

	for _, group := range found.Value {
		if !strings.EqualFold(group.Name, name) {
			continue
		}

		s.mu.Lock()
		s.groupID, s.groupAt = group.ID, s.clock.Now()
		s.mu.Unlock()

		return group.ID, nil
	}

	return 0, workload.Reject(ReasonGroup, fmt.Sprintf(
		"%s has no runner group %q for scale sets: make it at GitHub or change runnerGroup", s.urls.scope, name))
}

// ensure finds the set of that name in a group, or makes it; and sees to it that jobs can
// ask for it by its name. Labels that others gave it stay.
func (s *service) ensure(ctx context.Context, group int64, name string) (scaleSet, error) {
	set, found, err := s.find(ctx, group, name)
	if err != nil {
		return scaleSet{}, err
	}

	own := setLabel{Type: "System", Name: name}

	if !found {
		made, err := s.create(ctx, scaleSet{
			Name: name, GroupID: group, Labels: []setLabel{own}, Setting: &runnerSetting{Ephemeral: true, DisableUpdate: true},
		})
		if !asRefusal(err).is(http.StatusBadRequest, "RunnerScaleSetExistsException") {
			return made, s.checked(made, err)
		}

		if set, found, err = s.find(ctx, group, name); err != nil || !found {
			return scaleSet{}, cmpErr(err, fmt.Errorf("make scale set %s: GitHub says that it exists, and does not list it", name))
		}
	}

	if slices.ContainsFunc(set.Labels, func(l setLabel) bool { return strings.EqualFold(l.Name, name) }) {
		return set, s.checked(set, nil)
	}

	labels := []setLabel{own}
	for _, l := range set.Labels {
		labels = append(labels, setLabel{Type: "System", Name: l.Name})
	}

	var updated scaleSet

	err = s.ask(ctx, http.MethodPatch, setPath(set.ID), nil, scaleSet{Name: set.Name, GroupID: group, Labels: labels}, &updated)

	return updated, s.checked(updated, err)
}

func (s *service) checked(set scaleSet, err error) error {
	switch {
	case err != nil:
		return s.explain("making the scale set", err)
	case set.ID <= 0:
		return fmt.Errorf("make scale set %s: GitHub's answer has no id", set.Name)
	default:
		return nil
	}
}

func setPath(id int64, more ...string) string {
	return strings.Join(append([]string{scaleSetsPath, strconv.FormatInt(id, 10)}, more...), "/")
}

func (s *service) find(ctx context.Context, group int64, name string) (scaleSet, bool, error) {
	var found struct {
		Value []scaleSet `json:"value"`
	}

	query := url.Values{"runnerGroupId": {strconv.FormatInt(group, 10)}, "name": {name}}
	if err := s.ask(ctx, http.MethodGet, scaleSetsPath, query, nil, &found); err != nil {
		return scaleSet{}, false, s.explain("looking for scale set "+name, err)
	}

	for _, set := range found.Value {
		if strings.EqualFold(set.Name, name) {
			return set, true, nil
		}
	}

	return scaleSet{}, false, nil
}

func (s *service) create(ctx context.Context, set scaleSet) (scaleSet, error) {
	var made scaleSet

	err := s.ask(ctx, http.MethodPost, scaleSetsPath, nil, set, &made)

	return made, err
}

type jitConfiguration struct {
	Runner struct {
		ID int64 `json:"id"`
	} `json:"runner"`
	Encoded string `json:"encodedJITConfig"`
}

// configure makes the configuration of one runner of a set.
func (s *service) configure(ctx context.Context, set int64, req workload.RunnerRequest) (workload.Credential, error) {
	asked := map[string]string{"name": req.Name, "workFolder": defaultWorkDir}
	if req.WorkDir != "" {
		asked["workFolder"] = req.WorkDir
	}

	var made jitConfiguration
	if err := s.ask(ctx, http.MethodPost, setPath(set, "generatejitconfig"), nil, asked, &made); err != nil {
		return workload.Credential{}, err
	}

	if made.Encoded == "" {
		return workload.Credential{}, errNoCredential
	}

	return credential(made), nil
}
