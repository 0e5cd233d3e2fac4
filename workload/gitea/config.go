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

	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Config makes the provider of one scope of a server.
type Config struct {
	// URL of the instance: https://git.example.com.
	URL string
	// Repository (owner/name) or Organization is the scope. Without either it is the whole
	// instance, which takes an administrator's token.
	Repository, Organization string
	// Token is an access token.
	Token string
	// Timeout of one call. Default: 30 s.
	Timeout time.Duration
	// Transport wraps the HTTP transport, for metrics and traces. May be nil.
	Transport func(http.RoundTripper) http.RoundTripper
	// Network is the transport below that. Nil: httpbound.Shared.
	Network http.RoundTripper
}

// newProvider makes the provider of one scope. It makes no call. A configuration that
// cannot work is an error of kind Rejected.
func newProvider(of kind, config Config, clk clock.Clock) (*provider, error) {
	base, err := of.checkURL(config.URL)
	if err != nil {
		return nil, err
	}

	where, err := of.readScope(config)
	if err != nil {
		return nil, err
	}

	token := strings.TrimSpace(config.Token)
	if token == "" {
		return nil, workload.Reject(of.reason(reasonCredentials), fmt.Sprintf(
			"no credentials: the Secret that bootstrap.config.%s.credentials names holds no access token", string(of)))
	}

	if config.Timeout <= 0 {
		config.Timeout = defaultTimeout
	}

	out := &provider{
		api: newClient(config, base, token, clk), kind: of, where: where, base: base, clock: clk,
		names: map[int64]string{}, bound: map[string]string{}, seen: map[string]workload.Job{}, tasks: map[string]task{},
	}
	out.list = workload.Shared[[]workload.Runner]{
		List: out.listRunners, Timeout: max(listTimeout, config.Timeout), Clock: clk,
	}

	return out, nil
}

// checkURL gives the URL of an instance without a slash at its end.
func (k kind) checkURL(address string) (string, error) {
	address = strings.TrimRight(strings.TrimSpace(address), "/")
	wrong := func(what string) (string, error) {
		// Not quoted: what is no URL may be anything, a token too.
		return "", workload.Reject(k.reason(reasonConfig), fmt.Sprintf("the url in workload.config.%s %s", string(k), what))
	}

	parsed, err := url.Parse(address)

	switch {
	case err != nil || parsed.Host == "" || parsed.Scheme != "https" && parsed.Scheme != "http":
		return wrong("is no URL of an instance: write one such as https://git.example.com")
	case !httpbound.Safe(parsed):
		return wrong("is plain http, and the access token is sent there: use https")
	case parsed.User != nil:
		return wrong("holds credentials: the access token belongs into a Secret")
	case parsed.RawQuery != "" || parsed.Fragment != "":
		return wrong("has a query: write one such as https://git.example.com")
	}

	return strings.TrimSuffix(address, apiPath), nil
}

// serversOf is the server that the access token is sent to; none where the URL is no good.
func (k kind) serversOf(address string) []string {
	base, err := k.checkURL(address)
	if err != nil {
		return nil
	}

	parsed, err := url.Parse(base)
	if err != nil {
		return nil
	}

	return []string{httpbound.Server(parsed)}
}

// scope is whose runners are made. Without a name it is the instance.
type scope struct{ repository, organization string }

// String names the scope for people.
func (s scope) String() string {
	switch {
	case s.repository != "":
		return "repository " + s.repository
	case s.organization != "":
		return "organisation " + s.organization
	default:
		return "instance"
	}
}

// path of the scope's part of the API.
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

// needs says which token the scope takes.
func (s scope) needs() string {
	switch {
	case s.repository != "":
		return "an access token with the scope write:repository, of somebody who administers the repository"
	case s.organization != "":
		return "an access token with the scopes write:organization and read:repository, of an owner of the organisation"
	default:
		return "an access token with the scopes write:admin and read:repository, of an administrator of the instance"
	}
}

func (k kind) readScope(config Config) (scope, error) {
	out := scope{repository: strings.Trim(config.Repository, "/ "), organization: strings.Trim(config.Organization, "/ ")}

	switch {
	case out.repository != "" && out.organization != "":
		return scope{}, workload.Reject(k.reason(reasonConfig), fmt.Sprintf(
			"repository and organization are both set in workload.config.%s: choose one", string(k)))
	case out.repository != "" && !isRepository(out.repository):
		return scope{}, workload.Reject(k.reason(reasonConfig), fmt.Sprintf("repository %q in workload.config.%s is not owner/name",
			out.repository, string(k)))
	case out.organization != "" && !isName(out.organization):
		return scope{}, workload.Reject(k.reason(reasonConfig), fmt.Sprintf(
			"organization %q in workload.config.%s is no name of an organisation", out.organization, string(k)))
	}

	return out, nil
}

// isRepository tells whether a text is owner/name.
func isRepository(text string) bool {
	owner, name, ok := strings.Cut(text, "/")

	return ok && isName(owner) && isName(name)
}

// isName tells whether a text is a name as the servers give them to users, organisations and
// repositories: letters, digits, dots, dashes and underscores.
func isName(text string) bool {
	return strings.Trim(text, ".") != "" && !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("._-", c)
	})
}
