// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	gh "github.com/google/go-github/v88/github"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
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
	// Network is the transport below that. Nil: httpbound.Shared.
	Network http.RoundTripper

	// limits that providers of one Platform share.
	limits *limits
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
	return open(config, clock.RealClock{})
}

func newProvider(config Config, clk clock.Clock) (*provider, error) {
	if config.Settings == nil {
		return nil, workload.Reject(ReasonConfig, "the GitHub settings are missing: set bootstrap.config.github of the template")
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
		urls: urls, timeout: timeout, clock: clk, group: config.RunnerGroup,
		redact: newRedactor(config.Settings), groups: map[string]int64{},
	}
	out.list = workload.Shared[map[string]workload.Runner]{
		List: out.listAll, May: out.slowed, Timeout: max(listTimeout, timeout), Clock: clk,
	}

	own, app := config.limits.budgets(clk, urls.api, config.Settings)
	out.budget, out.app.budget = own, app

	if err := out.connect(config); err != nil {
		return nil, err
	}

	return out, nil
}

// connect makes the clients of the provider: that of its scope, and that of the App
// itself if there is one.
func (p *provider) connect(config Config) error {
	app, err := gitHubApp(config.Settings)
	if err != nil {
		return err
	}

	next := p.network(config, p.budget)

	if app == nil {
		p.client, err = p.newClient(bearing(next, strings.TrimSpace(config.Token)))

		return err
	}

	if next, err = installation(next, app, p.urls.api); err != nil {
		return err
	}

	if p.client, err = p.newClient(next); err != nil {
		return err
	}

	p.installation = app.InstallationID

	if next, err = asApp(p.network(config, p.app.budget), app, p.urls.api); err == nil {
		p.app.client, err = p.newClient(next)
	}

	return err
}

func (p *provider) newClient(transport http.RoundTripper) (*gh.Client, error) {
	base := p.urls.api + "/"

	out, err := gh.NewClient(
		gh.WithHTTPClient(&http.Client{Transport: guarding(transport, p.urls), Timeout: p.timeout}),
		gh.WithURLs(&base, &base), gh.WithUserAgent(userAgent),
		// The budget keeps to the limits: it lets removals go on where the library would not.
		gh.WithDisableRateLimitCheck(),
	)
	if err != nil {
		return nil, workload.Reject(ReasonConfig, "apiUrl is not a URL: use one such as https://api.github.com")
	}

	return out, nil
}

// scope is a repository, an organisation where repo is empty, or an enterprise.
type scope struct{ owner, repo, enterprise string }

// String names the scope for people.
func (s scope) String() string {
	switch {
	case s.enterprise != "":
		return "enterprise " + s.enterprise
	case s.repo == "":
		return "organization " + s.owner
	default:
		return "repository " + s.owner + "/" + s.repo
	}
}

// path is where the scope's calls are, without a slash before it.
func (s scope) path() string {
	switch {
	case s.enterprise != "":
		return "enterprises/" + s.enterprise
	case s.repo == "":
		return "orgs/" + s.owner
	default:
		return "repos/" + s.owner + "/" + s.repo
	}
}

// pick gives the URL template of the scope's kind.
func (s scope) pick(from v1alpha1.GitHubURLs) string {
	switch {
	case s.enterprise != "":
		return from.Enterprise
	case s.repo == "":
		return from.Organization
	default:
		return from.Repository
	}
}

// home is the scope's place below the web URL, where runners register.
func (s scope) home() string {
	switch {
	case s.enterprise != "":
		return "/enterprises/" + s.enterprise
	case s.repo == "":
		return "/" + s.owner
	default:
		return "/" + s.owner + "/" + s.repo
	}
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

	out.registrationToken = cmp.Or(where.expand(where.pick(config.RegistrationURLs)),
		out.api+"/"+where.path()+"/actions/runners/registration-token")
	out.runner = cmp.Or(where.expand(where.pick(config.RunnerURLs)), webURL(out.api)+where.home())

	if err := checkURL("registrationUrls", out.registrationToken); err != nil {
		return urls{}, err
	}

	return out, checkURL(runnerURLs, out.runner)
}

// servers are those that credentials are sent to; none where the settings are no good.
func (s *Settings) servers() []string {
	urls, err := readURLs(s)
	if err != nil {
		return nil
	}

	var out []string

	for _, text := range []string{urls.api, urls.registrationToken} {
		if parsed, err := url.Parse(text); err == nil {
			out = append(out, httpbound.Server(parsed))
		}
	}

	return slices.Compact(out)
}

func readScope(config *Settings) (scope, error) {
	where := scope{owner: config.Organization}

	switch {
	case config.Repository != "":
		where = scope{owner: config.Owner, repo: config.Repository}
		if owner, name, ok := strings.Cut(config.Repository, "/"); ok {
			where = scope{owner: owner, repo: name}
		}
	case config.Organization != "":
	case config.Enterprise != "":
		where.enterprise = config.Enterprise
	default:
		where.owner = config.Owner
	}

	switch {
	case where.enterprise != "" && !plain(where.enterprise):
		return scope{}, workload.Reject(ReasonConfig, fmt.Sprintf("%q is not the slug of an enterprise at GitHub", where.enterprise))
	case where.enterprise != "":
		return where, nil
	case where.owner == "":
		return scope{}, workload.Reject(ReasonConfig, "no scope is set: set owner and repository, organization or enterprise "+
			"in bootstrap.config.github of the template or in the pool")
	case !plain(where.owner):
		return scope{}, workload.Reject(ReasonConfig,
			fmt.Sprintf("%q is not the name of an owner or organization at GitHub", where.owner))
	case where.repo != "" && !plain(where.repo):
		return scope{}, workload.Reject(ReasonConfig, fmt.Sprintf("%q is not the name of a repository at GitHub", where.repo))
	}

	return where, nil
}

// expand fills in placeholders. For an organisation {owner} and {org} are the same. What
// the scope has no word for is left, and is found by checkURL.
func (s scope) expand(template string) string {
	for placeholder, word := range map[string]string{
		"{owner}": s.owner, "{org}": s.owner, "{repo}": s.repo, "{enterprise}": s.enterprise,
	} {
		if word != "" {
			template = strings.ReplaceAll(template, placeholder, word)
		}
	}

	return template
}

// runnerURLs is the field of what runners alone are told; nothing is sent there from here.
const runnerURLs = "runnerUrls"

// checkURL never repeats a URL that has credentials in it.
func checkURL(field, text string) error {
	parsed, err := url.Parse(text)

	switch {
	case err != nil:
		return workload.Reject(ReasonConfig, field+" is not a URL: use one such as https://api.github.com")
	case parsed.User != nil:
		return workload.Reject(ReasonConfig, field+" holds credentials: remove them, the template's app or credentials are used")
	case parsed.Scheme != "https" && parsed.Scheme != "http", parsed.Host == "":
		return workload.Reject(ReasonConfig, fmt.Sprintf("%s %q is not a URL: use one such as https://api.github.com", field, text))
	case field != runnerURLs && !httpbound.Safe(parsed):
		return workload.Reject(ReasonConfig, fmt.Sprintf("%s %q is plain http, and credentials are sent there: use https", field, text))
	case strings.ContainsAny(parsed.Path, "{}"):
		return workload.Reject(ReasonConfig, fmt.Sprintf("%s %q has a placeholder that the scope has no word for: "+
			"{owner}, {repo}, {org} and {enterprise} are known", field, text))
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
		return nil, workload.Reject(ReasonConfig, "a GitHub App and a personal access token are both set: choose one")
	case config.App == nil && strings.TrimSpace(config.Token) == "":
		return nil, workload.Reject(ReasonCredentials,
			"no credentials: the Secret holds neither a GitHub App nor a personal access token")
	case config.App == nil:
		return nil, nil //nolint:nilnil // no App is an answer
	case config.App.AppID == "" || config.App.InstallationID <= 0:
		return nil, workload.Reject(ReasonCredentials,
			"the GitHub App's appId or installationId is empty: both are on the App's settings page")
	}

	return config.App, nil
}

// needs says which permission a call needs, in the words of GitHub's settings pages
// (https://docs.github.com/rest/authentication/permissions-required-for-github-apps).
func (s scope) needs() string {
	switch {
	case s.enterprise != "":
		return "the scope manage_runners:enterprise of a classic token: " +
			"GitHub lets no GitHub App and no fine-grained token manage an enterprise's runners"
	case s.repo == "":
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
		return false, workload.Reject(ReasonConfig, fmt.Sprintf("registration %q is unknown: use jit or token", kind))
	}
}
