// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

const (
	appID                      = 4711
	clientID                   = "Iv23liSIMULATED"
	authenticateAsInstallation = 815
)

// newRepositoryConfig returns a provider's configuration for the simulator's repository.
func newRepositoryConfig(server *githubtest.Server) *github.Settings {
	return &github.Settings{Token: githubtest.PAT, Owner: "octo-org", Repository: "octo-repo", APIURL: server.URL}
}

func newOrganizationConfig(server *githubtest.Server) *github.Settings {
	return &github.Settings{Token: githubtest.PAT, Organization: githubtest.Org, APIURL: server.URL}
}

func newTestProvider(t *testing.T, config *github.Settings) workload.Provider {
	t.Helper()

	out, err := github.New(github.Config{Settings: config})
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// newProviderWithClock returns a provider with the given clock.
func newProviderWithClock(t *testing.T, config *github.Settings, clk clock.Clock) workload.Provider {
	t.Helper()

	out, err := github.NewWithClock(github.Config{Settings: config}, clk)
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// asInterface converts a provider to an optional interface.
func asInterface[T any](t *testing.T, p workload.Provider) T {
	t.Helper()

	out, ok := p.(T)
	if !ok {
		t.Fatalf("%T does not implement %T", p, &out)
	}

	return out
}

func newRunnerRequest(name string) workload.RunnerRequest {
	return workload.RunnerRequest{Name: name, Labels: github.MergeLabels([]string{"linux"}), Registration: v1alpha1.RegistrationJIT}
}

// newKey creates an App's key and its PEM.
func newKey(t *testing.T) (*rsa.PrivateKey, []byte) {
	t.Helper()

	out, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}

	return out, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(out)})
}

func newAppOptions(public *rsa.PublicKey, permissions map[string]string) sim.Options {
	return sim.Options{App: &sim.App{
		ID: appID, ClientID: clientID, Slug: "hyperfleet", PublicKey: public,
		Installations: []sim.Installation{{ID: authenticateAsInstallation, Account: githubtest.Org, Permissions: permissions}},
	}}
}

func TestRunnerLifecycle(t *testing.T) {
	t.Parallel()

	private, text := newKey(t)
	options := newAppOptions(&private.PublicKey, map[string]string{
		"administration": "write", "organization_self_hosted_runners": "write", "actions": "read",
	})
	options.Enterprise, options.Groups = "corp", []sim.Group{{Owner: "enterprises/corp", Name: "Everywhere"}}
	server := githubtest.New(t, options)

	for name, edit := range map[string]func() *github.Settings{
		"repository, token":   func() *github.Settings { return newRepositoryConfig(server) },
		"organization, token": func() *github.Settings { return newOrganizationConfig(server) },
		"GitHub Enterprise Server": func() *github.Settings {
			config := newRepositoryConfig(server)
			config.APIURL += "/api/v3"

			return config
		},
		"enterprise, token": func() *github.Settings {
			return &github.Settings{Token: githubtest.PAT, Enterprise: "corp", RunnerGroup: "everywhere", APIURL: server.URL}
		},
		"enterprise of a GitHub Enterprise Server": func() *github.Settings {
			return &github.Settings{Token: githubtest.PAT, Enterprise: "corp", APIURL: server.URL + "/api/v3/"}
		},
		"repository, App by its id": func() *github.Settings {
			config := newRepositoryConfig(server)
			config.Token, config.App = "", &github.App{AppID: strconv.Itoa(appID), PrivateKey: text, InstallationID: authenticateAsInstallation}

			return config
		},
		"organization, App by its client id": func() *github.Settings {
			config := newOrganizationConfig(server)
			config.Token, config.App = "", &github.App{AppID: clientID, PrivateKey: text, InstallationID: authenticateAsInstallation}

			return config
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkLifecycle(t, newTestProvider(t, edit()), "life-"+strings.NewReplacer(" ", "-", ",", "").Replace(name))
		})
	}
}

func checkLifecycle(t *testing.T, p workload.Provider, name string) {
	t.Helper()

	if err := p.Validate(t.Context()); err != nil {
		t.Fatalf("Validate: %v", err)
	}

	issued, err := p.IssueCredential(t.Context(), newRunnerRequest(name))
	if err != nil || issued.JITConfig == "" || issued.RunnerID == "" || issued.RunnerToken != "" {
		t.Fatalf("Issue = %+v, %v", issued, err)
	}

	found, err := p.FindRunner(t.Context(), name, 0)
	want := workload.Runner{ID: issued.RunnerID, Name: name, Labels: []string{"self-hosted", "hyperfleet", "ephemeral", "linux"}}

	if diff := cmp.Diff(want, found); err != nil || diff != "" {
		t.Fatalf("Find: %v (-want +got):\n%s", err, diff)
	}

	if all, err := p.ListRunners(t.Context(), name); err != nil || len(all) != 1 {
		t.Errorf("Runners = %v, %v", all, err)
	}

	for range 2 {
		if err := p.Deregister(t.Context(), issued.RunnerID); err != nil {
			t.Errorf("Deregister: %v", err)
		}
	}

	for _, age := range []time.Duration{time.Hour, 0} {
		if _, err := p.FindRunner(t.Context(), name, age); !workload.Is(err, workload.NotFound) {
			t.Errorf("Find after Deregister, at most %s old: %v", age, err)
		}
	}
}

func TestIssueToken(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{Enterprise: "corp"})

	for name, test := range map[string]struct {
		config *github.Settings
		url    string
	}{
		"enterprise": {
			&github.Settings{Token: githubtest.PAT, Enterprise: "corp", APIURL: server.URL + "/api/v3"}, server.URL + "/enterprises/corp",
		},
		"repository":   {newRepositoryConfig(server), server.URL + "/octo-org/octo-repo"},
		"organization": {newOrganizationConfig(server), server.URL + "/octo-org"},
	} {
		p := newTestProvider(t, test.config)
		req := newRunnerRequest("token-" + name)
		req.Registration = v1alpha1.RegistrationToken

		got, err := p.IssueCredential(t.Context(), req)
		if err != nil || got.RunnerToken == "" || got.JITConfig != "" || got.RegistrationURL != test.url {
			t.Errorf("%s: Issue = %+v, %v; want a token for %s", name, got, err, test.url)
		}

		if left := time.Until(got.ExpiresAt); left < 59*time.Minute || left > time.Hour {
			t.Errorf("%s: the token expires in %s", name, left)
		}
	}
}

func TestIssueWithNameTaken(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{})
	p := newTestProvider(t, newRepositoryConfig(server))

	first, err := p.IssueCredential(t.Context(), newRunnerRequest("twice"))
	if err != nil {
		t.Fatal(err)
	}

	second, err := p.IssueCredential(t.Context(), newRunnerRequest("twice"))
	if err != nil || second.RunnerID == first.RunnerID {
		t.Fatalf("an offline remnant is not replaced: %q then %q, %v", first.RunnerID, second.RunnerID, err)
	}

	githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", second.JITConfig)
	server.WaitUntil("the runner is online", func(s control.State) bool { return len(s.Runners) == 1 && s.Runners[0].Online })

	for _, registration := range []string{v1alpha1.RegistrationJIT, v1alpha1.RegistrationToken} {
		req := newRunnerRequest("twice")
		req.Registration = registration

		if _, err := p.IssueCredential(t.Context(), req); !workload.Is(err, workload.Conflict) || !strings.Contains(err.Error(), "twice") {
			t.Errorf("%s: an online runner with the same name: %v", registration, err)
		}
	}

	if state := server.State(); len(state.Runners) != 1 || !state.Runners[0].Online {
		t.Errorf("the online runner was changed: %+v", state.Runners)
	}
}

func TestDeregisterBusyAndJob(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{})
	p := newTestProvider(t, newRepositoryConfig(server))
	queued := server.Queue(control.JobSpec{Labels: []string{"self-hosted", "linux"}, Duration: time.Hour})[0]
	id := strconv.FormatInt(queued.ID, 10)

	job, err := p.GetJob(t.Context(), githubtest.Repo, id)
	if err != nil || job.State != v1alpha1.JobQueued || job.ID != id || job.RunnerName != "" || !cmp.Equal(job.Labels, queued.Labels) {
		t.Fatalf("Job = %+v, %v", job, err)
	}

	issued, err := p.IssueCredential(t.Context(), newRunnerRequest("busy"))
	if err != nil {
		t.Fatal(err)
	}

	githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", issued.JITConfig)
	server.WaitUntil("the job runs", func(s control.State) bool { return s.Jobs[0].Status == "in_progress" })

	if err := p.Deregister(t.Context(), issued.RunnerID); !workload.Is(err, workload.RunnerBusy) {
		t.Errorf("Deregister of a busy runner: %v", err)
	}

	if found, err := p.FindRunner(t.Context(), "busy", 0); err != nil || !found.Busy || !found.Online {
		t.Errorf("Find = %+v, %v", found, err)
	}

	if job, err = p.GetJob(t.Context(), githubtest.Repo, id); err != nil || job.State != v1alpha1.JobRunning || job.RunnerName != "busy" {
		t.Errorf("Job = %+v, %v", job, err)
	}

	if _, err := p.GetJob(t.Context(), githubtest.Repo, "424242"); !workload.Is(err, workload.NotFound) {
		t.Errorf("a job that never was: %v", err)
	}
}

func TestErrorsNameTheFix(t *testing.T) {
	t.Parallel()

	private, text := newKey(t)
	_, otherText := newKey(t)
	options := newAppOptions(&private.PublicKey, map[string]string{"administration": "read", "organization_self_hosted_runners": "read"})
	options.PATs = []sim.PAT{
		{Token: githubtest.PAT, Scopes: []string{"repo", "admin:org"}},
		{Token: "ghp_withoutscopes0000000000000000000000", Scopes: []string{"public_repo"}},
		{Token: "github_pat_readonly00000000000000000000", Permissions: map[string]string{"administration": "read", "metadata": "read"}},
	}
	server := githubtest.New(t, options)

	app := func(config *github.Settings, pem []byte, id int64) {
		config.Token, config.App = "", &github.App{AppID: strconv.Itoa(appID), PrivateKey: pem, InstallationID: id}
	}

	tests := map[string]struct {
		organization bool
		edit         func(*github.Settings)
		reason       string
		message      string
	}{
		"wrong token": {
			edit:   func(c *github.Settings) { c.Token = "ghp_wrongwrongwrongwrongwrongwrongwrong" },
			reason: github.ReasonCredentials, message: "wrong, expired or revoked",
		},
		"classic token without scope": {
			organization: true,
			edit:         func(c *github.Settings) { c.Token = "ghp_withoutscopes0000000000000000000000" },
			reason:       github.ReasonPermission, message: "the scope admin:org (classic token)",
		},
		"fine-grained token with read permission": {
			edit:   func(c *github.Settings) { c.Token = "github_pat_readonly00000000000000000000" },
			reason: github.ReasonPermission, message: "repository permission Administration: write",
		},
		"App with read permission": {
			organization: true, edit: func(c *github.Settings) { app(c, text, authenticateAsInstallation) },
			reason: github.ReasonPermission, message: "organization permission Self-hosted runners: write",
		},
		"App with the key of another App": {
			edit:   func(c *github.Settings) { app(c, otherText, authenticateAsInstallation) },
			reason: github.ReasonCredentials, message: "check appId and privateKey",
		},
		"App not installed there": {
			edit:   func(c *github.Settings) { app(c, text, 99) },
			reason: github.ReasonInstallation, message: "check installationId",
		},
		"missing repository": {
			edit:   func(c *github.Settings) { c.Repository = "nowhere" },
			reason: github.ReasonScope, message: "repository octo-org/nowhere",
		},
		"missing organization": {
			organization: true, edit: func(c *github.Settings) { c.Organization = "nobody" },
			reason: github.ReasonScope, message: "organization nobody",
		},
		"missing enterprise": {
			organization: true, edit: func(c *github.Settings) { c.Organization, c.Enterprise = "", "nobody" },
			reason: github.ReasonScope, message: "enterprise nobody",
		},
		"enterprise without its scope": {
			organization: true, edit: func(c *github.Settings) { c.Organization, c.Enterprise = "", "corp" },
			reason: github.ReasonScope, message: "the scope manage_runners:enterprise of a classic token",
		},
		"missing runner group": {
			organization: true, edit: func(c *github.Settings) { c.RunnerGroup = "gpus" },
			reason: github.ReasonGroup, message: `no runner group "gpus"`,
		},
		"a runner group in a repository": {
			edit:   func(c *github.Settings) { c.RunnerGroup = "gpus" },
			reason: github.ReasonGroup, message: "only organizations and enterprises have groups",
		},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			config := newRepositoryConfig(server)
			if test.organization {
				config = newOrganizationConfig(server)
			}

			test.edit(config)

			err := newTestProvider(t, config).Validate(t.Context())
			checkError(t, err, workload.Rejected, test.reason, test.message)

			if config.Token != "" && strings.Contains(fmt.Sprintf("%v %+v", err, err), config.Token) {
				t.Errorf("the error holds the token: %v", err)
			}
		})
	}
}

func checkError(t *testing.T, err error, kind workload.Kind, reason, message string) {
	t.Helper()

	got, ok := errors.AsType[*workload.Error](err)
	if !ok || got.Kind != kind || got.Reason != reason || !strings.Contains(got.Message, message) {
		t.Errorf("error = %v; want %s %s: ...%s...", err, kind, reason, message)
	}
}

func TestNewRejects(t *testing.T) {
	t.Parallel()

	_, text := newKey(t)

	for name, test := range map[string]struct {
		edit    func(*github.Settings)
		reason  string
		message string
	}{
		"no scope":        {func(c *github.Settings) { c.Owner, c.Repository = "", "" }, github.ReasonConfig, "the scope is missing"},
		"no owner":        {func(c *github.Settings) { c.Owner = "" }, github.ReasonConfig, "the scope is missing"},
		"odd owner":       {func(c *github.Settings) { c.Owner = "a/../b" }, github.ReasonConfig, "a/../b"},
		"odd repository":  {func(c *github.Settings) { c.Repository = ".." }, github.ReasonConfig, ".."},
		"no credentials":  {func(c *github.Settings) { c.Token = " " }, github.ReasonCredentials, "the credentials are missing"},
		"two credentials": {func(c *github.Settings) { c.App = &github.App{} }, github.ReasonConfig, "remove one of them"},
		"no installation": {
			func(c *github.Settings) { c.Token, c.App = "", &github.App{AppID: "1", PrivateKey: text} },
			github.ReasonCredentials, "installationId",
		},
		"no key": {
			func(c *github.Settings) {
				c.Token, c.App = "", &github.App{AppID: "1", PrivateKey: []byte("secret words"), InstallationID: 1}
			},
			github.ReasonCredentials, "PEM",
		},
		"URL with credentials": {
			func(c *github.Settings) { c.APIURL = "https://me:hunter2@ghes.example.com" }, github.ReasonConfig, "contains credentials",
		},
		"no URL": {func(c *github.Settings) { c.APIURL = "ghes.example.com" }, github.ReasonConfig, "ghes.example.com"},
		"invalid enterprise": {
			func(c *github.Settings) { c.Owner, c.Repository, c.Enterprise = "", "", "corp/../orgs" }, github.ReasonConfig, "corp/../orgs",
		},
		"unknown placeholder": {
			func(c *github.Settings) { c.RegistrationURLs.Repository = "https://x/{enterprise}" }, github.ReasonConfig, "placeholder",
		},
	} {
		config := &github.Settings{Token: "ghp_x", Owner: "acme", Repository: "app"}
		test.edit(config)

		_, err := github.New(github.Config{Settings: config})
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkError(t, err, workload.Rejected, test.reason, test.message)

			for _, secret := range []string{"hunter2", "secret words"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error holds a secret: %v", err)
				}
			}
		})
	}

	_, err := github.New(github.Config{})
	checkError(t, err, workload.Rejected, github.ReasonConfig, "bootstrap.config.github")
}

func TestURLs(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		config github.Settings
		want   []string
	}{
		"github.com, repository": {
			github.Settings{Owner: "acme", Repository: "app", Organization: "ignored"},
			[]string{
				"https://api.github.com", "https://api.github.com/repos/acme/app/actions/runners/registration-token",
				"https://github.com/acme/app",
			},
		},
		"github.com, organization": {
			github.Settings{Organization: "acme"},
			[]string{
				"https://api.github.com", "https://api.github.com/orgs/acme/actions/runners/registration-token", "https://github.com/acme",
			},
		},
		"repository as in the pool": {
			github.Settings{Owner: "other", Repository: "acme/app"},
			[]string{
				"https://api.github.com", "https://api.github.com/repos/acme/app/actions/runners/registration-token",
				"https://github.com/acme/app",
			},
		},
		"an owner alone is an organization": {
			github.Settings{Owner: "acme"},
			[]string{
				"https://api.github.com", "https://api.github.com/orgs/acme/actions/runners/registration-token", "https://github.com/acme",
			},
		},
		"GitHub Enterprise Server": {
			github.Settings{Organization: "acme", APIURL: "https://ghes.example.com/api/v3/"},
			[]string{
				"https://ghes.example.com/api/v3", "https://ghes.example.com/api/v3/orgs/acme/actions/runners/registration-token",
				"https://ghes.example.com/acme",
			},
		},
		"data residency": {
			github.Settings{Organization: "acme", APIURL: "https://api.octocorp.ghe.com"},
			[]string{
				"https://api.octocorp.ghe.com", "https://api.octocorp.ghe.com/orgs/acme/actions/runners/registration-token",
				"https://octocorp.ghe.com/acme",
			},
		},
		"templates: {owner} and {org} are equal for an organization": {
			github.Settings{
				Owner: "ignored", Organization: "acme",
				RegistrationURLs: v1alpha1.GitHubURLs{Organization: "https://gw.example.com/orgs/{owner}/token"},
				RunnerURLs:       v1alpha1.GitHubURLs{Organization: "https://github.example.com/{org}"},
			},
			[]string{"https://api.github.com", "https://gw.example.com/orgs/acme/token", "https://github.example.com/acme"},
		},
		"enterprise": {
			github.Settings{Enterprise: "corp"},
			[]string{
				"https://api.github.com", "https://api.github.com/enterprises/corp/actions/runners/registration-token",
				"https://github.com/enterprises/corp",
			},
		},
		"enterprise of a GitHub Enterprise Server": {
			github.Settings{Enterprise: "corp", APIURL: "https://ghes.example.com/api/v3"},
			[]string{
				"https://ghes.example.com/api/v3", "https://ghes.example.com/api/v3/enterprises/corp/actions/runners/registration-token",
				"https://ghes.example.com/enterprises/corp",
			},
		},
		"templates: enterprise": {
			github.Settings{
				Enterprise: "corp", Owner: "ignored",
				RegistrationURLs: v1alpha1.GitHubURLs{Enterprise: "https://gw.example.com/{enterprise}/token"},
				RunnerURLs:       v1alpha1.GitHubURLs{Enterprise: "https://github.example.com/enterprises/{enterprise}"},
			},
			[]string{"https://api.github.com", "https://gw.example.com/corp/token", "https://github.example.com/enterprises/corp"},
		},
		"templates: repository": {
			github.Settings{
				Owner: "acme", Repository: "app",
				RegistrationURLs: v1alpha1.GitHubURLs{Repository: "https://gw.example.com/{org}/{repo}/token"},
				RunnerURLs:       v1alpha1.GitHubURLs{Repository: "https://github.example.com/{owner}/{repo}"},
			},
			[]string{"https://api.github.com", "https://gw.example.com/acme/app/token", "https://github.example.com/acme/app"},
		},
	} {
		got, err := github.ResolveURLs(&test.config)
		if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// A runner of an enterprise takes the jobs of its organizations through its runner group.
func TestEnterpriseRunnerRunsAJob(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{
		Enterprise: "corp", Groups: []sim.Group{{Owner: "enterprises/corp", Name: "Everywhere"}},
	})
	p := newTestProvider(t, &github.Settings{Token: githubtest.PAT, Enterprise: "corp", APIURL: server.URL})
	req := newRunnerRequest("everywhere")
	req.Group = "everywhere"

	issued, err := p.IssueCredential(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}

	server.Queue(control.JobSpec{Labels: []string{"linux"}})

	if code := githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", issued.JITConfig).Wait(); code != 0 {
		t.Errorf("the runner ends with %d", code)
	}

	state := server.State()
	if job := state.Jobs[0]; job.Conclusion != "success" || job.RunnerName != "everywhere" || len(state.Runners) != 0 {
		t.Errorf("job %+v, runners %+v", job, state.Runners)
	}

	req.Group = "nowhere"
	_, err = p.IssueCredential(t.Context(), req)
	checkError(t, err, workload.Rejected, github.ReasonGroup, `enterprise corp has no runner group "nowhere"`)
}
