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

// order is one machine to be made.
type order struct {
	Platform, Method, Registration, Delivery, UserData string
	Attested                                           bool
}

// userData are texts that people write, and some that reach for what there may be.
func userData() []string {
	return []string{
		"", "#cloud-config\npackages: [git]\n", "#!/bin/sh\necho {{ .RunnerName }}\n",
		"#cloud-config\nwrite_files:\n- path: /etc/token\n  content: '{{ .RunnerToken }}{{ .JITConfig }}'\n",
		"#cloud-config\nwrite_files:\n- path: /etc/all\n  content: |\n    {{ printf \"%+v\" . }}\n",
		"#cloud-config\nruncmd:\n- echo '{{ .Secrets }}{{ .Settings.ReportKey }}'\n",
		"#cloud-config\nwrite_files:\n- {path: /etc/hyperfleet/runner-config.json, content: mine}\n",
	}
}

func genOrder() gopter.Gen {
	oneOf := func(values ...string) gopter.Gen {
		all := make([]any, len(values))
		for i, value := range values {
			all[i] = value
		}

		return gen.OneConstOf(all...)
	}

	return gen.Struct(reflect.TypeFor[order](), map[string]gopter.Gen{
		"Platform":     oneOf(v1alpha1.WorkloadGitHubActions, v1alpha1.WorkloadGitLabCI, v1alpha1.WorkloadBuildkite, v1alpha1.WorkloadGeneric),
		"Method":       oneOf(v1alpha1.BootstrapRunnerToken, v1alpha1.BootstrapRunnerToken, v1alpha1.BootstrapCallback, v1alpha1.BootstrapExternalSecrets),
		"Registration": oneOf(v1alpha1.RegistrationJIT, v1alpha1.RegistrationToken),
		"Delivery":     oneOf(v1alpha1.DeliveryImage, v1alpha1.DeliveryISO, v1alpha1.DeliveryDownload),
		"UserData":     oneOf(userData()...),
		"Attested":     gen.Bool(),
	})
}

// site makes what machines are given, with platforms that know this site's credentials.
type site struct {
	scanner  secrets.Scanner
	settings vmspec.Settings
	forges   map[string]forge
	count    atomic.Int64
	// cloud-init ISOs and refused count what became of orders.
	media, refused atomic.Int64
}

// forge is one platform, opened with a long-lived credential.
type forge struct {
	platform workload.Platform
	config   v1alpha1.BootstrapConfig
	load     v1alpha1.WorkloadConfig
	secrets  map[string]string
	queue    func(control.JobSpec) []control.Job
	// network is that of the provider; nil for the usual one.
	network http.RoundTripper
	// opened is the platform's one provider, made when it is first needed.
	opened *workload.Provider
}

func newSite(t *testing.T) *site {
	t.Helper()

	pat := unguessable(t, "ghp_")
	hub := githubtest.New(t, simgithub.Options{
		Unlimited: true, PATs: []simgithub.PAT{{Token: pat, Scopes: []string{"repo", "admin:org"}}},
	})
	lab, kite := gitlabtest.New(t, gitlabsim.Options{}), buildkitetest.New(t, buildkitesim.Options{})
	at := func(kind, url, token string) forge {
		out := echoed()[kind](url)
		out.opened, out.secrets = new(workload.Provider), map[string]string{"token": token}

		return out
	}
	kites := at(v1alpha1.WorkloadBuildkite, kite.Endpoint, buildkitetest.Token)
	kites.queue = kite.Queue

	s := &site{
		settings: vmspec.Settings{
			OperatorUID: "operator", GuestURL: "https://fleet.example.com:8443", ReportKey: []byte(unguessable(t, "")[:32]),
			TrustDomain: "hyperfleet.io",
			BootstrapServices: map[string]vmspec.Program{
				"x64": {Content: strings.NewReader("\x7fELF program"), Size: 12, SHA256: strings.Repeat("ab", 32)},
			},
		},
		forges: map[string]forge{
			v1alpha1.WorkloadGitHubActions: at(v1alpha1.WorkloadGitHubActions, hub.URL, pat),
			v1alpha1.WorkloadGitLabCI:      at(v1alpha1.WorkloadGitLabCI, lab.URL, gitlabtest.Token),
			v1alpha1.WorkloadBuildkite:     kites,
			v1alpha1.WorkloadGeneric: {
				opened: new(workload.Provider), platform: operator.Platforms()[v1alpha1.WorkloadGeneric],
				load: v1alpha1.WorkloadConfig{Generic: &v1alpha1.GenericConfig{Source: "scan", Command: []string{"/bin/true"}}},
			},
		},
	}
	s.scanner.Register(
		secrets.Secret{Name: "the operator's key", Value: string(s.settings.ReportKey)},
		secrets.Secret{Name: "GitHub's token", Value: pat}, secrets.Secret{Name: "GitLab's token", Value: gitlabtest.Token},
	)

	return s
}

// make makes the machine's cloud-init ISO and disk as the operator and cloud-init do, and says what is
// on them that may not be.
func (s *site) make(o order) string {
	number := s.count.Add(1)
	place := fmt.Sprintf("machine %d", number)

	in, err := s.input(o, number)
	if err == nil {
		var text string
		if text, err = s.lay(in, place); text != "" {
			return text
		}
	}

	if err != nil {
		s.refused.Add(1)
		s.scanner.Scan(place, "an error", []byte(err.Error()))

		_, class := errors.AsType[*errclass.Error](err)
		if _, platform := errors.AsType[*workload.Error](err); !class && !platform {
			return err.Error()
		}
	} else {
		s.media.Add(1)
	}

	for _, finding := range s.scanner.Findings() {
		if finding.Place == place {
			return finding.String()
		}
	}

	return ""
}

// input is all that the machine's cloud-init ISO is made of, with a credential that was really issued.
func (s *site) input(o order, number int64) (vmspec.Input, error) {
	site := s.forges[o.Platform]
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
	claim.Spec.WorkloadConfig = v1alpha1.Workload{Type: o.Platform, Config: &site.load}

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

	credential, err := site.issue(in)
	if o.Method == v1alpha1.BootstrapRunnerToken {
		in.Credential = credential
	}

	// With the other methods what the machine is to get later must not be on its cloud-init ISO.
	for _, value := range []string{credential.JITConfig, credential.RunnerToken} {
		if o.Method != v1alpha1.BootstrapRunnerToken && value != "" {
			s.scanner.Register(secrets.Secret{Name: "a credential that the machine has to ask for", Value: value})
		}
	}

	return in, err
}

func (f forge) issue(in vmspec.Input) (workload.Credential, error) {
	request := in.Request

	if in.Runner.NeedsJob {
		request.Job = &workload.Job{ID: "job", Platform: in.Runner.Platform, Name: "build", URL: "https://jobs.example.com/1"}
	}

	if f.queue != nil {
		request.Job.ID = f.queue(control.JobSpec{Labels: []string{"queue=default"}})[0].Key
	}

	if *f.opened == nil {
		provider, err := f.platform.Open(workload.Config{Runner: in.Runner, Template: in.Template, Secrets: f.secrets})
		if err != nil {
			return workload.Credential{}, err
		}

		*f.opened = provider
	}

	return (*f.opened).IssueCredential(context.Background(), request)
}

// lay lays the cloud-init ISO, and the disk that comes of it.
func (s *site) lay(in vmspec.Input, place string) (string, error) {
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
