// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	buildkitesim "github.com/hyperfleet/hyperfleet/sim/buildkite"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/buildkitetest"
	"github.com/hyperfleet/hyperfleet/sim/execguest"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	simgithub "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	gitlabsim "github.com/hyperfleet/hyperfleet/sim/gitlab"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
	"github.com/hyperfleet/hyperfleet/test/secrets"
	"github.com/hyperfleet/hyperfleet/workload"
)

// machineSpec describes the machine to create.
type machineSpec struct {
	Platform, Method, Registration, Delivery, UserData string
	Attested                                           bool
}

// listUserData returns typical user data, and user data that tries to read credentials.
func listUserData() []string {
	return []string{
		"", "#cloud-config\npackages: [git]\n", "#!/bin/sh\necho {{ .RunnerName }}\n",
		"#cloud-config\nwrite_files:\n- path: /etc/token\n  content: '{{ .RunnerToken }}{{ .JITConfig }}'\n",
		"#cloud-config\nwrite_files:\n- path: /etc/all\n  content: |\n    {{ printf \"%+v\" . }}\n",
		"#cloud-config\nruncmd:\n- echo '{{ .Secrets }}{{ .Settings.ReportKey }}'\n",
		"#cloud-config\nwrite_files:\n- {path: /etc/hyperfleet/runner-config.json, content: mine}\n",
	}
}

func genMachineSpec() gopter.Gen {
	oneOf := func(values ...string) gopter.Gen {
		all := make([]any, len(values))
		for i, value := range values {
			all[i] = value
		}

		return gen.OneConstOf(all...)
	}

	return gen.Struct(reflect.TypeFor[machineSpec](), map[string]gopter.Gen{
		"Platform":     oneOf(v1alpha1.WorkloadGitHubActions, v1alpha1.WorkloadGitLabCI, v1alpha1.WorkloadBuildkite, v1alpha1.WorkloadGeneric),
		"Method":       oneOf(v1alpha1.BootstrapRunnerToken, v1alpha1.BootstrapRunnerToken, v1alpha1.BootstrapCallback, v1alpha1.BootstrapExternalSecrets),
		"Registration": oneOf(v1alpha1.RegistrationJIT, v1alpha1.RegistrationToken),
		"Delivery":     oneOf(v1alpha1.DeliveryImage, v1alpha1.DeliveryISO, v1alpha1.DeliveryDownload),
		"UserData":     oneOf(listUserData()...),
		"Attested":     gen.Bool(),
	})
}

// renderFixture creates the data of machines with credentials that its scanner knows.
type renderFixture struct {
	scanner   secrets.Scanner
	settings  vmspec.Settings
	platforms map[string]testPlatform
	count     atomic.Int64
	// rendered and rejected count the results.
	rendered, rejected atomic.Int64
}

// testPlatform is one platform, opened with a long-lived credential.
type testPlatform struct {
	platform workload.Platform
	config   v1alpha1.BootstrapConfig
	workload v1alpha1.WorkloadConfig
	secrets  map[string]string
	queueJob func(control.JobSpec) []control.Job
	// network is the provider's transport. If it is nil, the provider uses its default.
	network http.RoundTripper
	// provider is created with the first credential.
	provider *workload.Provider
}

func newRenderFixture(t *testing.T) *renderFixture {
	t.Helper()

	pat := newCredential(t, "ghp_")
	githubServer := githubtest.New(t, simgithub.Options{
		Unlimited: true, PATs: []simgithub.PAT{{Token: pat, Scopes: []string{"repo", "admin:org"}}},
	})
	gitlabServer, buildkiteServer := gitlabtest.New(t, gitlabsim.Options{}), buildkitetest.New(t, buildkitesim.Options{})
	at := func(kind, url, token string) testPlatform {
		out := listPlatforms()[kind](url)
		out.provider, out.secrets = new(workload.Provider), map[string]string{"token": token}

		return out
	}
	buildkitePlatform := at(v1alpha1.WorkloadBuildkite, buildkiteServer.Endpoint, buildkitetest.Token)
	buildkitePlatform.queueJob = buildkiteServer.Queue

	s := &renderFixture{
		settings: vmspec.Settings{
			OperatorUID: "operator", GuestURL: "https://fleet.example.com:8443", ReportKey: []byte(newCredential(t, "")[:32]),
			TrustDomain: "hyperfleet.io",
			BootstrapServices: map[string]vmspec.Program{
				"x64": {Content: strings.NewReader("\x7fELF program"), Size: 12, SHA256: strings.Repeat("ab", 32)},
			},
		},
		platforms: map[string]testPlatform{
			v1alpha1.WorkloadGitHubActions: at(v1alpha1.WorkloadGitHubActions, githubServer.URL, pat),
			v1alpha1.WorkloadGitLabCI:      at(v1alpha1.WorkloadGitLabCI, gitlabServer.URL, gitlabtest.Token),
			v1alpha1.WorkloadBuildkite:     buildkitePlatform,
			v1alpha1.WorkloadGeneric: {
				provider: new(workload.Provider), platform: operator.Platforms()[v1alpha1.WorkloadGeneric],
				workload: v1alpha1.WorkloadConfig{Generic: &v1alpha1.GenericConfig{Source: "scan", Command: []string{"/bin/true"}}},
			},
		},
	}
	s.scanner.Register(
		secrets.Secret{Name: "the operator's key", Value: string(s.settings.ReportKey)},
		secrets.Secret{Name: "GitHub's token", Value: pat}, secrets.Secret{Name: "GitLab's token", Value: gitlabtest.Token},
	)

	return s
}

// render creates the machine's cloud-init ISO and disk as the operator and cloud-init do. It returns the first
// finding or unexpected error.
func (s *renderFixture) render(o machineSpec) string {
	number := s.count.Add(1)
	place := fmt.Sprintf("machine %d", number)

	in, err := s.newInput(o, number)
	if err == nil {
		var text string
		if text, err = s.createAndScan(in, place); text != "" {
			return text
		}
	}

	if err != nil {
		s.rejected.Add(1)
		s.scanner.Scan(place, "an error", []byte(err.Error()))

		_, class := errors.AsType[*errclass.Error](err)
		if _, platform := errors.AsType[*workload.Error](err); !class && !platform {
			return err.Error()
		}
	} else {
		s.rendered.Add(1)
	}

	for _, finding := range s.scanner.Findings() {
		if finding.Place == place {
			return finding.String()
		}
	}

	return ""
}

// newInput returns the input of the cloud-init ISO, with a credential that the platform has issued.
func (s *renderFixture) newInput(o machineSpec, number int64) (vmspec.Input, error) {
	site := s.platforms[o.Platform]
	bootstrap := v1alpha1.Bootstrap{Method: o.Method, Delivery: o.Delivery, Config: site.config.DeepCopy()}

	if bootstrap.Config.GitHub != nil {
		bootstrap.Config.GitHub.Registration = o.Registration
	}

	if o.Method == v1alpha1.BootstrapExternalSecrets {
		bootstrap.Config.ExternalSecrets = &v1alpha1.ExternalSecrets{
			Address: "https://vault.example.com:8200", Role: "runner", Path: "secret/data/runners/{namespace}/{pool}",
		}
	}

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Namespace, template.Name, template.Spec.Bootstrap = "ci", "template", bootstrap
	claim := &v1alpha1.MachineClaim{}
	claim.Namespace, claim.Name, claim.UID = "ci", fmt.Sprintf("claim-%d", number), types.UID(fmt.Sprintf("uid-%08d-of-the-claim", number))
	claim.Spec.WorkloadConfig = v1alpha1.Workload{Type: o.Platform, Config: &site.workload}

	if o.UserData != "" {
		template.Spec.CloudInit = &v1alpha1.CloudInit{UserData: o.UserData}
	}

	if o.Attested || o.Method == v1alpha1.BootstrapExternalSecrets {
		template.Spec.Attestation = &v1alpha1.Attestation{Method: v1alpha1.AttestationJoinToken}
		claim.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{Identity: vmspec.NewMachineIdentity(claim, template, s.settings)}
	}

	if err := vmspec.DryRender(template, s.settings); err != nil {
		return vmspec.Input{}, err
	}

	runner, err := site.platform.ResolveRunner(template, claim.Spec.WorkloadConfig)
	if err != nil {
		return vmspec.Input{}, err
	}

	in := vmspec.Input{
		Claim: claim, Template: template, Settings: s.settings, Runner: runner,
		Request: vmspec.NewRunnerRequest(claim, runner, s.settings),
		Names:   vmspec.NewNames(claim, template, &v1alpha1.HypervisorCluster{}, false),
	}
	if vmspec.HasIdentity(claim) {
		in.Attestation = identity.Attestation{JoinToken: fmt.Sprintf("join-token-%08d", number), ServerAddress: "spire.example.com:8081"}
	}

	credential, err := site.issueCredential(in)
	if o.Method == v1alpha1.BootstrapRunnerToken {
		in.Credential = credential
	}

	// With the other methods, the ISO must not contain the credential that the machine gets later.
	for _, value := range []string{credential.JITConfig, credential.RunnerToken} {
		if o.Method != v1alpha1.BootstrapRunnerToken && value != "" {
			s.scanner.Register(secrets.Secret{Name: "a credential that the machine has to ask for", Value: value})
		}
	}

	return in, err
}

func (f testPlatform) issueCredential(in vmspec.Input) (workload.Credential, error) {
	request := in.Request

	if in.Runner.NeedsJob {
		request.Job = &workload.Job{ID: "job", Platform: in.Runner.Platform, Name: "build", URL: "https://jobs.example.com/1"}
	}

	if f.queueJob != nil {
		request.Job.ID = f.queueJob(control.JobSpec{Labels: []string{"queue=default"}})[0].Key
	}

	if *f.provider == nil {
		provider, err := f.platform.Open(workload.Config{Runner: in.Runner, Template: in.Template, Secrets: f.secrets})
		if err != nil {
			return workload.Credential{}, err
		}

		*f.provider = provider
	}

	return (*f.provider).IssueCredential(context.Background(), request)
}

// createAndScan creates and scans the cloud-init ISO and the resulting disk. It returns a message if this
// test's own steps fail.
func (s *renderFixture) createAndScan(in vmspec.Input, place string) (string, error) {
	media, err := vmspec.RenderSeed(in)
	if err != nil {
		return "", err
	}

	files := map[string][]byte{"user-data": media.UserData, "meta-data": media.MetaData}
	if len(media.NetworkConfig) > 0 {
		files["network-config"] = media.NetworkConfig
	}

	maps.Copy(files, media.Files)

	iso, err := cloudinit.BuildISO(files)
	if err != nil {
		return err.Error(), nil
	}

	root, err := os.MkdirTemp("", "hf-")
	if err != nil {
		return err.Error(), nil
	}

	defer func() { _ = os.RemoveAll(root) }()

	if err := execguest.ApplyCloudInit(files, root, func(string, ...any) {}); err != nil {
		return "cloud-init: " + err.Error(), nil
	}

	if _, err := os.Stat(filepath.Join(root, guest.ConfigPath)); err != nil {
		return "the disk has no configuration: " + err.Error(), nil
	}

	s.scanner.Scan(place, "its cloud-init ISO", iso)
	s.scanner.ScanTree(place, root)

	return "", nil
}
