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

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/workload"
)

// The protocol is the same as in GitHub's own client, https://github.com/actions/scaleset. This package
// does not use that client because it accepts no round tripper, so its calls could not be counted
// or restricted to the configured hosts. It also derives addresses only from the repository's
// address, acknowledges messages before they are handled, and puts responses into error texts.
const (
	registrationPath  = "/actions/runner-registration"
	groupsPath        = "_apis/runtime/runnergroups/"
	scaleSetsPath     = "_apis/runtime/runnerscalesets"
	serviceAPIVersion = "6.0-preview"
	// capacityHeader is X-ScaleSetMaxCapacity in GitHub's client. Header names are case-insensitive.
	capacityHeader = "X-Scalesetmaxcapacity"

	// pollHoldTime is a little longer than the service holds a poll while there is no message.
	pollHoldTime = time.Minute
	// tokenMargin is how long before its expiry an administrator's token is renewed.
	tokenMargin = time.Minute
	// defaultTokenLifetime is assumed for a token that does not contain its expiry.
	defaultTokenLifetime = 10 * time.Minute
	maxGroupAge          = 10 * time.Minute
	maxServiceBytes      = 8 << 20
)

// serviceClient makes the calls to the Actions service, which manages runner scale sets.
type serviceClient struct {
	*provider

	http *http.Client

	mu sync.Mutex
	// base is the address of the service. token is an administrator's token for it, valid until expires.
	base    *url.URL
	token   string
	expires time.Time
	// groupID is the id of the provider's runner group, read at groupAt.
	groupID int64
	groupAt time.Time
}

func newService(p *provider, config Config) *serviceClient {
	next := config.networkTransport()
	if config.WrapTransport != nil {
		next = config.WrapTransport(next)
	}

	return &serviceClient{provider: p, http: &http.Client{
		Transport: retry.NewTransport(next, p.clock, isRepeatable),
		// Redirects are not followed, so that a token reaches only the URL that GitHub returned.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// serviceError is a response with an error status.
type serviceError struct {
	status        int
	kind, message string
	retryAfter    time.Duration
}

// Error returns the status, the kind and the message. It contains no address and no complete
// response, because both can contain secrets.
func (r *serviceError) Error() string {
	text := fmt.Sprintf("status %d", r.status)
	if r.kind != "" {
		text += " " + r.kind
	}

	if r.message != "" {
		text += ": " + r.message
	}

	return text
}

// hasStatus reports whether the response has the status. It returns false for nil.
func (r *serviceError) hasStatus(status int) bool { return r != nil && r.status == status }

// hasKind reports whether the response names the kind of error. It returns false for nil.
func (r *serviceError) hasKind(kind string) bool { return r != nil && strings.Contains(r.kind, kind) }

func asServiceError(err error) *serviceError {
	out, _ := errors.AsType[*serviceError](err)

	return out
}

// explain converts the error of a failed call to the service into an error that names the fix, or
// that the caller can handle by its kind.
func (s *serviceClient) explain(action string, err error) error {
	if explained, ok := errors.AsType[*workload.Error](err); ok {
		return explained
	}

	serviceErr := asServiceError(err)
	if serviceErr == nil {
		return fmt.Errorf("%s at GitHub's Actions service: %w", action, s.redactor.RedactError(err))
	}

	quoted := s.quoteMessage(serviceErr.message)

	switch serviceErr.status {
	case http.StatusTooManyRequests:
		return &workload.Error{
			Kind: workload.RateLimited, Reason: ReasonRateLimited, RetryAfter: max(serviceErr.retryAfter, time.Second),
			Message: action + ": the rate limit of GitHub's Actions service is exceeded",
		}
	case http.StatusUnauthorized, http.StatusForbidden:
		return workload.NewRejected(ReasonPermission, fmt.Sprintf("%s of %s: GitHub's Actions service denied permission%s: grant %s",
			action, s.urls.scope, quoted, s.urls.scope.runnersRequirement()))
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return workload.NewRejected(ReasonScaleSet,
			fmt.Sprintf("%s of %s: GitHub's Actions service rejected the request%s", action, s.urls.scope, quoted))
	default:
		return fmt.Errorf("%s at GitHub's Actions service: status %d %s%s", action, serviceErr.status, serviceErr.kind, quoted)
	}
}

// authenticate returns the service's address and a token for it. It requests both from GitHub if
// the token expires within tokenMargin.
func (s *serviceClient) authenticate(ctx context.Context) (address *url.URL, token string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.token != "" && s.clock.Now().Add(tokenMargin).Before(s.expires) {
		return s.base, s.token, nil
	}

	registration, err := s.createRegistrationToken(ctx)
	if err != nil {
		return nil, "", err
	}

	var response struct {
		URL   string `json:"url"`
		Token string `json:"token"`
	}

	requestBody := map[string]string{"url": s.urls.runner, "runner_event": "register"}

	err = s.retryAuth(ctx, func() error {
		return s.send(ctx, serviceCall{
			method: http.MethodPost, url: s.urls.api + registrationPath, auth: "RemoteAuth " + registration.GetToken(),
			body: requestBody, out: &response, timeout: s.timeout,
		})
	})
	if err != nil {
		return nil, "", s.explain("register with the service", err)
	}

	base, err := s.parseServiceURL("url", response.URL)
	if err != nil || response.Token == "" {
		return nil, "", firstError(err, errNoCredential)
	}

	s.base, s.token, s.expires = base, response.Token, s.clock.Now().Add(defaultTokenLifetime)

	var claims jwt.RegisteredClaims
	if _, _, err := jwt.NewParser().ParseUnverified(response.Token, &claims); err == nil && claims.ExpiresAt != nil {
		s.expires = claims.ExpiresAt.Time
	}

	return s.base, s.token, nil
}

// maxAuthAttempts bounds the attempts of a call with a new token.
const maxAuthAttempts = 3

// retryAuth retries a call that fails with status 401 or 403, because GitHub needs some time until
// all its servers accept a new token.
func (s *serviceClient) retryAuth(ctx context.Context, do func() error) error {
	for attempt := 1; ; attempt++ {
		err := do()

		serviceErr := asServiceError(err)
		isRejected := serviceErr.hasStatus(http.StatusUnauthorized) || serviceErr.hasStatus(http.StatusForbidden)

		if !isRejected || attempt == maxAuthAttempts {
			return err
		}

		if err := retry.Sleep(ctx, s.clock, time.Duration(attempt)*time.Second); err != nil {
			return err
		}
	}
}

func firstError(err, fallback error) error {
	if err != nil {
		return err
	}

	return fallback
}

// forgetToken deletes a token that the service rejected.
func (s *serviceClient) forgetToken(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.token == token {
		s.token = ""
	}
}

// parseServiceURL parses an address that GitHub returned. The client sends a token to the address,
// so the address must be as secure as GitHub's API: it must use https, unless the API's URL uses
// http.
func (s *serviceClient) parseServiceURL(field, text string) (*url.URL, error) {
	out, err := url.Parse(text)
	if err != nil || out.Host == "" || out.User != nil ||
		out.Scheme != "https" && (!bounds.IsSecureURL(out) || strings.HasPrefix(s.urls.api, "https:")) {
		return nil, fmt.Errorf("parse GitHub's response: %s is not a valid service URL", field)
	}

	return out, nil
}

// serviceCall is one request.
type serviceCall struct {
	method, url string
	// auth is the value of the header Authorization.
	auth   string
	header http.Header
	// body is sent as JSON, and out receives the response. Both may be nil.
	body, out any
	timeout   time.Duration
}

// send makes a call and decodes its response into out. It does not change out if the status is 202
// or 204.
func (s *serviceClient) send(ctx context.Context, c serviceCall) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()

	var body io.Reader

	if c.body != nil {
		text, err := json.Marshal(c.body)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}

		body = bytes.NewReader(text)
	}

	req, err := http.NewRequestWithContext(ctx, c.method, c.url, body)
	if err != nil {
		return fmt.Errorf("create request: %w", err)
	}

	maps.Copy(req.Header, c.header)

	req.Header.Set("Authorization", c.auth)
	req.Header.Set("User-Agent", userAgent)

	if c.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}

	resp, err := s.http.Do(req)
	if err != nil {
		return s.redactError(err, c.auth)
	}

	defer func() { _ = resp.Body.Close() }()

	text, err := io.ReadAll(io.LimitReader(resp.Body, maxServiceBytes))
	if err != nil {
		return fmt.Errorf("read response: %w", err)
	}

	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")) // the byte order mark of UTF-8

	switch {
	case resp.StatusCode >= http.StatusMultipleChoices:
		return parseServiceError(resp, text)
	case resp.StatusCode == http.StatusAccepted, resp.StatusCode == http.StatusNoContent, c.out == nil:
		return nil
	}

	if err := json.Unmarshal(text, c.out); err != nil {
		return fmt.Errorf("decode response: it is not the expected JSON (%d bytes)", len(text))
	}

	return nil
}

// redactError removes the address and the credential from an error of the HTTP client.
func (s *serviceClient) redactError(err error, auth string) error {
	if urlErr, ok := errors.AsType[*url.Error](err); ok {
		err = urlErr.Err
	}

	_, token, _ := strings.Cut(auth, " ")

	return s.redactor.RedactError(err, token)
}

func parseServiceError(resp *http.Response, text []byte) error {
	out := &serviceError{status: resp.StatusCode}

	var response struct {
		TypeName string `json:"typeName"`
		Message  string `json:"message"`
	}
	if json.Unmarshal(text, &response) == nil {
		kind, _, _ := strings.Cut(response.TypeName, ",")
		out.kind, out.message = kind[strings.LastIndex(kind, ".")+1:], response.Message
	}

	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		out.retryAfter = time.Duration(seconds) * time.Second
	}

	return out
}

// callService makes a call with an administrator's token. If the service rejects the token,
// callService renews it and repeats the call once. This is safe, because a rejected call has no
// effect.
func (s *serviceClient) callService(ctx context.Context, method, path string, query url.Values, body, out any) error {
	for attempt := 1; ; attempt++ {
		base, token, err := s.authenticate(ctx)
		if err != nil {
			return err
		}

		err = s.send(ctx, serviceCall{
			method: method, url: buildURL(base, path, query), auth: "Bearer " + token, body: body, out: out, timeout: s.timeout,
		})
		if attempt > 1 || !asServiceError(err).hasStatus(http.StatusUnauthorized) {
			return err
		}

		s.forgetToken(token)
	}
}

func buildURL(base *url.URL, path string, query url.Values) string {
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

// scaleSet is a runner scale set in the service's API.
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

// resolveGroup returns the service's id of the provider's runner group. Its name never changes, so one id is cached.
func (s *serviceClient) resolveGroup(ctx context.Context, name string) (int64, error) {
	if key := strings.ToLower(strings.TrimSpace(name)); key == "" || key == defaultGroupName {
		return defaultGroup, nil
	}

	s.mu.Lock()
	id, isFresh := s.groupID, s.clock.Since(s.groupAt) < maxGroupAge
	s.mu.Unlock()

	if id > 0 && isFresh {
		return id, nil
	}

	var found struct {
		Value []struct {
			ID   int64  `json:"id"`
			Name string `json:"name"`
		} `json:"value"`
	}
	if err := s.callService(ctx, http.MethodGet, groupsPath, url.Values{"groupName": {name}}, nil, &found); err != nil {
		return 0, s.explain("find runner group "+name, err)
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

	return 0, workload.NewRejected(ReasonGroup, fmt.Sprintf(
		"%s has no runner group %q for scale sets: create the group at GitHub or change workload.config.github.runnerGroup",
		s.urls.scope, name))
}

// ensureSet returns the set of that name in a group, and creates it if it does not exist. It also
// ensures that the set has its name as a label, so that jobs can request it. It keeps the set's
// other labels.
func (s *serviceClient) ensureSet(ctx context.Context, group int64, name string) (scaleSet, error) {
	set, found, err := s.findSet(ctx, group, name)
	if err != nil {
		return scaleSet{}, err
	}

	nameLabel := setLabel{Type: "System", Name: name}

	if !found {
		created, err := s.createSet(ctx, scaleSet{
			Name: name, GroupID: group, Labels: []setLabel{nameLabel}, Setting: &runnerSetting{Ephemeral: true, DisableUpdate: true},
		})
		if !asServiceError(err).hasKind("RunnerScaleSetExistsException") {
			return created, s.checkSet(created, err)
		}

		// Another client has created the set in the meantime.
		if set, found, err = s.findSet(ctx, group, name); err != nil || !found {
			return scaleSet{}, firstError(err, fmt.Errorf("create scale set %s: GitHub reports that it exists but does not list it", name))
		}
	}

	if slices.ContainsFunc(set.Labels, func(l setLabel) bool { return strings.EqualFold(l.Name, name) }) {
		return set, s.checkSet(set, nil)
	}

	labels := []setLabel{nameLabel}
	for _, l := range set.Labels {
		labels = append(labels, setLabel{Type: "System", Name: l.Name})
	}

	var updated scaleSet

	change := scaleSet{Name: set.Name, GroupID: group, Labels: labels}
	err = s.callService(ctx, http.MethodPatch, setPath(set.ID), nil, change, &updated)

	return updated, s.checkSet(updated, err)
}

// checkSet returns an error if a call that returns the scale set failed or returned no set. set and err are the
// result of the call.
func (s *serviceClient) checkSet(set scaleSet, err error) error {
	switch {
	case err != nil:
		return s.explain("create the scale set", err)
	case set.ID <= 0:
		return fmt.Errorf("create scale set %s: GitHub's response has no id", set.Name)
	default:
		return nil
	}
}

func setPath(id int64, segments ...string) string {
	return strings.Join(append([]string{scaleSetsPath, strconv.FormatInt(id, 10)}, segments...), "/")
}

// findSet returns the set of that name in a group, and false if it does not exist.
func (s *serviceClient) findSet(ctx context.Context, group int64, name string) (scaleSet, bool, error) {
	var found struct {
		Value []scaleSet `json:"value"`
	}

	query := url.Values{"runnerGroupId": {strconv.FormatInt(group, 10)}, "name": {name}}
	if err := s.callService(ctx, http.MethodGet, scaleSetsPath, query, nil, &found); err != nil {
		return scaleSet{}, false, s.explain("find scale set "+name, err)
	}

	for _, set := range found.Value {
		if strings.EqualFold(set.Name, name) {
			return set, true, nil
		}
	}

	return scaleSet{}, false, nil
}

func (s *serviceClient) createSet(ctx context.Context, set scaleSet) (scaleSet, error) {
	var created scaleSet

	err := s.callService(ctx, http.MethodPost, scaleSetsPath, nil, set, &created)

	return created, err
}

type jitConfiguration struct {
	Runner struct {
		ID int64 `json:"id"`
	} `json:"runner"`
	Encoded string `json:"encodedJITConfig"`
}

// createConfig creates the configuration of one runner of a set.
func (s *serviceClient) createConfig(ctx context.Context, setID int64, req workload.RunnerRequest) (workload.Credential, error) {
	requestBody := map[string]string{"name": req.Name, "workFolder": defaultWorkDir}
	if req.WorkDir != "" {
		requestBody["workFolder"] = req.WorkDir
	}

	var config jitConfiguration
	if err := s.callService(ctx, http.MethodPost, setPath(setID, "generatejitconfig"), nil, requestBody, &config); err != nil {
		return workload.Credential{}, err
	}

	if config.Encoded == "" {
		return workload.Credential{}, errNoCredential
	}

	return newCredential(config), nil
}
