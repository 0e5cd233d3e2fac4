// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// startServer starts a tenant's server, which accepts and counts connections, and sends nothing.
func startServer(t *testing.T) (url string, connections *atomic.Int64) {
	t.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = listener.Close() })

	connections = &atomic.Int64{}

	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}

			connections.Add(1)

			_ = conn.Close()
		}
	}()

	return "http://" + listener.Addr().String(), connections
}

// newSharedRef refers to a key of the platform team's Secret.
func newSharedRef(namespace, key string) v1alpha1.SecretValueSource {
	return v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Namespace: namespace, Name: "shared", Key: key}}
}

// listThefts returns configurations that would send the credentials of another namespace's Secret to url.
func listThefts(other, url string) map[string]func(*v1alpha1.BootstrapConfig, *v1alpha1.Workload) {
	token := newSharedRef(other, "token")
	gitHub := func(change func(*v1alpha1.GitHubBootstrap)) func(*v1alpha1.BootstrapConfig, *v1alpha1.Workload) {
		return func(config *v1alpha1.BootstrapConfig, _ *v1alpha1.Workload) {
			config.GitHub.Credentials = &token
			change(config.GitHub)
		}
	}

	return map[string]func(*v1alpha1.BootstrapConfig, *v1alpha1.Workload){
		"github-token": gitHub(func(g *v1alpha1.GitHubBootstrap) { g.APIURL = url }),
		"github-app": gitHub(func(g *v1alpha1.GitHubBootstrap) {
			g.APIURL, g.Credentials = url, nil
			g.App = &v1alpha1.GitHubApp{
				AppID: newSharedRef(other, "app"), InstallationID: newSharedRef(other, "installation"), PrivateKey: newSharedRef(other, "key"),
			}
		}),
		"github-registration": gitHub(func(g *v1alpha1.GitHubBootstrap) {
			g.Registration = v1alpha1.RegistrationToken
			g.RegistrationURLs = &v1alpha1.GitHubURLs{Repository: url + "/{owner}/{repo}"}
		}),
		"gitlab": func(config *v1alpha1.BootstrapConfig, load *v1alpha1.Workload) {
			*config = v1alpha1.BootstrapConfig{GitLab: &v1alpha1.GitLabBootstrap{Credentials: token}}
			*load = v1alpha1.Workload{Type: v1alpha1.WorkloadGitLabCI, Config: &v1alpha1.WorkloadConfig{
				GitLab: &v1alpha1.GitLabCIConfig{URL: url, ProjectID: "acme/shop", Tags: []string{"linux"}},
			}}
		},
		"buildkite": func(config *v1alpha1.BootstrapConfig, load *v1alpha1.Workload) {
			*config = v1alpha1.BootstrapConfig{Buildkite: &v1alpha1.BuildkiteBootstrap{Credentials: token, Endpoint: url}}
			*load = v1alpha1.Workload{Type: v1alpha1.WorkloadBuildkite, Config: &v1alpha1.WorkloadConfig{
				Buildkite: &v1alpha1.BuildkiteConfig{Organization: "acme"},
			}}
		},
		"gitea": func(config *v1alpha1.BootstrapConfig, load *v1alpha1.Workload) {
			*config = v1alpha1.BootstrapConfig{Gitea: &v1alpha1.GiteaBootstrap{Credentials: token}}
			*load = v1alpha1.Workload{Type: v1alpha1.WorkloadGiteaActions, Config: &v1alpha1.WorkloadConfig{
				Gitea: &v1alpha1.GiteaConfig{URL: url, Repository: "acme/shop", Labels: []string{"linux"}},
			}}
		},
		"forgejo": func(config *v1alpha1.BootstrapConfig, load *v1alpha1.Workload) {
			*config = v1alpha1.BootstrapConfig{Forgejo: &v1alpha1.GiteaBootstrap{Credentials: token}}
			*load = v1alpha1.Workload{Type: v1alpha1.WorkloadForgejoActions, Config: &v1alpha1.WorkloadConfig{
				Forgejo: &v1alpha1.GiteaConfig{URL: url, Repository: "acme/shop", Labels: []string{"linux"}},
			}}
		},
	}
}

// TestPlatformsNameTheirServers checks that listThefts has a configuration for each platform with a credential,
// and that the platform returns the server to which the credential would be sent. A platform that returns no
// server could send it anywhere.
func TestPlatformsNameTheirServers(t *testing.T) {
	t.Parallel()

	const server = "git.example.com"

	seen := map[string]bool{v1alpha1.WorkloadGeneric: true} // the generic platform has no server

	for name, steal := range listThefts("other", "https://"+server) {
		template := &v1alpha1.HypervisorMachineTemplate{}
		template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{Owner: "acme", Repository: "shop"}}
		load := v1alpha1.Workload{Type: v1alpha1.WorkloadGitHubActions}
		steal(template.Spec.Bootstrap.Config, &load)

		seen[load.Type] = true

		runner, err := operator.Platforms()[load.Type].ResolveRunner(template, load)
		if err != nil || len(runner.Secrets) == 0 || !slices.Contains(runner.Servers, server) {
			t.Errorf("%s: secrets %v go to %v (error %v), want %s among them", name, runner.Secrets, runner.Servers, err, server)
		}
	}

	for name := range operator.Platforms() {
		if !seen[name] {
			t.Errorf("%s: add a configuration to listThefts", name)
		}
	}
}

// TestCredentialsGoOnlyWhereTheirOwnerAllows checks that a tenant that may use another namespace's Secret cannot
// make the operator send it to a server of the tenant.
func TestCredentialsGoOnlyWhereTheirOwnerAllows(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	url, connections := startServer(t)
	other := env.Namespace(t)

	f.Create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: other, Name: "shared", Annotations: map[string]string{v1alpha1.AnnotationAllowedNamespaces: f.Namespace},
		},
		StringData: map[string]string{"token": githubtest.PAT, "app": "1", "installation": "1", "key": "x"},
	})
	f.CreateCluster(f.NewCluster())
	f.Start()

	type theft struct {
		template *v1alpha1.HypervisorMachineTemplate
		claim    *v1alpha1.MachineClaim
		pool     *v1alpha1.RunnerPool
	}

	var all []theft

	for name, steal := range listThefts(other, url) {
		template, claim, pool := f.NewTemplate(), f.NewClaim(name), f.NewPool(1)
		template.Name, claim.Spec.TemplateRef.Name, pool.Name, pool.Spec.TemplateRef.Name = name, name, name, name
		steal(template.Spec.Bootstrap.Config, &claim.Spec.WorkloadConfig)
		pool.Spec.Workload.Type, pool.Spec.Workload.Config = claim.Spec.WorkloadConfig.Type, claim.Spec.WorkloadConfig.Config
		f.Create(template)
		f.Create(claim)
		f.Create(pool)

		all = append(all, theft{template, claim, pool})
	}

	for _, one := range all {
		checkContains(t, f.EventuallyCondition(one.pool, "DemandSourcesReady", metav1.ConditionFalse, "ServerNotAllowed"),
			v1alpha1.AnnotationAllowedServers+"="+strings.TrimPrefix(url, "http://"))

		// A template that names the server has the condition too. A claim of Buildkite or Forgejo without a job
		// ends before it needs the server.
		switch config := one.template.Spec.Bootstrap.Config; {
		case config.GitHub != nil:
			f.EventuallyCondition(one.template, "Ready", metav1.ConditionFalse, "ServerNotAllowed")
		case config.GitLab != nil, config.Gitea != nil:
			f.EventuallyCondition(one.claim, "Ready", metav1.ConditionFalse, "ServerNotAllowed")
		}
	}

	if n := connections.Load(); n > 0 {
		t.Errorf("the server of the tenant was called %d times", n)
	}
}

// TestTenantsReachPublicServersOnly checks that a tenant with its own Secret cannot make the operator call a
// server that only the operator can reach.
func TestTenantsReachPublicServersOnly(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	url, connections := startServer(t)
	f.Create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.Namespace, Name: "own",
			Annotations: map[string]string{v1alpha1.AnnotationAllowedServers: strings.TrimPrefix(url, "http://")},
		},
		StringData: map[string]string{"pat": githubtest.PAT},
	})

	template := f.NewTemplate()
	template.Spec.Bootstrap.Config.GitHub.APIURL = url
	template.Spec.Bootstrap.Config.GitHub.Credentials.SecretKeyRef.Name = "own"

	createAndStart(f, template)
	f.Eventually("the condition of the template naming the setting that allows the server", func() (bool, string) {
		if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(template), template); err != nil {
			return false, err.Error()
		}

		why := step.NotReadyMessage(template)

		return strings.Contains(why, "runners.platformNetworks"), why
	})

	if n := connections.Load(); n > 0 {
		t.Errorf("the server was called %d times", n)
	}
}
