// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/listcache"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Config configures the provider of one scope of a server.
type Config struct {
	// URL of the instance, for example https://git.example.com.
	URL string
	// Repository (owner/name) or Organization is the scope. If both are empty, the scope is the
	// whole instance, which needs an administrator's token.
	Repository, Organization string
	// Token is an access token.
	Token string
	// Timeout of one call. It defaults to 30 s.
	Timeout time.Duration
	// WrapTransport wraps the HTTP transport, for metrics and traces. It may be nil.
	WrapTransport func(http.RoundTripper) http.RoundTripper
	// BaseTransport is the innermost HTTP transport. Nil means bounds.SharedTransport.
	BaseTransport http.RoundTripper
}

// newProvider creates the provider of one scope. It makes no calls. For an invalid configuration it
// returns an error of kind Rejected.
func newProvider(serverKind kind, config Config, clk clock.Clock) (*provider, error) {
	base, err := serverKind.normalizeURL(config.URL)
	if err != nil {
		return nil, err
	}

	runnerScope, err := serverKind.parseScope(config)
	if err != nil {
		return nil, err
	}

	token := strings.TrimSpace(config.Token)
	if token == "" {
		return nil, workload.NewRejected(serverKind.newReason(reasonCredentials), fmt.Sprintf(
			"the Secret of bootstrap.config.%s.credentials contains no access token: put an access token there", string(serverKind)))
	}

	if config.Timeout <= 0 {
		config.Timeout = defaultTimeout
	}

	out := &provider{
		api: newClient(config, base, token, clk), kind: serverKind, scope: runnerScope, base: base, clock: clk,
		names: map[int64]string{}, jobsByRunner: map[string]string{}, lastJobs: map[string]workload.Job{}, tasks: map[string]task{},
	}
	out.runnerList = listcache.Cache[[]workload.Runner]{
		List: out.fetchRunners, Timeout: max(listTimeout, config.Timeout), Clock: clk,
	}

	return out, nil
}

// normalizeURL validates the URL of an instance, and returns it without a trailing slash and without the path of
// the API.
func (k kind) normalizeURL(address string) (string, error) {
	address = strings.TrimRight(strings.TrimSpace(address), "/")
	reject := func(problem string) (string, error) {
		// The URL is not quoted, because an invalid URL can contain a token.
		return "", workload.NewRejected(k.newReason(reasonConfig), fmt.Sprintf("the url in workload.config.%s %s", string(k), problem))
	}

	parsed, err := url.Parse(address)

	switch {
	case err != nil || parsed.Host == "" || parsed.Scheme != "https" && parsed.Scheme != "http":
		return reject("is not an http(s) URL: use a URL such as https://git.example.com")
	case !bounds.IsSecureURL(parsed):
		return reject("uses plain http, which would expose the access token: use https")
	case parsed.User != nil:
		return reject("contains credentials: put the access token into a Secret instead")
	case parsed.RawQuery != "" || parsed.Fragment != "":
		return reject("has a query or a fragment: use a URL such as https://git.example.com")
	}

	return strings.TrimSuffix(address, apiPath), nil
}

// listServers returns the one server that receives the access token, or nil if the URL is invalid.
func (k kind) listServers(address string) []string {
	base, err := k.normalizeURL(address)
	if err != nil {
		return nil
	}

	parsed, err := url.Parse(base)
	if err != nil {
		return nil
	}

	return []string{bounds.Server(parsed)}
}

// scope is a repository or an organization, or the whole instance if both are empty.
type scope struct{ repository, organization string }

// String returns the scope's name for people.
func (s scope) String() string {
	switch {
	case s.repository != "":
		return "repository " + s.repository
	case s.organization != "":
		return "organization " + s.organization
	default:
		return "instance"
	}
}

// path returns the scope's path prefix in the API.
func (s scope) path() string {
	switch {
	case s.repository != "":
		return "/repos/" + s.repository
	case s.organization != "":
		return "/orgs/" + s.organization
	default:
		return "/admin"
	}
}

// requiredToken describes the token that the scope needs.
func (s scope) requiredToken() string {
	switch {
	case s.repository != "":
		return "an access token with the scope write:repository that belongs to an administrator of the repository"
	case s.organization != "":
		return "an access token with the scopes write:organization and read:repository that belongs to an owner of the organization"
	default:
		return "an access token with the scopes write:admin and read:repository that belongs to an administrator of the instance"
	}
}

func (k kind) parseScope(config Config) (scope, error) {
	out := scope{repository: strings.Trim(config.Repository, "/ "), organization: strings.Trim(config.Organization, "/ ")}

	switch {
	case out.repository != "" && out.organization != "":
		return scope{}, workload.NewRejected(k.newReason(reasonConfig), fmt.Sprintf(
			"repository and organization are both set in workload.config.%s: remove one", string(k)))
	case out.repository != "" && !isRepository(out.repository):
		return scope{}, workload.NewRejected(k.newReason(reasonConfig), fmt.Sprintf(
			"repository %q in workload.config.%s must have the form owner/name", out.repository, string(k)))
	case out.organization != "" && !isName(out.organization):
		return scope{}, workload.NewRejected(k.newReason(reasonConfig), fmt.Sprintf(
			"organization %q in workload.config.%s is not a valid name of an organization", out.organization, string(k)))
	}

	return out, nil
}

// isRepository reports whether a text has the form owner/name.
func isRepository(text string) bool {
	owner, name, ok := strings.Cut(text, "/")

	return ok && isName(owner) && isName(name)
}

// isName reports whether a text is a valid name of a user, organization or repository: letters,
// digits, dots, dashes and underscores, but not only dots.
func isName(text string) bool {
	return strings.Trim(text, ".") != "" && !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("._-", c)
	})
}
