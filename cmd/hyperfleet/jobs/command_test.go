// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var env *kube.Env

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	kube.Main(m, func(e *kube.Env) { env = e },
		kube.WithCRDs("../../../deploy/crds"), kube.WithScheme(v1alpha1.AddToScheme))
}

// run runs a command as main does, and gives its output, its error and its exit code.
func run(t *testing.T, cmd *cobra.Command, args ...string) (string, string, int) {
	t.Helper()

	var out bytes.Buffer

	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)

	err := cmd.ExecuteContext(t.Context())
	if err == nil {
		return out.String(), "", 0
	}

	return out.String(), err.Error(), cli.ExitCode(err)
}

// populate writes jobs with their status, a machine and a log.
func populate(t *testing.T) (namespace, kubeconfig string) {
	t.Helper()

	namespace = env.Namespace(t)

	for _, job := range []*v1alpha1.RunnerJob{
		sample("29679449530", v1alpha1.JobQueued, waiting("linux", "AtMaximum", atMaximum)),
		sample("29679449526", v1alpha1.JobRunning, ran),
		sample("29679449520", v1alpha1.JobCompleted, finished),
	} {
		status := job.Status
		job.Namespace = namespace

		for i := range status.Conditions {
			status.Conditions[i].LastTransitionTime = metav1.Now()
		}

		env.Create(t, job)

		job.Status = status
		if err := env.Client.Status().Update(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}

	for _, name := range []string{"linux-x7k2p", "linux-new"} {
		machine := claim(name, func(c *v1alpha1.MachineClaim) {
			c.Namespace = namespace
			c.Spec = v1alpha1.MachineClaimSpec{
				TemplateRef: v1alpha1.LocalObjectReference{Name: "linux"}, RunnerPoolRef: &v1alpha1.LocalObjectReference{Name: "linux"},
				WorkloadConfig: v1alpha1.Workload{
					Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{}},
				},
			}
		})
		status := machine.Status
		status.Conditions[0].LastTransitionTime, status.Conditions[0].Status = metav1.Now(), metav1.ConditionFalse

		if name == "linux-x7k2p" {
			status.Times = &v1alpha1.MachineTimes{JobStarted: micro(42)}
		}

		env.Create(t, &machine)

		machine.Status = status
		if err := env.Client.Status().Update(t.Context(), &machine); err != nil {
			t.Fatal(err)
		}
	}

	env.Create(t, &v1alpha1.RunnerLog{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gh-29679449520-log"},
		Spec:       v1alpha1.RunnerLogSpec{Claim: "linux-a", Text: "make: *** [test] Error 1\n"},
	})

	return namespace, env.Kubeconfig(t, env.Config)
}

func TestJobsCommand(t *testing.T) {
	t.Parallel()

	namespace, kubeconfig := populate(t)
	list := func(args ...string) []string {
		t.Helper()

		out, err, code := run(t, New(), append(args, "--kubeconfig", kubeconfig, "--output", "json")...)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, err)
		}

		var read struct{ Jobs []Job }
		if err := json.Unmarshal([]byte(out), &read); err != nil {
			t.Fatal(err)
		}

		var names []string

		for _, job := range read.Jobs {
			if job.Namespace == namespace {
				names = append(names, job.Job)
			}
		}

		return names
	}

	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"all of a namespace, the waiting first", []string{"-n", namespace}, []string{"gh-29679449530", "gh-29679449526", "gh-29679449520"}},
		{"all of all namespaces", []string{"-A"}, []string{"gh-29679449530", "gh-29679449526", "gh-29679449520"}},
		{"of two states", []string{"-n", namespace, "--state", "completed,QUEUED"}, []string{"gh-29679449530", "gh-29679449520"}},
		{"of a pool", []string{"-n", namespace, "--pool", "linux", "--state", "running"}, []string{"gh-29679449526"}},
		{"of a pool without jobs", []string{"-n", namespace, "--pool", "arm"}, nil},
		{"of the context's namespace", nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()

			if diff := cmp.Diff(tc.want, list(tc.args...)); diff != "" {
				t.Error(diff)
			}
		})
	}

	out, err, code := run(t, New(), "--kubeconfig", kubeconfig, "-n", namespace)
	for _, part := range []string{"JOB ", "WAITING/RUNNING FOR", "gh-29679449530", "AtMaximum: RunnerPool linux has all", "linux-x7k2p"} {
		if code != 0 || !strings.Contains(out, part) {
			t.Errorf("exit code %d %s; output lacks %q:\n%s", code, err, part, out)
		}
	}
}

func TestJobCommand(t *testing.T) {
	t.Parallel()

	namespace, kubeconfig := populate(t)

	for _, tc := range []struct {
		name  string
		args  []string
		parts []string
	}{
		{"that waits", []string{"gh-29679449530"}, []string{"Cause", "AtMaximum: ", "Machines that may take it:\n  linux-new, Provisioning", "Waiting"}},
		{"that runs", []string{"29679449526"}, []string{"State       Running, ", "Machine     linux-x7k2p, Provisioning, VM 100105 on node pve1"}},
		{
			"that is over, by its address", []string{"https://github.com/acme/app/actions/runs/10683749869/job/29679449520?pr=1"},
			[]string{"Completed (failure)", "Destroyed", "Log, as kept in RunnerLog gh-29679449520-log:\n  make: *** [test] Error 1\n"},
		},
		{"for programs", []string{"29679449520", "--output", "json"}, []string{`"log": "make: *** [test] Error 1\n"`, `"moment": "Destroyed"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()

			out, err, code := run(t, NewOne(), append(tc.args, "--kubeconfig", kubeconfig, "-n", namespace)...)
			for _, part := range tc.parts {
				if code != 0 || !strings.Contains(out, part) {
					t.Errorf("exit code %d %s; output lacks %q:\n%s", code, err, part, out)
				}
			}
		})
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()

	namespace, kubeconfig := populate(t)
	nobody := env.Kubeconfig(t, env.User(t, "nobody"))

	for _, tc := range []struct {
		name string
		cmd  func() *cobra.Command
		args []string
		code int
		want string
	}{
		{"no such job", NewOne, []string{"29679449525", "--kubeconfig", kubeconfig, "-n", namespace}, 1, "near it are:\n  " + namespace + "/gh-29679449526"},
		{"not in this namespace", NewOne, []string{"zzzzzz", "--kubeconfig", kubeconfig}, 1, `no job "zzzzzz" in namespace default`},
		{"no right to read", New, []string{"--kubeconfig", nobody, "-n", namespace}, 1, "is forbidden"},
		{"no kubeconfig", New, []string{"--kubeconfig", filepath.Join(t.TempDir(), "none")}, 1, "read kubeconfig"},
		{"an unknown context", New, []string{"--kubeconfig", kubeconfig, "--context", "mars"}, 1, `"mars"`},
		{"no id", NewOne, nil, 2, "give one job"},
		{"two ids", NewOne, []string{"a", "b"}, 2, "give one job"},
		{"an id to the list", New, []string{"gh-7"}, 2, "`hyperfleet job gh-7`"},
		{"an unknown flag", New, []string{"--colour"}, 2, "--colour"},
		{"an unknown state", New, []string{"--state", "lost"}, 2, `unknown state "lost": use waiting, queued, running or completed`},
		{"an unknown output", NewOne, []string{"gh-7", "--output", "xml"}, 2, `unknown output "xml": use table or json`},
		{"two scopes", New, []string{"-A", "-n", "ci"}, 2, "exclude each other"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()

			out, err, code := run(t, tc.cmd(), tc.args...)
			if code != tc.code || !strings.Contains(err, tc.want) || out != "" {
				t.Errorf("exit code %d, want %d; error %q, want ...%s...; output %q", code, tc.code, err, tc.want, out)
			}
		})
	}
}
