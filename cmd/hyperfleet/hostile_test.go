// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// forged is the beginning of a line that a foreign text must not forge.
const forged = "ok        forged"

// hostileText returns a text of a user or another system that tries to control a terminal.
func hostileText(name string) string {
	return name + "\x1b[2J\x1b]0;title\x07\r\u009b31m\x7f\u202e\u2066\n" + forged + "\n"
}

// createHostileObjects creates a job, its machine and its pool with hostile texts, also in the fields that only the
// operator writes.
func createHostileObjects(t *testing.T, namespace string) {
	t.Helper()

	s, now := seeder{t, namespace, time.Now()}, metav1.NewMicroTime(time.Now().Truncate(time.Second))

	job := &v1alpha1.RunnerJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "hostile"},
		Spec: v1alpha1.RunnerJobSpec{
			Platform: v1alpha1.WorkloadGitHubActions, ID: "1", Name: hostileText("name"), Repository: hostileText("repository"),
			Workflow: hostileText("workflow"), URL: hostileText("https://github.com"), Labels: []string{hostileText("label")},
			State: v1alpha1.JobCompleted, Conclusion: hostileText("c"), RunnerName: hostileText("runner"),
		},
	}
	s.write(job, func() {
		job.Status = v1alpha1.RunnerJobStatus{
			Conditions: s.ready(metav1.ConditionFalse, "Hostile", hostileText("job"), time.Minute),
			Pool:       hostileText("pool"), Claim: "hostile", Logs: hostileText("log"), TraceID: "\x1b[2J\u202e",
			Timeline: []v1alpha1.JobEvent{{Moment: v1alpha1.JobMoment(hostileText("moment")), Time: now, Message: hostileText("event")}},
		}
	})

	claim := &v1alpha1.MachineClaim{}
	s.sample("machineclaim.yaml", claim)
	claim.Name, claim.Finalizers = "hostile", nil
	s.write(claim, func() {
		claim.Status.Phase = v1alpha1.MachineClaimFailed
		claim.Status.Conditions = s.ready(metav1.ConditionFalse, "Hostile", hostileText("claim"), time.Hour)
		claim.Status.VMRef = &v1alpha1.VMReference{VMID: hostileText("100"), Node: hostileText("pve1"), HypervisorCluster: hostileText("cluster")}
	})

	s.pool("hostile", 3, 0, 0, 0, 1, s.ready(metav1.ConditionFalse, "Hostile", hostileText("pool"), time.Hour),
		&v1alpha1.MachineFailure{Claim: hostileText("claim"), Reason: "Hostile", Message: hostileText("failure"), Node: hostileText("node"), Time: metav1.Now()})
}

// TestForeignTextsControlNoTerminal checks that names of jobs, and messages of CI platforms and hypervisors, cannot
// control the terminal of the person who runs a command, and cannot forge a line of its output.
func TestForeignTextsControlNoTerminal(t *testing.T) { //nolint:paralleltest // it replaces standard error
	namespace := env.Namespace(t)
	createHostileObjects(t, namespace)

	for _, args := range []string{
		"jobs", "jobs -o wide", "jobs -o json", "jobs -o name", "job hostile", "job hostile -o json", "top --once", "doctor", "doctor -o json", "uninstall",
	} {
		words := strings.Fields(args)
		if words[0] != "uninstall" {
			words = append(words, "-n", namespace)
		}

		out := execute(t, env.Config, words...).out
		checkPrintable(t, args, out)

		if !strings.Contains(out, "hostile") && !strings.HasPrefix(args, "doctor") {
			t.Errorf("%s does not print the objects:\n%s", args, out)
		}
	}

	tool := &cobra.Command{Use: "tool", RunE: func(*cobra.Command, []string) error { return errors.New(hostileText("answer")) }}

	code, text := runWithStderr(t, tool)
	if code != cli.ExitFailed || !strings.HasPrefix(text, "tool: answer") {
		t.Errorf("code %d, %q", code, text)
	}

	checkPrintable(t, "an error", strings.ReplaceAll(text, "\n"+forged, ""))
}

// checkPrintable checks that the output has no characters that control a terminal, and no forged line.
func checkPrintable(t *testing.T, name, out string) {
	t.Helper()

	for line := range strings.Lines(out) {
		if strings.HasPrefix(strings.TrimSpace(line), forged) {
			t.Errorf("%s prints a forged line: %q", name, line)
		}

		if i := strings.IndexFunc(line, func(c rune) bool {
			return unicode.IsControl(c) && c != '\n' && c != '\t' || unicode.Is(unicode.Bidi_Control, c)
		}); i >= 0 {
			t.Errorf("%s prints %q", name, line)
		}
	}
}

// runWithStderr runs a program and returns its exit code and what it writes to standard error.
func runWithStderr(t *testing.T, tool *cobra.Command, args ...string) (code int, text string) {
	t.Helper()

	read, write, err := os.Pipe()
	must.Do(t, err)

	stderr := os.Stderr
	os.Stderr = write

	defer func() { os.Stderr = stderr }()

	code = cli.Run(tool, args)

	must.Do(t, write.Close())

	out, err := io.ReadAll(read)
	must.Do(t, err)

	return code, string(out)
}
