// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	gl "gitlab.com/gitlab-org/api/client-go"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	userAgent      = "hyperfleet"
	defaultTimeout = 30 * time.Second
)

// Config makes the provider of one scope of GitLab.
type Config struct {
	// URL of the instance: https://gitlab.example.com.
	URL string
	// Project or Group is the scope, by its full path or its id. Without either it is the
	// whole instance, which takes an administrator's token.
	Project, Group string
	// Token is an access token of a person, a group or a project.
	Token string
	// Timeout of one call. Default: 30 s.
	Timeout time.Duration
	// Transport wraps the HTTP transport, for metrics and traces. May be nil.
	Transport func(http.RoundTripper) http.RoundTripper
	// Network is the transport below that. Nil: httpbound.Shared.
	Network http.RoundTripper
}

// New makes the provider of one scope of GitLab. It makes no call. A configuration that
// cannot work is an error of kind Rejected.
func New(config Config) (workload.Provider, error) {
	return newProvider(config, clock.RealClock{})
}

func newProvider(config Config, clk clock.Clock) (*provider, error) {
	base, err := checkURL(config.URL)
	if err != nil {
		return nil, err
	}

	where, err := readScope(config)
	if err != nil {
		return nil, err
	}

	token := strings.TrimSpace(config.Token)
	if token == "" {
		return nil, workload.Reject(ReasonCredentials,
			"no credentials: the Secret that bootstrap.config.gitlab.credentials names holds no access token")
	}

	if config.Timeout <= 0 {
		config.Timeout = defaultTimeout
	}

	out := &provider{
		where: where, base: base, timeout: config.Timeout, clock: clk, redact: newRedactor(token), limit: &limit{clock: clk},
	}
	out.list = workload.Shared[[]workload.Runner]{
		List: out.listAll, May: func() error { return out.limit.spare("listing runners") },
		Timeout: max(listTimeout, out.timeout), Clock: clk,
	}

	out.client, err = gl.NewClient(token, gl.WithBaseURL(base), gl.WithUserAgent(userAgent), gl.WithoutRetries(),
		gl.WithCustomLimiter(unlimited{}),
		gl.WithHTTPClient(&http.Client{Transport: out.transport(config), Timeout: config.Timeout}))
	if err != nil {
		return nil, workload.Reject(ReasonConfig,
			"the url of the GitLab instance cannot be used: write one such as https://gitlab.example.com")
	}

	return out, nil
}

// unlimited keeps the library from holding calls back: limits are GitLab's to tell, and
// callers are told of them.
type unlimited struct{}

// Wait does not.
func (unlimited) Wait(context.Context) error { return nil }

// checkURL gives the URL of an instance without a slash at its end.
func checkURL(address string) (string, error) {
	address = strings.TrimRight(strings.TrimSpace(address), "/")

	parsed, err := url.Parse(address)

	switch {
	case err != nil || parsed.Host == "" || parsed.Scheme != "https" && parsed.Scheme != "http":
		// Not quoted: what is no URL may be anything, a token too.
		return "", workload.Reject(ReasonConfig,
			"the url in workload.config.gitlab is no URL of a GitLab instance: write one such as https://gitlab.example.com")
	case !httpbound.Safe(parsed):
		return "", workload.Reject(ReasonConfig,
			"the url in workload.config.gitlab is plain http, and the access token is sent there: use https")
	case parsed.User != nil:
		return "", workload.Reject(ReasonConfig,
			"the url in workload.config.gitlab holds credentials: the access token belongs into a Secret")
	case parsed.RawQuery != "" || parsed.Fragment != "":
		return "", workload.Reject(ReasonConfig,
			"the url in workload.config.gitlab has a query: write one such as https://gitlab.example.com")
	}

	return strings.TrimSuffix(address, "/api/v4"), nil
}

// serversOf is the server that the access token is sent to; none where the URL is no good.
func serversOf(address string) []string {
	base, err := checkURL(address)
	if err != nil {
		return nil
	}

	parsed, err := url.Parse(base)
	if err != nil {
		return nil
	}

	return []string{httpbound.Server(parsed)}
}

// Kinds of scopes, in the words of the API's runner_type.
const (
	projectScope  = "project_type"
	groupScope    = "group_type"
	instanceScope = "instance_type"
)

// scope is whose runners are made.
type scope struct {
	kind string
	// name is a full path or an id; empty for the instance.
	name string
}

// String names the scope for people.
func (s scope) String() string {
	switch s.kind {
	case projectScope:
		return "project " + s.name
	case groupScope:
		return "group " + s.name
	default:
		return "instance"
	}
}

func readScope(config Config) (scope, error) {
	project, group := pathOf(config.Project), pathOf(config.Group)

	switch {
	case project != "" && group != "":
		return scope{}, workload.Reject(ReasonConfig, "projectId and groupId are both set in workload.config.gitlab: choose one")
	case project != "" && !isID(project) && (!isProject(project) || !plain(project)):
		return scope{}, workload.Reject(ReasonConfig, fmt.Sprintf(
			"projectId %q is neither an id nor the full path of a project: write one such as group/project", project))
	case project != "":
		return scope{kind: projectScope, name: project}, nil
	case group != "" && !plain(group):
		return scope{}, workload.Reject(ReasonConfig, fmt.Sprintf(
			"groupId %q is neither an id nor the full path of a group: write one such as group/subgroup", group))
	case group != "":
		return scope{kind: groupScope, name: group}, nil
	default:
		return scope{kind: instanceScope}, nil
	}
}

// plain tells whether each part of a path is one that GitLab gives out: letters of any
// script, digits, dots, dashes and underscores.
func plain(path string) bool {
	for part := range strings.SplitSeq(path, "/") {
		if strings.Trim(part, ".") == "" || strings.ContainsAny(part, `\?#%&:;"'<> `) || strings.ContainsFunc(part, isControl) {
			return false
		}
	}

	return true
}

func isControl(c rune) bool { return c < ' ' || c == 0x7f }
