// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	gh "github.com/google/go-github/v88/github"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	publicAPI      = "https://api.github.com"
	userAgent      = "hyperfleet"
	defaultTimeout = 30 * time.Second
)

// Config makes the provider of one scope of GitHub.
type Config struct {
	*Settings

	// Timeout of one call.
	Timeout time.Duration
	// Transport wraps the HTTP transport, for metrics and traces. May be nil.
	Transport func(http.RoundTripper) http.RoundTripper
}

// Settings are one scope of GitHub.
type Settings struct {
	// App or Token authenticates; exactly one is set.
	App   *App
	Token string
	// Owner and Repository, or Organization, or Enterprise, are the scope.
	Owner, Repository, Organization, Enterprise string
	// APIURL, RegistrationURLs and RunnerURLs as in the template.
	APIURL           string
	RegistrationURLs v1alpha1.GitHubURLs
	RunnerURLs       v1alpha1.GitHubURLs
	// RunnerGroup that Validate looks for; empty means the default one. Issue goes by
	// its request.
	RunnerGroup string
	// ScaleSet is the name of the runner scale set that the runners belong to, if any.
	ScaleSet string
}

// App is an installation of a GitHub App.
type App struct {
	// AppID is the numeric id or client id.
	AppID          string
	PrivateKey     []byte
	InstallationID int64
}

// New makes the provider of one scope of GitHub. It makes no call. A configuration that
// cannot work is an error of kind Rejected.
func New(config Config) (workload.Provider, error) {
	return newProvider(config, clock.RealClock{})
}

func newProvider(config Config, clk clock.Clock) (*provider, error) {
	if config.Settings == nil {
		return nil, rejected(ReasonConfig, "the GitHub settings are missing: set bootstrap.config.github of the template")
	}

	urls, err := readURLs(config.Settings)
	if err != nil {
		return nil, err
	}

	timeout := config.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}

	out := &provider{
		urls: urls, timeout: timeout, clock: clk, group: config.Settings.RunnerGroup,
		redact: newRedactor(config.Settings), budget: &budget{clock: clk}, groups: map[string]int64{},
	}

	transport, err := out.transport(config)
	if err != nil {
		return nil, err
	}

	base := urls.api + "/"

	out.client, err = gh.NewClient(
		gh.WithHTTPClient(&http.Client{Transport: transport, Timeout: timeout}),
		gh.WithURLs(&base, &base), gh.WithUserAgent(userAgent),
	)
	if err != nil {
		return nil, rejected(ReasonConfig, "apiUrl is not a URL: use one such as https://api.github.com")
	}

	return out, nil
}

// scope is the repository, or the organisation where repo is empty.
type scope struct{ owner, repo string }

// String names the scope for people.
func (s scope) String() string {
	if s.repo == "" {
		return "organization " + s.owner
	}

	return "repository " + s.owner + "/" + s.repo
}

// urls are where calls go and where runners register.
type urls struct {
	scope             scope
	api               string
	registrationToken string
	runner            string
}

// plain matches the names GitHub gives out. Anything else could lead a URL elsewhere.
func plain(name string) bool {
	return regexp.MustCompile(`^[A-Za-z0-9_.-]+$`).MatchString(name) && strings.Trim(name, ".") != ""
}

func readURLs(config *Settings) (urls, error) {
	where, err := readScope(config)
	if err != nil {
		return urls{}, err
	}

	out := urls{scope: where, api: strings.TrimRight(config.APIURL, "/")}
	if out.api == "" {
		out.api = publicAPI
	}

	if err := checkURL("apiUrl", out.api); err != nil {
		return urls{}, err
	}

	token, runner := config.RegistrationURLs.Repository, config.RunnerURLs.Repository
	path, home := "/repos/{owner}/{repo}", "/{owner}/{repo}"

	if where.repo == "" {
		token, runner = config.RegistrationURLs.Organization, config.RunnerURLs.Organization
		path, home = "/orgs/{org}", "/{org}"
	}

	if token == "" {
		token = out.api + path + "/actions/runners/registration-token"
	}

	if runner == "" {
		runner = webURL(out.api) + home
	}

	out.registrationToken, out.runner = where.expand(token), where.expand(runner)
	if err := checkURL("registrationUrls", out.registrationToken); err != nil {
		return urls{}, err
	}

	return out, checkURL("runnerUrls", out.runner)
}

func readScope(config *Settings) (scope, error) {
	where := scope{owner: config.Organization}

	switch {
	case config.Repository != "":
		where = scope{owner: config.Owner, repo: config.Repository}
		if owner, name, ok := strings.Cut(config.Repository, "/"); ok {
			where = scope{owner: owner, repo: name}
		}
	case config.Organization == "":
		where.owner = config.Owner
	}

	switch {
	case where.owner == "":
		return scope{}, rejected(ReasonConfig,
			"no scope is set: set owner and repository, or organization, in bootstrap.config.github of the template or in the pool")
	case !plain(where.owner):
		return scope{}, rejected(ReasonConfig, fmt.Sprintf("%q is not the name of an owner or organization at GitHub", where.owner))
	case where.repo != "" && !plain(where.repo):
		return scope{}, rejected(ReasonConfig, fmt.Sprintf("%q is not the name of a repository at GitHub", where.repo))
	}

	return where, nil
}

// expand fills in placeholders. For an organisation {owner} and {org} are the same.
func (s scope) expand(template string) string {
	return strings.NewReplacer("{owner}", s.owner, "{org}", s.owner, "{repo}", s.repo).Replace(template)
}

// checkURL never repeats a URL that has credentials in it.
func checkURL(field, text string) error {
	parsed, err := url.Parse(text)

	switch {
	case err != nil:
		return rejected(ReasonConfig, field+" is not a URL: use one such as https://api.github.com")
	case parsed.User != nil:
		return rejected(ReasonConfig, field+" holds credentials: remove them, the template's app or credentials are used")
	case parsed.Scheme != "https" && parsed.Scheme != "http", parsed.Host == "":
		return rejected(ReasonConfig, fmt.Sprintf("%s %q is not a URL: use one such as https://api.github.com", field, text))
	case strings.ContainsAny(parsed.Path, "{}"):
		return rejected(ReasonConfig, fmt.Sprintf("%s %q has an unknown placeholder: {owner}, {repo} and {org} are known", field, text))
	}

	return nil
}

// webURL gives where people and runners go, from where the API is: github.com,
// SUBDOMAIN.ghe.com, or the host of a GitHub Enterprise Server, whose API is below
// /api/v3 (https://docs.github.com/enterprise-server/rest/quickstart).
func webURL(api string) string {
	if api == publicAPI {
		return "https://github.com"
	}

	if rest, ok := strings.CutPrefix(api, "https://api."); ok && strings.HasSuffix(rest, ".ghe.com") {
		return "https://" + rest
	}

	return strings.TrimSuffix(api, "/api/v3")
}

// gitHubApp gives the settings of the App, or nil where a token is used.
func gitHubApp(config *Settings) (*App, error) {
	switch {
	case config.App != nil && config.Token != "":
		return nil, rejected(ReasonConfig, "a GitHub App and a personal access token are both set: choose one")
	case config.App == nil && strings.TrimSpace(config.Token) == "":
		return nil, rejected(ReasonCredentials, "no credentials: the Secret holds neither a GitHub App nor a personal access token")
	case config.App == nil:
		return nil, nil //nolint:nilnil // no App is an answer
	case config.App.AppID == "" || config.App.InstallationID <= 0:
		return nil, rejected(ReasonCredentials,
			"the GitHub App's appId or installationId is empty: both are on the App's settings page")
	}

	return config.App, nil
}

// needs says which permission a call needs, in the words of GitHub's settings pages
// (https://docs.github.com/rest/authentication/permissions-required-for-github-apps).
func (s scope) needs() string {
	if s.repo == "" {
		return "the organization permission Self-hosted runners: write (GitHub App or fine-grained token), " +
			"or the scope admin:org (classic token)"
	}

	return "the repository permission Administration: write (GitHub App or fine-grained token), or the scope repo (classic token)"
}

// needsJobs is what reading jobs needs.
const needsJobs = "the repository permission Actions: read (GitHub App or fine-grained token), or the scope repo (classic token)"

// registrationKind checks the kind of credential that is asked for.
func registrationKind(kind string) (bool, error) {
	switch kind {
	case v1alpha1.RegistrationJIT, "":
		return true, nil
	case v1alpha1.RegistrationToken:
		return false, nil
	default:
		return false, rejected(ReasonConfig, fmt.Sprintf("registration %q is unknown: use jit or token", kind))
	}
}
