// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	sim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// scopedSpec contains the fields of a workload.RunnerSpec that are merged from several settings.
type scopedSpec struct {
	scope  workload.Scope
	labels []string
	group  string
}

// secretCase holds the values of Secrets by their keys, and the reason of the error that they cause.
type secretCase struct {
	secret map[string]string
	reason string
}

func selectSecret(key string) v1alpha1.SecretValueSource {
	return v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: "github", Key: key}}
}

// checkSecretCases opens the provider of a template with the values of Secrets that the template names.
func checkSecretCases(t *testing.T, settings *v1alpha1.GitHubBootstrap, cases map[string]secretCase) {
	t.Helper()

	template := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t"}}
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: settings}
	platform := github.NewPlatform()

	runner, err := platform.ResolveRunner(template, v1alpha1.Workload{Type: v1alpha1.WorkloadGitHubActions})
	if err != nil {
		t.Fatal(err)
	}

	for name, tc := range cases {
		secrets := map[string]string{}
		for name, source := range runner.Secrets {
			secrets[name] = tc.secret[source.SecretKeyRef.Key]
		}

		p, err := platform.Open(workload.Config{Runner: runner, Template: template, Secrets: secrets})
		if err == nil {
			err = p.Validate(t.Context())
		}

		reason := errclass.ReasonOf(err, "")
		if platformErr, ok := errors.AsType[*workload.Error](err); ok {
			reason = platformErr.Reason
		}

		if reason != tc.reason || (err == nil) != (tc.reason == "") {
			t.Errorf("%s: %v, want reason %q", name, err, tc.reason)
		}
	}
}

// The App of a template is the one in the Secrets that the template names.
func TestAppOfTheSecrets(t *testing.T) {
	t.Parallel()

	private, key := newKey(t)
	_, otherKey := newKey(t)
	server := githubtest.New(t, newAppOptions(&private.PublicKey, map[string]string{"organization_self_hosted_runners": "write"}))

	checkSecretCases(t, &v1alpha1.GitHubBootstrap{
		Organization: githubtest.Org, APIURL: server.URL, App: &v1alpha1.GitHubApp{
			AppID: selectSecret("id"), PrivateKey: selectSecret("key"), InstallationID: selectSecret("installation"),
		},
	}, map[string]secretCase{
		"complete":             {map[string]string{"id": "4711", "key": string(key), "installation": " 815\n"}, ""},
		"another App":          {map[string]string{"id": "4712", "key": string(key), "installation": "815"}, github.ReasonCredentials},
		"another App's key":    {map[string]string{"id": "4711", "key": string(otherKey), "installation": "815"}, github.ReasonCredentials},
		"another installation": {map[string]string{"id": "4711", "key": string(key), "installation": "816"}, github.ReasonInstallation},
		"no number":            {map[string]string{"id": "4711", "key": string(key), "installation": "x"}, "InstallationIDInvalid"},
	})
}

// The token of a template is the one in the Secret that the template names.
func TestTokenOfTheSecret(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{})

	checkSecretCases(t, &v1alpha1.GitHubBootstrap{
		Organization: githubtest.Org, APIURL: server.URL, Credentials: new(selectSecret("pat")),
	}, map[string]secretCase{
		"the token":      {map[string]string{"pat": githubtest.PAT + "\n", "other": "x"}, ""},
		"another token":  {map[string]string{"pat": "github_pat_other", "other": githubtest.PAT}, github.ReasonCredentials},
		"an empty value": {map[string]string{"pat": "", "other": githubtest.PAT}, github.ReasonCredentials},
	})
}

func TestPlatformRunner(t *testing.T) {
	t.Parallel()

	template := func(g *v1alpha1.GitHubBootstrap) *v1alpha1.HypervisorMachineTemplate {
		out := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t"}}
		if g != nil {
			out.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: g}
		}

		return out
	}
	pool := func(g *v1alpha1.GitHubActionsConfig) v1alpha1.Workload {
		return v1alpha1.Workload{Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{GitHub: g}}
	}

	cases := map[string]struct {
		template *v1alpha1.HypervisorMachineTemplate
		load     v1alpha1.Workload
		want     scopedSpec
		reason   string
	}{
		"repository takes precedence over organization in the same settings": {
			template(&v1alpha1.GitHubBootstrap{Owner: "o", Repository: "r", Organization: "g"}), pool(nil),
			scopedSpec{scope: workload.Scope{Repository: "o/r"}}, "",
		},
		"the pool's organization takes precedence over the template's repository": {
			template(&v1alpha1.GitHubBootstrap{Owner: "o", Repository: "r"}),
			pool(&v1alpha1.GitHubActionsConfig{Organization: "g", Labels: []string{"x"}, RunnerGroup: "fast"}),
			scopedSpec{workload.Scope{Organization: "g"}, []string{"x"}, "fast"}, "",
		},
		"a pool without settings": {
			template(&v1alpha1.GitHubBootstrap{Owner: "o", Repository: "r"}), pool(&v1alpha1.GitHubActionsConfig{}),
			scopedSpec{scope: workload.Scope{Repository: "o/r"}}, "",
		},
		"the template's organization takes precedence over its owner": {
			template(&v1alpha1.GitHubBootstrap{Owner: "o", Organization: "g"}), pool(nil),
			scopedSpec{scope: workload.Scope{Organization: "g"}}, "",
		},
		"the pool's repository takes precedence over its organization": {
			template(&v1alpha1.GitHubBootstrap{Organization: "g"}), pool(&v1alpha1.GitHubActionsConfig{Repository: "a/b", Organization: "o"}),
			scopedSpec{scope: workload.Scope{Repository: "a/b"}}, "",
		},
		"an owner alone is an organization": {
			template(&v1alpha1.GitHubBootstrap{Owner: "o"}), pool(nil), scopedSpec{scope: workload.Scope{Organization: "o"}}, "",
		},
		"an enterprise is used last": {
			template(&v1alpha1.GitHubBootstrap{Enterprise: "corp"}), pool(nil), scopedSpec{scope: workload.Scope{Enterprise: "corp"}}, "",
		},
		"no scope at all is named":    {template(&v1alpha1.GitHubBootstrap{}), pool(nil), scopedSpec{}, "ScopeMissing"},
		"no scope and no credentials": {template(nil), pool(nil), scopedSpec{}, "BootstrapIncomplete"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := github.Platform{}.ResolveRunner(tc.template, tc.load)
			if reason := errclass.ReasonOf(err, ""); reason != tc.reason {
				t.Fatalf("error %v, want reason %q", err, tc.reason)
			}

			seen := scopedSpec{got.Scope, got.Labels[len(github.DefaultLabels()):], got.Group}
			if diff := cmp.Diff(tc.want, seen, cmpopts.EquateEmpty(), cmp.AllowUnexported(scopedSpec{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestDownloadIsForThePlatformOfTheRunner checks that the placeholders in the URL of the runner are replaced.
func TestDownloadIsForThePlatformOfTheRunner(t *testing.T) {
	t.Parallel()

	const sum = "29fc8cf2dab4c195bb147384e7e2c94cfd4d4022c793b346a6175435265aa278"

	for name, tc := range map[string]struct {
		runner v1alpha1.GitHubRunner
		want   string
	}{
		"the defaults":         {v1alpha1.GitHubRunner{DownloadURL: "https://x.example/{os}-{arch}.tgz"}, "https://x.example/linux-x64.tgz"},
		"another architecture": {v1alpha1.GitHubRunner{DownloadURL: "https://x.example/{arch}/{arch}", Arch: "arm64"}, "https://x.example/arm64/arm64"},
		"no placeholder":       {v1alpha1.GitHubRunner{DownloadURL: "https://x.example/runner.tgz"}, "https://x.example/runner.tgz"},
	} {
		tc.runner.DownloadSHA256 = sum
		template := &v1alpha1.HypervisorMachineTemplate{}
		template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{Owner: "o", Runner: &tc.runner}}

		got, err := github.Platform{}.ResolveRunner(template, v1alpha1.Workload{})
		if err != nil || got.Program.DownloadURL != tc.want || got.Program.DownloadSHA256 != sum {
			t.Errorf("%s: %+v, %v; want a download from %s", name, got.Program, err, tc.want)
		}
	}
}

// TestTimeoutIsThatOfTheTemplate checks that calls have the timeout of the template, or 30 seconds.
func TestTimeoutIsThatOfTheTemplate(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{})

	for seconds, want := range map[int32]time.Duration{7: 7 * time.Second, 0: 30 * time.Second} {
		template := &v1alpha1.HypervisorMachineTemplate{}
		template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{
			GitHub: &v1alpha1.GitHubBootstrap{Organization: githubtest.Org, APIURL: server.URL},
		}

		if seconds > 0 {
			template.Spec.Bootstrap.Config.HTTPClient = &v1alpha1.HTTPClient{TimeoutSeconds: seconds}
		}

		runner, err := github.Platform{}.ResolveRunner(template, v1alpha1.Workload{})
		if err != nil || runner.Timeout != time.Duration(seconds)*time.Second {
			t.Errorf("timeout %s, %v", runner.Timeout, err)
		}

		// http.Client gives its timeout to the transport as a deadline.
		calls := 0
		start := time.Now()
		network := retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			calls++

			end, hasEnd := r.Context().Deadline()
			if !hasEnd || end.Before(start.Add(want)) || end.After(time.Now().Add(want)) {
				t.Errorf("%s ends at %s after %s, want a timeout of %s", r.URL.Path, end, start, want)
			}

			return http.DefaultTransport.RoundTrip(r)
		})

		p, err := github.NewPlatform().Open(workload.Config{
			Runner: runner, Template: template, Secrets: map[string]string{"token": githubtest.PAT}, BaseTransport: network,
		})
		if err != nil {
			t.Fatal(err)
		}

		if err := p.Validate(t.Context()); err != nil || calls == 0 {
			t.Errorf("%d calls, %v", calls, err)
		}
	}
}

// A template's URLs with placeholders, and its scope, determine where the operator gets a registration token and where
// the runner registers.
func TestURLsOfTheTemplate(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{})
	platform := github.NewPlatform()

	for name, tc := range map[string]struct {
		settings v1alpha1.GitHubBootstrap
		path     string // of the call for the token
		want     string
	}{
		"repository": {
			v1alpha1.GitHubBootstrap{Owner: "octo-org", Repository: "octo-repo"},
			"/api/v3/repos/octo-org/octo-repo/actions/runners/registration-token", "https://web.example/octo-org/octo-repo",
		},
		"organization": {
			v1alpha1.GitHubBootstrap{Organization: "octo-org"},
			"/api/v3/orgs/octo-org/actions/runners/registration-token", "https://web.example/orgs/octo-org",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var paths []string

			network := retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPost {
					paths = append(paths, r.URL.Path)
				}

				return http.DefaultTransport.RoundTrip(r)
			})
			tc.settings.APIURL, tc.settings.Registration = server.URL, v1alpha1.RegistrationToken
			tc.settings.RegistrationURLs = &v1alpha1.GitHubURLs{
				Repository:   server.URL + "/api/v3/repos/{owner}/{repo}/actions/runners/registration-token",
				Organization: server.URL + "/api/v3/orgs/{org}/actions/runners/registration-token",
			}
			tc.settings.RunnerURLs = &v1alpha1.GitHubURLs{
				Repository: "https://web.example/{owner}/{repo}", Organization: "https://web.example/orgs/{org}",
			}
			template := &v1alpha1.HypervisorMachineTemplate{}
			template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &tc.settings}

			runner, err := platform.ResolveRunner(template, v1alpha1.Workload{})
			if err != nil {
				t.Fatal(err)
			}

			p, err := platform.Open(workload.Config{
				Runner: runner, Template: template, Secrets: map[string]string{"token": githubtest.PAT}, BaseTransport: network,
			})
			if err != nil {
				t.Fatal(err)
			}

			req := newRunnerRequest("r")
			req.Registration = runner.Registration

			issued, err := p.IssueCredential(t.Context(), req)
			if err != nil || issued.RegistrationURL != tc.want || issued.RunnerToken == "" {
				t.Errorf("Issue = %+v, %v", issued, err)
			}

			if diff := cmp.Diff([]string{tc.path}, paths); diff != "" {
				t.Errorf("calls that create (-want +got):\n%s", diff)
			}
		})
	}
}

// A template's enterprise settings reach the provider, including placeholders.
func TestPlatformOpensAnEnterprise(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{Enterprise: "corp"})
	template := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t"}}
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{
		Enterprise: "corp", APIURL: server.URL, Registration: v1alpha1.RegistrationToken,
		RegistrationURLs: &v1alpha1.GitHubURLs{Enterprise: server.URL + "/enterprises/{enterprise}/actions/runners/registration-token"},
		RunnerURLs:       &v1alpha1.GitHubURLs{Enterprise: server.URL + "/enterprises/{enterprise}"},
	}}
	platform := github.NewPlatform()

	runner, err := platform.ResolveRunner(template, v1alpha1.Workload{})
	if err != nil || runner.Scope != (workload.Scope{Enterprise: "corp"}) {
		t.Fatalf("Runner = %+v, %v", runner, err)
	}

	p, err := platform.Open(workload.Config{
		Runner: runner, Template: template, Secrets: map[string]string{"token": githubtest.PAT},
	})
	if err != nil {
		t.Fatal(err)
	}

	if err := p.Validate(t.Context()); err != nil {
		t.Error(err)
	}

	req := newRunnerRequest("r")
	req.Registration = runner.Registration

	issued, err := p.IssueCredential(t.Context(), req)
	if err != nil || issued.RegistrationURL != server.URL+"/enterprises/corp" || issued.RunnerToken == "" {
		t.Fatalf("Issue = %+v, %v", issued, err)
	}

	// The runner program registers at this URL.
	dir := t.TempDir()
	if code := githubtest.StartRunner(t, dir, "config", "--unattended", "--ephemeral", "--url", issued.RegistrationURL,
		"--token", issued.RunnerToken, "--name", "r", "--labels", "x").Wait(); code != 0 {
		t.Fatalf("config ends with %d", code)
	}

	if state := server.State(); len(state.Runners) != 1 || state.Runners[0].Scope != "enterprises/corp" {
		t.Errorf("runners %+v", state.Runners)
	}
}

func TestRunnerName(t *testing.T) {
	t.Parallel()

	const uid = types.UID("12345678-9abc-def0-1234-56789abcdef0")

	for claim, want := range map[string]string{
		"pool-x7k2p":                         "pool-x7k2p-12345678",
		strings.Repeat("a", 63):              strings.Repeat("a", 55) + "-12345678",
		strings.Repeat("a", 54) + "-bcdefgh": strings.Repeat("a", 54) + "-12345678",
	} {
		if got := workload.RunnerName(claim, uid); got != want || len(got) > 64 {
			t.Errorf("RunnerName(%q) = %q, want %q", claim, got, want)
		}
	}

	if got := workload.RunnerName("claim", "ab"); got != "claim-ab" {
		t.Errorf("a short uid: %q", got)
	}

	if got := workload.RunnerName("claim", ""); got != "claim" {
		t.Errorf("no uid: %q", got)
	}
}

func TestRunnerLabels(t *testing.T) {
	t.Parallel()

	got := github.MergeLabels([]string{"Linux", "linux", " gpu ", "Self-Hosted", "", "x64"})
	want := []string{"self-hosted", "hyperfleet", "ephemeral", "Linux", "gpu", "x64"}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("RunnerLabels (-want +got):\n%s", diff)
	}
}

// There are few operation names, whatever names and numbers the paths contain.
func TestOperationsHaveNoNames(t *testing.T) {
	t.Parallel()

	for path, want := range map[string]string{
		"/repos/octo-org/octo-repo/actions/runners/17":             "GET /repos/{owner}/{repo}/actions/runners/{}",
		"/orgs/octo-org/actions/runners/generate-jitconfig":        "GET /orgs/{}/actions/runners/generate-jitconfig",
		"/actions/runner-registration":                             "GET /actions/runner-registration",
		"/tenant/_apis/runtime/runnerscalesets":                    "GET /_apis/runtime/runnerscalesets",
		"/tenant/_apis/runtime/runnerscalesets/4/acquirejobs":      "GET /_apis/runtime/runnerscalesets/{}/acquirejobs",
		"/_services/a/_apis/runtime/runnerscalesets/4/sessions/ab": "GET /_apis/runtime/runnerscalesets/{}/sessions/{}",
		"/scalesets/message":                                       "GET /scalesets/message",
		"/scalesets/message/100000170":                             "GET /scalesets/message/{}",
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com"+path, http.NoBody)
		if got := github.OperationName(r); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}
