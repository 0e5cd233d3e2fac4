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

// echoed are platforms that are at a URL.
func echoed() map[string]func(url string) forge {
	all := operator.Platforms()

	return map[string]func(url string) forge{
		v1alpha1.WorkloadGitHubActions: func(url string) forge {
			return forge{
				platform: all[v1alpha1.WorkloadGitHubActions],
				config:   v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{APIURL: url}},
				load:     v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{Repository: githubtest.Repo, Labels: []string{"linux"}}},
			}
		},
		v1alpha1.WorkloadGitLabCI: func(url string) forge {
			return forge{
				platform: all[v1alpha1.WorkloadGitLabCI],
				config:   v1alpha1.BootstrapConfig{GitLab: &v1alpha1.GitLabBootstrap{}},
				load: v1alpha1.WorkloadConfig{
					GitLab: &v1alpha1.GitLabCIConfig{URL: url, ProjectID: gitlabtest.Project, Tags: []string{"linux"}},
				},
			}
		},
		v1alpha1.WorkloadForgejoActions: func(url string) forge {
			return forge{
				platform: all[v1alpha1.WorkloadForgejoActions],
				config:   v1alpha1.BootstrapConfig{Forgejo: &v1alpha1.GiteaBootstrap{}},
				load:     v1alpha1.WorkloadConfig{Forgejo: &v1alpha1.GiteaConfig{URL: url, Repository: "acme/shop", Labels: []string{"linux"}}},
			}
		},
		v1alpha1.WorkloadGiteaActions: func(url string) forge {
			return forge{
				platform: all[v1alpha1.WorkloadGiteaActions],
				config:   v1alpha1.BootstrapConfig{Gitea: &v1alpha1.GiteaBootstrap{}},
				load:     v1alpha1.WorkloadConfig{Gitea: &v1alpha1.GiteaConfig{URL: url, Repository: "acme/shop", Labels: []string{"linux"}}},
			}
		},
		v1alpha1.WorkloadBuildkite: func(url string) forge {
			return forge{
				platform: all[v1alpha1.WorkloadBuildkite],
				config:   v1alpha1.BootstrapConfig{Buildkite: &v1alpha1.BuildkiteBootstrap{Endpoint: url}},
				load:     v1alpha1.WorkloadConfig{Buildkite: &v1alpha1.BuildkiteConfig{Organization: buildkitetest.Organization}},
			}
		},
	}
}

// Whatever is asked of a platform that repeats what it is asked with, the error does not
// repeat the credential, nor does any error within it.
func TestPlatformsThatRepeatSecrets(t *testing.T) {
	t.Parallel()

	for _, status := range []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusConflict,
		http.StatusUnprocessableEntity, http.StatusInternalServerError} {
		for name, open := range echoed() {
			t.Run(fmt.Sprintf("%s/%d", name, status), func(t *testing.T) {
				t.Parallel()

				var (
					scanner secrets.Scanner
					asked   atomic.Int64
				)

				value, answer := unguessable(t, ""), echo(status)
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					asked.Add(1)
					// As it is, without the words around it that it would be known by.
					if strings.Contains(fmt.Sprint(r.Header), value) {
						r.Header.Set("Authorization", value)
					}

					answer(w, r)
				}))
				t.Cleanup(server.Close)

				site := open(server.URL)
				site.secrets = map[string]string{"token": value}
				scanner.Register(secrets.Secret{Name: "the token", Value: value})

				site.fails(t, &asked, func(call string, err error) {
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

// errNetwork is what a network that leads nowhere says.
var errNetwork = errors.New("this address is not called")

// nowhere is a network that leads nowhere, and counts what was to be sent.
type nowhere struct{ asked atomic.Int64 }

func (n *nowhere) RoundTrip(*http.Request) (*http.Response, error) {
	n.asked.Add(1)

	return nil, errNetwork
}

// Which addresses a platform may be at is decided where they are dialled, so that a provider
// takes no other way to its platform than the one it was given.
func TestPlatformsUseTheNetworkTheyAreGiven(t *testing.T) {
	t.Parallel()

	for name, open := range echoed() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var heard atomic.Int64

			server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { heard.Add(1) }))
			t.Cleanup(server.Close)

			network := &nowhere{}
			site := open(server.URL)
			site.secrets, site.network = map[string]string{"token": unguessable(t, "")}, network

			site.fails(t, &network.asked, func(string, error) {})

			if n := heard.Load(); n > 0 {
				t.Errorf("%d calls went another way", n)
			}
		})
	}
}

// fails makes each call of a provider, which fails, and asks the platform, and hands its error on.
func (f forge) fails(t *testing.T, asked *atomic.Int64, failed func(call string, err error)) {
	t.Helper()

	for call, do := range f.calls(t) {
		before := asked.Load()
		err := do()

		// Buildkite has no list of agents: its runners are the jobs that were reserved.
		unasked := f.config.Buildkite != nil && (call == "Find" || call == "Runners")
		if asks := asked.Load() > before; asks == unasked || asks && err == nil {
			t.Errorf("%s: asked %t, error %v", call, asks, err)
		}

		failed(call, err)
	}
}

// calls are those of a provider.
func (f forge) calls(t *testing.T) map[string]func() error {
	t.Helper()

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.Bootstrap.Config = &f.config
	f.config.HTTPClient = &v1alpha1.HTTPClient{TimeoutSeconds: 5}

	runner, err := f.platform.ResolveRunner(template, v1alpha1.Workload{Config: &f.load})
	if err != nil {
		t.Fatal(err)
	}

	provider, err := f.platform.Open(workload.Config{Runner: runner, Template: template, Secrets: f.secrets, Network: f.network})
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
