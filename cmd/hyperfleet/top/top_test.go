// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var env *kube.Env

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	kube.Main(m, func(e *kube.Env) { env = e }, kube.WithCRDs("../../../deploy/crds"), kube.WithScheme(live.AddToScheme))
}

func sample() moment {
	pool := func(name string, queued, busy int32) live.Pool {
		return live.PoolOf(&v1alpha1.RunnerPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: name},
			Spec:       v1alpha1.RunnerPoolSpec{Scaling: v1alpha1.Scaling{MaxReplicas: 9}},
			Status:     v1alpha1.RunnerPoolStatus{QueuedJobs: queued, BusyReplicas: busy, ReadyReplicas: busy, Replicas: busy, DesiredReplicas: busy},
		})
	}
	out := moment{summary: &live.Summary{Waiting: 1, LongestWait: time.Minute, Running: 2, Pools: []live.Pool{pool("arm", 0, 1), pool("linux", 1, 2)}}}

	for i := range 30 {
		out.jobs = append(out.jobs, jobs.Job{
			Job: fmt.Sprint("gh-", i), Name: fmt.Sprint("build é ", i), State: v1alpha1.JobQueued,
			Cause: &jobs.Cause{Reason: "AtMaximum", Message: "all machines have a job: raise spec.scaling.maxReplicas, or wait"},
		})
	}

	return out
}

// TestFrames: whatever the size, a frame fits it; the chosen row is always in it.
func TestFrames(t *testing.T) {
	t.Parallel()

	now := sample()

	for _, size := range [][2]int{{160, 40}, {80, 24}, {40, 8}, {1, 1}} {
		s := state{where: "https://kube.example.com", list: listJobs}

		for range 35 {
			s.press(keyDown, now)
		}

		lines := s.render(now, size[0], size[1])
		if len(lines) > max(size[1], minHeight) {
			t.Errorf("%v: %d lines", size, len(lines))
		}

		for _, line := range lines {
			line = strings.NewReplacer(screen.Bold, "", screen.Plain, "", screen.Reverse, "").Replace(line)
			if utf8.RuneCountInString(line) > max(size[0], minWidth) {
				t.Errorf("%v: a line of %d: %q", size, utf8.RuneCountInString(line), line)
			}
		}

		if chosen := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, screen.Reverse) }); chosen < 0 || !strings.Contains(lines[chosen], "build é 29") {
			t.Errorf("%v: the last job is not the chosen one:\n%s", size, strings.Join(lines, "\n"))
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()

	got := keysOf("\x1b[A\x1b[Bj\r\tx1\x1bq\x03")
	want := []string{keyUp, keyDown, keyDown, keyEnter, keyNext, "1", keyBack, keyQuit, keyQuit}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	now, s := sample(), state{}
	for _, key := range []string{keyDown, keyDown, keyDown, keyNext, "1"} {
		if s.press(key, now) {
			t.Error(key, "opens something")
		}
	}

	if s.chosen(now) != 1 || !s.press(keyEnter, now) {
		t.Errorf("chosen %d", s.chosen(now))
	}

	s.detail = poolDetail(now.summary.Pools[1])
	if text := strings.Join(s.render(now, 100, 20), "\n"); !strings.Contains(text, "ci/linux") || !strings.Contains(text, "1 queued") {
		t.Error(text)
	}

	s.press(keyBack, now)

	if s.detail != nil {
		t.Error("esc does not lead back")
	}
}

// populate writes a pool and a job that waits for it.
func populate(t *testing.T) string {
	t.Helper()

	namespace := env.Namespace(t)
	job := &v1alpha1.RunnerJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gh-7"},
		Spec: v1alpha1.RunnerJobSpec{
			Platform: v1alpha1.WorkloadGitHubActions, ID: "7", Name: "unit tests", Repository: "acme/app", State: v1alpha1.JobQueued,
		},
	}

	if err := env.Client.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}

	job.Status = v1alpha1.RunnerJobStatus{Pool: "linux", Conditions: []metav1.Condition{{
		Type: "Ready", Status: "False", Reason: "AtMaximum", Message: "raise spec.scaling.maxReplicas, or wait", LastTransitionTime: metav1.Now(),
	}}}
	if err := env.Client.Status().Update(t.Context(), job); err != nil {
		t.Fatal(err)
	}

	return namespace
}

func TestOnce(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer

	cmd := New()
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--once", "--list", "jobs", "-n", populate(t), "--kubeconfig", env.Kubeconfig(t, env.Config)})

	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}

	for _, part := range []string{"1 job waits", "unit tests", "acme/app", "AtMaximum: raise spec.scaling.maxReplicas"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("output lacks %q:\n%s", part, out.String())
		}
	}

	for _, args := range [][]string{{"--list", "cars"}, {"--interval", "1ms"}, {"--colour"}} {
		cmd := New()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(args)

		if err := cmd.ExecuteContext(t.Context()); cli.ExitCode(err) != cli.ExitUsage {
			t.Errorf("%v: %v", args, err)
		}
	}
}
