// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
)

func newTemplate(change ...func(*v1alpha1.BuildkiteBootstrap)) *v1alpha1.HypervisorMachineTemplate {
	from := &v1alpha1.BuildkiteBootstrap{Credentials: v1alpha1.SecretValueSource{
		SecretKeyRef: v1alpha1.SecretKeySelector{Name: "buildkite", Key: "token"},
	}}
	for _, c := range change {
		c(from)
	}

	return &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "small", UID: "0a1b"},
		Spec: v1alpha1.HypervisorMachineTemplateSpec{Bootstrap: v1alpha1.Bootstrap{
			Config: &v1alpha1.BootstrapConfig{Buildkite: from, HTTPClient: &v1alpha1.HTTPClient{TimeoutSeconds: 7}},
		}},
	}
}

func newWorkload(own *v1alpha1.BuildkiteConfig) v1alpha1.Workload {
	return v1alpha1.Workload{Type: v1alpha1.WorkloadBuildkite, Config: &v1alpha1.WorkloadConfig{Buildkite: own}}
}

func TestRunner(t *testing.T) {
	t.Parallel()

	full := workload.RunnerSpec{
		Platform: v1alpha1.WorkloadBuildkite, Registration: v1alpha1.RegistrationToken, NeedsJob: true,
		Scope: workload.Scope{Organization: "acme"}, Queue: "linux", Labels: []string{"queue=linux", "os=linux", "docker"},
		Metadata: map[string]string{"site": "berlin"}, PollInterval: 10 * time.Second,
		Program: guest.Runner{Program: "/usr/bin/buildkite-agent", WorkDir: "/tmp/runner-work", OS: "linux", Arch: "x64"},
		Secrets: map[string]v1alpha1.SecretValueSource{"token": newTemplate().Spec.Bootstrap.Config.Buildkite.Credentials},
		Servers: []string{"agent.buildkite.com"},
		Timeout: 7 * time.Second,
	}
	with := func(change func(*workload.RunnerSpec)) workload.RunnerSpec {
		out := full
		change(&out)

		return out
	}
	own := &v1alpha1.BuildkiteConfig{
		Organization: "acme", Queue: "linux", Tags: []string{"os=linux", " docker", "os=linux"}, Metadata: map[string]string{"site": "berlin"},
	}
	cases := map[string]struct {
		template *v1alpha1.HypervisorMachineTemplate
		load     v1alpha1.Workload
		want     workload.RunnerSpec
		reason   string
	}{
		"all set": {newTemplate(), newWorkload(own), full, ""},
		"queue and settings of the agent by default": {
			newTemplate(func(b *v1alpha1.BuildkiteBootstrap) { b.Program, b.WorkDir = "/opt/agent", "/builds" }),
			newWorkload(&v1alpha1.BuildkiteConfig{Organization: "acme"}),
			with(func(r *workload.RunnerSpec) {
				r.Queue, r.Labels, r.Metadata = "default", []string{"queue=default"}, nil
				r.Program.Program, r.Program.WorkDir = "/opt/agent", "/builds"
			}), "",
		},
		"a queue without a key": {
			newTemplate(), newWorkload(&v1alpha1.BuildkiteConfig{Organization: "acme", Queue: "__default__"}),
			with(func(r *workload.RunnerSpec) {
				r.Queue, r.Labels, r.Metadata = "__default__", []string{"queue=__default__"}, nil
			}), buildkite.ReasonConfig,
		},
		"unknown template": {nil, newWorkload(own), with(func(r *workload.RunnerSpec) {
			r.Secrets, r.Servers, r.Timeout = nil, nil, 0
		}), workload.ReasonBootstrapIncomplete},
		"no organization": {newTemplate(), newWorkload(&v1alpha1.BuildkiteConfig{Queue: "linux"}), with(func(r *workload.RunnerSpec) {
			r.Scope, r.Labels, r.Metadata = workload.Scope{}, []string{"queue=linux"}, nil
		}), workload.ReasonScopeMissing},
		"queue among the tags": {
			newTemplate(), newWorkload(&v1alpha1.BuildkiteConfig{Organization: "acme", Queue: "linux", Tags: []string{"queue=other"}}),
			with(func(r *workload.RunnerSpec) { r.Labels, r.Metadata = []string{"queue=linux"}, nil }), buildkite.ReasonConfig,
		},
		"two tags in one": {
			newTemplate(), newWorkload(&v1alpha1.BuildkiteConfig{Organization: "acme", Queue: "linux", Tags: []string{"a=b,c=d"}}),
			with(func(r *workload.RunnerSpec) { r.Labels, r.Metadata = []string{"queue=linux"}, nil }), buildkite.ReasonConfig,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := buildkite.Platform{}.ResolveRunner(tc.template, tc.load)
			if reason := errclass.ReasonOf(err, ""); reason != tc.reason {
				t.Errorf("error %v has reason %q, want %q", err, reason, tc.reason)
			}

			if err != nil && errclass.ClassOf(err) != errclass.Configuration {
				t.Errorf("error %v is of class %s", err, errclass.ClassOf(err))
			}

			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Runner() (-want +got):\n%s", diff)
			}
		})
	}
}

// The metadata of a pool's workload reaches Buildkite with the stack.
func TestMetadataOfTheStack(t *testing.T) {
	t.Parallel()

	stacks := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/stacks/register") {
			body, _ := io.ReadAll(r.Body)
			stacks <- string(body)
		}

		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(server.Close)

	template := newTemplate(func(b *v1alpha1.BuildkiteBootstrap) { b.Endpoint = server.URL })
	platform := buildkite.Platform{}

	runner, err := platform.ResolveRunner(template, newWorkload(&v1alpha1.BuildkiteConfig{
		Organization: "acme", Metadata: map[string]string{"site": "berlin"},
	}))
	if err != nil {
		t.Fatal(err)
	}

	provider, err := platform.Open(workload.Config{Runner: runner, Template: template, Secrets: map[string]string{"token": "bkct_x"}})
	if err != nil {
		t.Fatal(err)
	}

	if err := provider.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}

	if got := <-stacks; !strings.Contains(got, `"metadata":{"site":"berlin"}`) {
		t.Errorf("the stack is registered as %s", got)
	}
}

func TestFit(t *testing.T) {
	t.Parallel()

	runner := workload.RunnerSpec{
		Scope: workload.Scope{Organization: "acme"}, Queue: "default",
		Labels: []string{"queue=default", "os=linux", "docker", "size=8"},
	}
	job := func(labels ...string) workload.Job {
		return workload.Job{Organization: "acme", Repository: "acme/app", Queue: "default", Labels: labels}
	}
	cases := map[string]struct {
		runner func(*workload.RunnerSpec)
		job    workload.Job
		want   workload.JobMatch
		why    string
	}{
		"every rule holds":         {nil, job("queue=default", "os=linux"), workload.JobMatch{Matched: true, InScope: true}, ""},
		"no rules":                 {nil, job(), workload.JobMatch{Matched: true, InScope: true}, ""},
		"the rule that fits all":   {nil, job("*"), workload.JobMatch{Matched: true, InScope: true}, ""},
		"any value":                {nil, job("os=*", "queue=*"), workload.JobMatch{Matched: true, InScope: true}, ""},
		"no value is true":         {nil, job("docker=true"), workload.JobMatch{Matched: true, InScope: true}, ""},
		"rule without a value":     {nil, job("docker"), workload.JobMatch{Matched: true, InScope: true}, ""},
		"other value":              {nil, job("os=mac", "size=8"), workload.JobMatch{InScope: true, MissingLabels: []string{"os=mac"}}, ""},
		"values have case":         {nil, job("os=Linux"), workload.JobMatch{InScope: true, MissingLabels: []string{"os=Linux"}}, ""},
		"no such tag, any value":   {nil, job("gpu=*"), workload.JobMatch{InScope: true, MissingLabels: []string{"gpu=*"}}, ""},
		"other organization":       {nil, workload.Job{Organization: "rival", Repository: "rival/app", Queue: "default"}, workload.JobMatch{}, ""},
		"organization without job": {nil, workload.Job{Repository: "acme/app", Queue: "default"}, workload.JobMatch{Matched: true, InScope: true}, ""},
		"other queue": {
			func(r *workload.RunnerSpec) { r.Queue = "mac" },
			job("queue=default"), workload.JobMatch{InScope: true}, "the job waits in queue default, but these runners serve queue mac",
		},
		"no queue, for the default one": {
			nil, workload.Job{Repository: "acme/app"}, workload.JobMatch{Matched: true, InScope: true}, "",
		},
		"no queue, for the default one of new clusters": {
			func(r *workload.RunnerSpec) { r.Queue = "default-queue" },
			workload.Job{Repository: "acme/app"}, workload.JobMatch{Matched: true, InScope: true}, "",
		},
		"no queue, and the runner's queue is listed": {
			func(r *workload.RunnerSpec) { r.Queue = "gpu" },
			workload.Job{Repository: "acme/app", Queue: "gpu"}, workload.JobMatch{Matched: true, InScope: true}, "",
		},
		"no queue, for another one": {
			func(r *workload.RunnerSpec) { r.Queue = "gpu" },
			workload.Job{Repository: "acme/app"}, workload.JobMatch{InScope: true}, "the job names no queue",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			have := runner
			if tc.runner != nil {
				tc.runner(&have)
			}

			got := buildkite.Platform{}.MatchJob(have, tc.job)
			if !strings.HasPrefix(got.Message, tc.why) || (got.Message == "") != (tc.why == "") {
				t.Errorf("Why = %q, want it to begin with %q", got.Message, tc.why)
			}

			got.Message = ""
			if len(got.MissingLabels) == 0 {
				got.MissingLabels = nil
			}

			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Fit() (-want +got):\n%s", diff)
			}
		})
	}
}

// Reservations belong to a stack, so its key must survive a restart, and two operators must not
// share a key.
func TestStackKey(t *testing.T) {
	t.Parallel()

	of := func(organization, queue, uid string) string {
		from := newTemplate()
		from.UID = types.UID(uid)

		return buildkite.StackKey(workload.Config{Template: from, Runner: workload.RunnerSpec{
			Scope: workload.Scope{Organization: organization}, Queue: queue,
		}})
	}

	keys := map[string]bool{}

	for _, key := range []string{
		of("acme", "default", "1"), of("acme", "default", "2"), of("acme", "default", ""), of("acme", "mac", "1"),
		of("rival", "default", "1"), of("acme", "a queue/of ß"+strings.Repeat("x", 200), "1"), of("acme", "__default__", "1"),
	} {
		if !regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`).MatchString(key) || keys[key] {
			t.Errorf("key %q is not valid or not unique", key)
		}

		keys[key] = true
	}

	if again := of("acme", "default", "1"); !keys[again] {
		t.Error("the key has changed")
	}
}

func TestOpenAndNewErrors(t *testing.T) {
	t.Parallel()

	good := buildkite.Config{Organization: "acme", Queue: "default", Stack: "s", Token: "t"}
	cases := map[string]struct {
		change func(*buildkite.Config)
		reason string
	}{
		"no token":                   {func(c *buildkite.Config) { c.Token = " \n" }, buildkite.ReasonCredentials},
		"no organization":            {func(c *buildkite.Config) { c.Organization = "" }, buildkite.ReasonConfig},
		"endpoint is no URL":         {func(c *buildkite.Config) { c.Endpoint = "agent.buildkite.com" }, buildkite.ReasonConfig},
		"endpoint contains a secret": {func(c *buildkite.Config) { c.Endpoint = "https://u:p@agent.buildkite.com/v3" }, buildkite.ReasonConfig},
		"key with a dot":             {func(c *buildkite.Config) { c.Stack = "a.b" }, buildkite.ReasonConfig},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			config := good
			tc.change(&config)

			_, err := buildkite.New(config)
			if !workload.Is(err, workload.Rejected) || getReason(err) != tc.reason {
				t.Errorf("New() = %v, want reason %s", err, tc.reason)
			}

			if err != nil && strings.Contains(err.Error(), "u:p") {
				t.Errorf("error %v contains a secret", err)
			}
		})
	}

	if _, err := buildkite.New(good); err != nil {
		t.Errorf("New() = %v", err)
	}

	if _, err := (buildkite.Platform{}).Open(workload.Config{}); errclass.ReasonOf(err, "") != workload.ReasonBootstrapIncomplete {
		t.Errorf("Open() without a template = %v", err)
	}
}

func getReason(err error) string {
	known, ok := errors.AsType[*workload.Error](err)
	if !ok {
		return ""
	}

	return known.Reason
}

// There are few operation names, whatever names and numbers the paths contain.
func TestOperationsHaveNoNames(t *testing.T) {
	t.Parallel()

	for path, want := range map[string]string{
		"/v3/stacks/hyperfleet-acme-default/scheduled-jobs":         "GET /v3/stacks/{}/scheduled-jobs",
		"/v3/stacks/x/jobs/2f1c8a54-0000-4000-8000-00000000/finish": "GET /v3/stacks/{}/jobs/{}/finish",
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com"+path, http.NoBody)
		if got := buildkite.OperationName(r); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}
