// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/buildkitetest"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
	"github.com/hyperfleet/hyperfleet/test/secrets"
	"github.com/hyperfleet/hyperfleet/workload"
)

// listPlatforms returns the platforms by name. Each function returns a platform at a URL.
func listPlatforms() map[string]func(url string) testPlatform {
	all := operator.Platforms()

	return map[string]func(url string) testPlatform{
		v1alpha1.WorkloadGitHubActions: func(url string) testPlatform {
			return testPlatform{
				platform: all[v1alpha1.WorkloadGitHubActions],
				config:   v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{APIURL: url}},
				workload: v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{Repository: githubtest.Repo, Labels: []string{"linux"}}},
			}
		},
		v1alpha1.WorkloadGitLabCI: func(url string) testPlatform {
			return testPlatform{
				platform: all[v1alpha1.WorkloadGitLabCI],
				config:   v1alpha1.BootstrapConfig{GitLab: &v1alpha1.GitLabBootstrap{}},
				workload: v1alpha1.WorkloadConfig{
					GitLab: &v1alpha1.GitLabCIConfig{URL: url, ProjectID: gitlabtest.Project, Tags: []string{"linux"}},
				},
			}
		},
		v1alpha1.WorkloadForgejoActions: func(url string) testPlatform {
			return testPlatform{
				platform: all[v1alpha1.WorkloadForgejoActions],
				config:   v1alpha1.BootstrapConfig{Forgejo: &v1alpha1.GiteaBootstrap{}},
				workload: v1alpha1.WorkloadConfig{Forgejo: &v1alpha1.GiteaConfig{URL: url, Repository: "acme/shop", Labels: []string{"linux"}}},
			}
		},
		v1alpha1.WorkloadGiteaActions: func(url string) testPlatform {
			return testPlatform{
				platform: all[v1alpha1.WorkloadGiteaActions],
				config:   v1alpha1.BootstrapConfig{Gitea: &v1alpha1.GiteaBootstrap{}},
				workload: v1alpha1.WorkloadConfig{Gitea: &v1alpha1.GiteaConfig{URL: url, Repository: "acme/shop", Labels: []string{"linux"}}},
			}
		},
		v1alpha1.WorkloadBuildkite: func(url string) testPlatform {
			return testPlatform{
				platform: all[v1alpha1.WorkloadBuildkite],
				config:   v1alpha1.BootstrapConfig{Buildkite: &v1alpha1.BuildkiteBootstrap{Endpoint: url}},
				workload: v1alpha1.WorkloadConfig{Buildkite: &v1alpha1.BuildkiteConfig{Organization: buildkitetest.Organization}},
			}
		},
	}
}

// If a platform repeats the credential in its response, no error of a provider repeats it, and neither does a
// wrapped error.
func TestPlatformsThatRepeatSecrets(t *testing.T) {
	t.Parallel()

	for _, status := range []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusConflict,
		http.StatusUnprocessableEntity, http.StatusInternalServerError} {
		for name, newPlatform := range listPlatforms() {
			t.Run(fmt.Sprintf("%s/%d", name, status), func(t *testing.T) {
				t.Parallel()

				var (
					scanner  secrets.Scanner
					requests atomic.Int64
				)

				value, answer := newCredential(t, ""), newEchoHandler(status)
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					requests.Add(1)
					// Without the prefix by which code might recognize the credential.
					if strings.Contains(fmt.Sprint(r.Header), value) {
						r.Header.Set("Authorization", value)
					}

					answer(w, r)
				}))
				t.Cleanup(server.Close)

				site := newPlatform(server.URL)
				site.secrets = map[string]string{"token": value}
				scanner.Register(secrets.Secret{Name: "the token", Value: value})

				site.requireErrors(t, &requests, func(call string, err error) {
					for ; err != nil; err = errors.Unwrap(err) {
						scanner.Scan(call, "its error", fmt.Appendf(nil, "%v %+v", err, err))
					}
				})

				for _, finding := range scanner.Findings() {
					t.Error(finding)
				}
			})
		}
	}
}

// errNetwork is the error of every request to an unreachable network.
var errNetwork = errors.New("this address is not called")

// unreachableNetwork is a transport that refuses and counts all requests.
type unreachableNetwork struct{ requests atomic.Int64 }

func (n *unreachableNetwork) RoundTrip(*http.Request) (*http.Response, error) {
	n.requests.Add(1)

	return nil, errNetwork
}

// The transport decides which addresses may be called, so providers must use no other transport.
func TestPlatformsUseTheNetworkTheyAreGiven(t *testing.T) {
	t.Parallel()

	for name, newPlatform := range listPlatforms() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var otherRequests atomic.Int64

			server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { otherRequests.Add(1) }))
			t.Cleanup(server.Close)

			network := &unreachableNetwork{}
			site := newPlatform(server.URL)
			site.secrets, site.network = map[string]string{"token": newCredential(t, "")}, network

			site.requireErrors(t, &network.requests, func(string, error) {})

			if n := otherRequests.Load(); n > 0 {
				t.Errorf("%d requests did not use the given transport", n)
			}
		})
	}
}

// requireErrors calls each method of a provider, and passes its error on. Each call must send a request and
// must fail.
func (f testPlatform) requireErrors(t *testing.T, requests *atomic.Int64, failed func(call string, err error)) {
	t.Helper()

	for call, do := range f.listCalls(t) {
		before := requests.Load()
		err := do()

		// Buildkite has no list of agents. Its runners are the reserved jobs.
		isUnsupported := f.config.Buildkite != nil && (call == "Find" || call == "Runners")
		if hasRequested := requests.Load() > before; hasRequested == isUnsupported || hasRequested && err == nil {
			t.Errorf("%s: request sent: %t, error: %v", call, hasRequested, err)
		}

		failed(call, err)
	}
}

// listCalls returns a call of each method of a provider.
func (f testPlatform) listCalls(t *testing.T) map[string]func() error {
	t.Helper()

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.Bootstrap.Config = &f.config
	f.config.HTTPClient = &v1alpha1.HTTPClient{TimeoutSeconds: 5}

	runner, err := f.platform.ResolveRunner(template, v1alpha1.Workload{Config: &f.workload})
	if err != nil {
		t.Fatal(err)
	}

	provider, err := f.platform.Open(workload.Config{Runner: runner, Template: template, Secrets: f.secrets, BaseTransport: f.network})
	if err != nil {
		t.Fatal(err)
	}

	ctx, id := t.Context(), "77"
	if f.config.Buildkite != nil {
		id = string(uuid.NewUUID())
	}

	out := map[string]func() error{
		"Validate":   func() error { return provider.Validate(ctx) },
		"Deregister": func() error { return provider.Deregister(ctx, id) },
		"Issue": func() error {
			_, err := provider.IssueCredential(ctx, workload.RunnerRequest{
				Name: "vm-1", Labels: []string{"linux"}, WorkDir: "/tmp/work", Job: &workload.Job{ID: id, Platform: runner.Platform},
			})

			return err
		},
		"Find": func() error {
			_, err := provider.FindRunner(ctx, "vm-1", 0)

			return err
		},
		"Runners": func() error {
			_, err := provider.ListRunners(ctx, "vm-")

			return err
		},
		"Job": func() error {
			_, err := provider.GetJob(ctx, githubtest.Repo, id)

			return err
		},
	}

	if poller, ok := provider.(workload.Poller); ok {
		out["Jobs"] = func() error {
			_, err := poller.ListJobs(ctx, []string{githubtest.Repo})

			return err
		}
	}

	return out
}
