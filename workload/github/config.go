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
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/listcache"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	publicAPI      = "https://api.github.com"
	userAgent      = "hyperfleet"
	defaultTimeout = 30 * time.Second
)

// Config configures the provider of one scope of GitHub.
type Config struct {
	*Settings

	// Timeout of one call. It defaults to 30 s.
	Timeout time.Duration
	// WrapTransport wraps the HTTP transport, for metrics and traces. It may be nil.
	WrapTransport func(http.RoundTripper) http.RoundTripper
	// BaseTransport is the innermost HTTP transport. Nil means bounds.SharedTransport.
	BaseTransport http.RoundTripper

	// budgets are the budgets that the providers of one Platform share.
	budgets *budgetRegistry
}

// Settings identify one scope of GitHub and its credentials.
type Settings struct {
	// App or Token authenticates. Exactly one of them is set.
	App   *App
	Token string
	// The scope is a repository (Owner and Repository), an Organization or an Enterprise.
	Owner, Repository, Organization, Enterprise string
	// APIURL, RegistrationURLs and RunnerURLs have the same meaning as in the template.
	APIURL           string
	RegistrationURLs v1alpha1.GitHubURLs
	RunnerURLs       v1alpha1.GitHubURLs
	// RunnerGroup is the group that Validate checks. Empty means the default group. IssueCredential
	// uses the group of its request.
	RunnerGroup string
	// ScaleSet is the name of the runner scale set that the runners belong to. It can be empty.
	ScaleSet string
}

// App identifies an installation of a GitHub App.
type App struct {
	// AppID is the numeric id or the client id.
	AppID          string
	PrivateKey     []byte
	InstallationID int64
}

// New creates the provider of one scope of GitHub. It makes no calls. For an invalid configuration
// it returns an error of kind Rejected.
func New(config Config) (workload.Provider, error) {
	return openProvider(config, clock.RealClock{})
}

// newProvider validates the settings and creates a provider. It makes no calls. Providers with the same
// credential share their rate limit budget.
func newProvider(config Config, clk clock.Clock) (*provider, error) {
	if config.Settings == nil {
		return nil, workload.NewRejected(ReasonConfig, "the GitHub settings are missing: set bootstrap.config.github in the template")
	}

	urls, err := resolveURLs(config.Settings)
	if err != nil {
		return nil, err
	}

	timeout := config.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}

	out := &provider{
		urls: urls, timeout: timeout, clock: clk, group: config.RunnerGroup,
		redactor: newRedactor(config.Settings), groups: map[string]int64{},
	}
	out.runnerList = listcache.Cache[map[string]workload.Runner]{
		List: out.fetchRunners, CheckAllowed: out.checkListAllowed, Timeout: max(listTimeout, timeout), Clock: clk,
	}

	out.downloads = listcache.Cache[[]*gh.RunnerApplicationDownload]{List: out.fetchDownloads, Timeout: timeout, Clock: clk}

	scopeBudget, appBudget := config.budgets.credentialBudgets(clk, urls.api, config.Settings)
	out.budget, out.app.budget = scopeBudget, appBudget

	if err := out.createClients(config); err != nil {
		return nil, err
	}

	return out, nil
}

// createClients creates the client of the provider's scope and, if a GitHub App is used, the client
// of the App itself.
func (p *provider) createClients(config Config) error {
	app, err := resolveApp(config.Settings)
	if err != nil {
		return err
	}

	transport := p.buildTransport(config, p.budget)

	if app == nil {
		p.client, err = p.newClient(authenticateWithToken(transport, strings.TrimSpace(config.Token)))

		return err
	}

	if transport, err = authenticateAsInstallation(transport, app, p.urls.api); err != nil {
		return err
	}

	if p.client, err = p.newClient(transport); err != nil {
		return err
	}

	p.installationID = app.InstallationID

	if transport, err = authenticateAsApp(p.buildTransport(config, p.app.budget), app, p.urls.api); err == nil {
		p.app.client, err = p.newClient(transport)
	}

	return err
}

func (p *provider) newClient(transport http.RoundTripper) (*gh.Client, error) {
	base := p.urls.api + "/"

	out, err := gh.NewClient(
		gh.WithHTTPClient(&http.Client{Transport: restrictHosts(transport, p.urls), Timeout: p.timeout}),
		gh.WithURLs(&base, &base), gh.WithUserAgent(userAgent),
		// The budget enforces the rate limits. Unlike the library's check, it lets removals
		// continue.
		gh.WithDisableRateLimitCheck(),
	)
	if err != nil {
		return nil, workload.NewRejected(ReasonConfig, "apiUrl is not a URL: use a URL such as https://api.github.com")
	}

	return out, nil
}

// scope is a repository, an organization if repo is empty, or an enterprise.
type scope struct{ owner, repo, enterprise string }

// String returns the scope's name for people.
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

// path returns the scope's path prefix in the API, without a leading slash.
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

// selectURL returns the URL template of the scope's kind.
func (s scope) selectURL(from v1alpha1.GitHubURLs) string {
	switch {
	case s.enterprise != "":
		return from.Enterprise
	case s.repo == "":
		return from.Organization
	default:
		return from.Repository
	}
}

// webPath returns the scope's path below the web URL, where runners register.
func (s scope) webPath() string {
	switch {
	case s.enterprise != "":
		return "/enterprises/" + s.enterprise
	case s.repo == "":
		return "/" + s.owner
	default:
		return "/" + s.owner + "/" + s.repo
	}
}

// urls contains where the provider sends calls and where runners register.
type urls struct {
	scope             scope
	api               string
	registrationToken string
	runner            string
}

// isValidName reports whether a name has only characters that GitHub allows in names. Other
// characters could change the path of a URL.
func isValidName(name string) bool {
	return regexp.MustCompile(`^[A-Za-z0-9_.-]+$`).MatchString(name) && strings.Trim(name, ".") != ""
}

// resolveURLs returns the URLs of the API, of registration tokens and of runners. The settings can override
// each of them.
func resolveURLs(config *Settings) (urls, error) {
	target, err := parseScope(config)
	if err != nil {
		return urls{}, err
	}

	out := urls{scope: target, api: strings.TrimRight(config.APIURL, "/")}
	if out.api == "" {
		out.api = publicAPI
	}

	if err := validateURL("apiUrl", out.api); err != nil {
		return urls{}, err
	}

	out.registrationToken = cmp.Or(target.expandPlaceholders(target.selectURL(config.RegistrationURLs)),
		out.api+"/"+target.path()+"/actions/runners/registration-token")
	out.runner = cmp.Or(target.expandPlaceholders(target.selectURL(config.RunnerURLs)), deriveWebURL(out.api)+target.webPath())

	if err := validateURL("registrationUrls", out.registrationToken); err != nil {
		return urls{}, err
	}

	return out, validateURL(runnerURLs, out.runner)
}

// listServers returns the servers that receive credentials, or nil if the settings are invalid.
func (s *Settings) listServers() []string {
	urls, err := resolveURLs(s)
	if err != nil {
		return nil
	}

	var out []string

	for _, text := range []string{urls.api, urls.registrationToken} {
		if parsed, err := url.Parse(text); err == nil {
			out = append(out, bounds.Server(parsed))
		}
	}

	return slices.Compact(out)
}

// parseScope returns the scope of the settings. A repository, as name or owner/name, takes precedence over
// an organization, and an organization over an enterprise.
func parseScope(config *Settings) (scope, error) {
	parsed := scope{owner: config.Organization}

	switch {
	case config.Repository != "":
		parsed = scope{owner: config.Owner, repo: config.Repository}
		if owner, name, ok := strings.Cut(config.Repository, "/"); ok {
			parsed = scope{owner: owner, repo: name}
		}
	case config.Organization != "":
		// parsed is the organization.
	case config.Enterprise != "":
		parsed.enterprise = config.Enterprise
	default:
		parsed.owner = config.Owner
	}

	switch {
	case parsed.enterprise != "" && !isValidName(parsed.enterprise):
		return scope{}, workload.NewRejected(ReasonConfig,
			fmt.Sprintf("%q is not a valid slug of an enterprise at GitHub", parsed.enterprise))
	case parsed.enterprise != "":
		return parsed, nil
	case parsed.owner == "":
		return scope{}, workload.NewRejected(ReasonConfig,
			"the scope is missing: set owner and repository, organization or enterprise "+
				"in bootstrap.config.github of the template or in workload.config.github")
	case !isValidName(parsed.owner):
		return scope{}, workload.NewRejected(ReasonConfig,
			fmt.Sprintf("%q is not a valid name of an owner or organization at GitHub", parsed.owner))
	case parsed.repo != "" && !isValidName(parsed.repo):
		return scope{}, workload.NewRejected(ReasonConfig, fmt.Sprintf("%q is not a valid name of a repository at GitHub", parsed.repo))
	}

	return parsed, nil
}

// expandPlaceholders replaces the placeholders of a URL template. For an organization, {owner} and
// {org} are the same. It leaves placeholders that the scope has no value for, and validateURL
// rejects them.
func (s scope) expandPlaceholders(template string) string {
	for placeholder, value := range map[string]string{
		"{owner}": s.owner, "{org}": s.owner, "{repo}": s.repo, "{enterprise}": s.enterprise,
	} {
		if value != "" {
			template = strings.ReplaceAll(template, placeholder, value)
		}
	}

	return template
}

// runnerURLs is the name of the field with the URLs that only runners use. The operator makes no
// calls to them.
const runnerURLs = "runnerUrls"

// validateURL returns an error if a URL cannot be used. The error never quotes a URL that contains
// credentials.
func validateURL(field, text string) error {
	parsed, err := url.Parse(text)

	switch {
	case err != nil:
		return workload.NewRejected(ReasonConfig, field+" is not a URL: use a URL such as https://api.github.com")
	case parsed.User != nil:
		return workload.NewRejected(ReasonConfig, field+" contains credentials: remove them and set app or credentials in the template")
	case parsed.Scheme != "https" && parsed.Scheme != "http", parsed.Host == "":
		return workload.NewRejected(ReasonConfig,
			fmt.Sprintf("%s %q is not an http(s) URL: use a URL such as https://api.github.com", field, text))
	case field != runnerURLs && !bounds.IsSecureURL(parsed):
		return workload.NewRejected(ReasonConfig,
			fmt.Sprintf("%s %q uses plain http, which would expose the credentials: use https", field, text))
	case strings.ContainsAny(parsed.Path, "{}"):
		return workload.NewRejected(ReasonConfig, fmt.Sprintf(
			"%s %q contains a placeholder that is unknown or has no value in this scope: "+
				"the placeholders are {owner}, {repo}, {org} and {enterprise}", field, text))
	}

	return nil
}

// deriveWebURL returns the URL that people and runners use, from the API's URL: github.com,
// SUBDOMAIN.ghe.com, or the host of a GitHub Enterprise Server, whose API is below /api/v3
// (https://docs.github.com/enterprise-server/rest/quickstart).
func deriveWebURL(api string) string {
	if api == publicAPI {
		return "https://github.com"
	}

	if rest, ok := strings.CutPrefix(api, "https://api."); ok && strings.HasSuffix(rest, ".ghe.com") {
		return "https://" + rest
	}

	return strings.TrimSuffix(api, "/api/v3")
}

// resolveApp returns the settings of the App, or nil if a token is used.
func resolveApp(config *Settings) (*App, error) {
	switch {
	case config.App != nil && config.Token != "":
		return nil, workload.NewRejected(ReasonConfig, "a GitHub App and a personal access token are both set: remove one of them")
	case config.App == nil && strings.TrimSpace(config.Token) == "":
		return nil, workload.NewRejected(ReasonCredentials,
			"the credentials are missing: put a GitHub App's key or a personal access token into the Secret "+
				"of bootstrap.config.github.credentials")
	case config.App == nil:
		return nil, nil //nolint:nilnil // nil means that no App is used
	case config.App.AppID == "" || config.App.InstallationID <= 0:
		return nil, workload.NewRejected(ReasonCredentials,
			"the GitHub App's appId or installationId is empty: copy both from the App's settings page")
	}

	return config.App, nil
}

// runnersRequirement returns the permission that managing runners needs, with the names of GitHub's
// settings pages
// (https://docs.github.com/rest/authentication/permissions-required-for-github-apps).
func (s scope) runnersRequirement() string {
	switch {
	case s.enterprise != "":
		return "the scope manage_runners:enterprise of a classic token, " +
			"because GitHub Apps and fine-grained tokens cannot manage the runners of an enterprise"
	case s.repo == "":
		return "the organization permission Self-hosted runners: write (GitHub App or fine-grained token), " +
			"or the scope admin:org (classic token)"
	}

	return "the repository permission Administration: write (GitHub App or fine-grained token), or the scope repo (classic token)"
}

// jobsRequirement is the permission that reading jobs needs.
const jobsRequirement = "the repository permission Actions: read (GitHub App or fine-grained token), " +
	"or the scope repo (classic token)"

// isJITRegistration reports whether the registration is jit, which is the default. It returns an
// error for an unknown registration.
func isJITRegistration(registration string) (bool, error) {
	switch registration {
	case v1alpha1.RegistrationJIT, "":
		return true, nil
	case v1alpha1.RegistrationToken:
		return false, nil
	default:
		return false, workload.NewRejected(ReasonConfig, fmt.Sprintf("registration %q is not valid: use jit or token", registration))
	}
}
