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

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/listcache"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	userAgent      = "hyperfleet"
	defaultTimeout = 30 * time.Second
)

// Config configures the provider of one scope of GitLab.
type Config struct {
	// URL of the instance, for example https://gitlab.example.com.
	URL string
	// Project or Group is the scope, given by its full path or its id. If both are empty, the scope
	// is the whole instance, which needs an administrator's token.
	Project, Group string
	// Token is an access token of a person, a group or a project.
	Token string
	// Timeout of one call. It defaults to 30 s.
	Timeout time.Duration
	// WrapTransport wraps the HTTP transport, for metrics and traces. It may be nil.
	WrapTransport func(http.RoundTripper) http.RoundTripper
	// BaseTransport is the innermost HTTP transport. Nil means bounds.SharedTransport.
	BaseTransport http.RoundTripper
}

// New creates the provider of one scope of GitLab. It makes no calls. For an invalid configuration
// it returns an error of kind Rejected.
func New(config Config) (workload.Provider, error) {
	return newProvider(config, clock.RealClock{})
}

// newProvider validates the configuration and creates a provider. It makes no calls.
func newProvider(config Config, clk clock.Clock) (*provider, error) {
	base, err := normalizeURL(config.URL)
	if err != nil {
		return nil, err
	}

	runnerScope, err := parseScope(config)
	if err != nil {
		return nil, err
	}

	token := strings.TrimSpace(config.Token)
	if token == "" {
		return nil, workload.NewRejected(ReasonCredentials,
			"the Secret of bootstrap.config.gitlab.credentials contains no access token: put an access token there")
	}

	if config.Timeout <= 0 {
		config.Timeout = defaultTimeout
	}

	out := &provider{
		scope: runnerScope, base: base, timeout: config.Timeout, clock: clk,
		redactor: newRedactor(token), limit: &rateLimit{clock: clk},
	}
	out.runnerList = listcache.Cache[[]workload.Runner]{
		List: out.fetchRunners, CheckAllowed: func() error { return out.limit.checkAllowed("list runners") },
		Timeout: max(listTimeout, out.timeout), Clock: clk,
	}

	out.client, err = gl.NewClient(token, gl.WithBaseURL(base), gl.WithUserAgent(userAgent), gl.WithoutRetries(),
		gl.WithCustomLimiter(unlimited{}),
		gl.WithHTTPClient(&http.Client{Transport: out.transport(config), Timeout: config.Timeout}))
	if err != nil {
		return nil, workload.NewRejected(ReasonConfig,
			"the url in workload.config.gitlab is not valid: use a URL such as https://gitlab.example.com")
	}

	return out, nil
}

// unlimited is a limiter that never waits. GitLab enforces its own rate limits, and this package
// reports them to its callers.
type unlimited struct{}

// Wait returns nil at once.
func (unlimited) Wait(context.Context) error { return nil }

// normalizeURL validates the URL of an instance, and returns it without a trailing slash.
func normalizeURL(address string) (string, error) {
	address = strings.TrimRight(strings.TrimSpace(address), "/")

	parsed, err := url.Parse(address)

	switch {
	case err != nil || parsed.Host == "" || parsed.Scheme != "https" && parsed.Scheme != "http":
		// The URL is not quoted, because an invalid URL can contain a token.
		return "", workload.NewRejected(ReasonConfig,
			"the url in workload.config.gitlab is not an http(s) URL: use a URL such as https://gitlab.example.com")
	case !bounds.IsSecureURL(parsed):
		return "", workload.NewRejected(ReasonConfig,
			"the url in workload.config.gitlab uses plain http, which would expose the access token: use https")
	case parsed.User != nil:
		return "", workload.NewRejected(ReasonConfig,
			"the url in workload.config.gitlab contains credentials: put the access token into a Secret instead")
	case parsed.RawQuery != "" || parsed.Fragment != "":
		return "", workload.NewRejected(ReasonConfig,
			"the url in workload.config.gitlab has a query or a fragment: use a URL such as https://gitlab.example.com")
	}

	return strings.TrimSuffix(address, "/api/v4"), nil
}

// listServers returns the one server that receives the access token, or nil if the URL is invalid.
func listServers(address string) []string {
	base, err := normalizeURL(address)
	if err != nil {
		return nil
	}

	parsed, err := url.Parse(base)
	if err != nil {
		return nil
	}

	return []string{bounds.Server(parsed)}
}

// Kinds of scopes. Their values are values of the API's runner_type.
const (
	projectScope  = "project_type"
	groupScope    = "group_type"
	instanceScope = "instance_type"
)

// scope is a project, a group or the whole instance.
type scope struct {
	kind string
	// name is a full path or an id. It is empty for the instance.
	name string
}

// String returns the scope's name for people.
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

func parseScope(config Config) (scope, error) {
	project, group := trimPath(config.Project), trimPath(config.Group)

	switch {
	case project != "" && group != "":
		return scope{}, workload.NewRejected(ReasonConfig, "projectId and groupId are both set in workload.config.gitlab: remove one")
	case project != "" && !isID(project) && (!isProjectPath(project) || !isValidPath(project)):
		return scope{}, workload.NewRejected(ReasonConfig, fmt.Sprintf(
			"projectId %q is neither an id nor the full path of a project: use a path such as group/project", project))
	case project != "":
		return scope{kind: projectScope, name: project}, nil
	case group != "" && !isValidPath(group):
		return scope{}, workload.NewRejected(ReasonConfig, fmt.Sprintf(
			"groupId %q is neither an id nor the full path of a group: use a path such as group/subgroup", group))
	case group != "":
		return scope{kind: groupScope, name: group}, nil
	default:
		return scope{kind: instanceScope}, nil
	}
}

// isValidPath reports whether each segment of a path has only characters that GitLab allows in
// paths. These are letters of any script, digits, dots, dashes and underscores. A segment must not
// consist of dots only.
func isValidPath(path string) bool {
	for part := range strings.SplitSeq(path, "/") {
		if strings.Trim(part, ".") == "" || strings.ContainsAny(part, `\?#%&:;"'<> `) || strings.ContainsFunc(part, isControl) {
			return false
		}
	}

	return true
}

func isControl(c rune) bool { return c < ' ' || c == 0x7f }
