// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares got with a golden file, or writes the file with -update.
func golden(t *testing.T, name, got string) {
	t.Helper()

	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (run with -update after a review):\n%s", path, diff)
	}
}

func at(seconds float64) time.Time {
	return time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC).Add(time.Duration(seconds * float64(time.Second)))
}

func whole(seconds float64) *metav1.Time { return &metav1.Time{Time: at(seconds)} }

func micro(seconds float64) *metav1.MicroTime {
	out := metav1.NewMicroTime(at(seconds))

	return &out
}

// sample returns a job in the given state.
func sample(id string, state v1alpha1.JobState, edits ...func(*v1alpha1.RunnerJob)) *v1alpha1.RunnerJob {
	out := &v1alpha1.RunnerJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "gh-" + id},
		Spec: v1alpha1.RunnerJobSpec{
			Platform: v1alpha1.WorkloadGitHubActions, ID: id, Name: "build", Repository: "acme/app", Workflow: "CI",
			URL:    "https://github.com/acme/app/actions/runs/10683749869/job/" + id,
			Labels: []string{"self-hosted", "linux"}, State: state, QueuedAt: whole(0), ReceivedAt: micro(1.25),
		},
		Status: v1alpha1.RunnerJobStatus{Timeline: []v1alpha1.JobEvent{
			{Moment: v1alpha1.MomentQueued, Time: *micro(0)}, {Moment: v1alpha1.MomentReceived, Time: *micro(1.25)},
		}},
	}
	for _, edit := range edits {
		edit(out)
	}

	return out
}

func waiting(pool, reason, message string) func(*v1alpha1.RunnerJob) {
	return func(j *v1alpha1.RunnerJob) {
		j.Status.Pool = pool
		j.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: reason, Message: message}}
		j.Status.Timeline = append(j.Status.Timeline,
			v1alpha1.JobEvent{Moment: v1alpha1.MomentWaiting, Time: *micro(1.5), Message: reason + ": " + message})
	}
}

// received is a job with a pool whose status is not written yet.
func received(created time.Time) func(*v1alpha1.RunnerJob) {
	return func(j *v1alpha1.RunnerJob) {
		j.CreationTimestamp, j.Status = metav1.NewTime(created), v1alpha1.RunnerJobStatus{}
		j.Labels = map[string]string{v1alpha1.LabelRunnerPool: "linux"}
	}
}

func ran(j *v1alpha1.RunnerJob) {
	j.Spec.RunnerName, j.Spec.StartedAt = "linux-x7k2p-8f3b6c1d", whole(42)
	j.Status.Pool, j.Status.Claim = "linux", "linux-x7k2p"
	j.Status.Timeline = append(j.Status.Timeline,
		v1alpha1.JobEvent{Moment: v1alpha1.MomentDecided, Time: *micro(1.31), Message: "RunnerPool linux serves the job"},
		v1alpha1.JobEvent{Moment: v1alpha1.MomentCloned, Time: *micro(9.8), Message: "MachineClaim linux-x7k2p: VM 100105 on node pve1"},
		v1alpha1.JobEvent{Moment: v1alpha1.MomentBooted, Time: *micro(12.2), Message: "MachineClaim linux-x7k2p: VM 100105 on node pve1"},
		v1alpha1.JobEvent{Moment: v1alpha1.MomentRegistered, Time: *micro(40.1), Message: "MachineClaim linux-x7k2p: runner linux-x7k2p-8f3b6c1d"},
		v1alpha1.JobEvent{Moment: v1alpha1.MomentStarted, Time: *micro(42), Message: "runner linux-x7k2p-8f3b6c1d"},
	)
}

func finished(j *v1alpha1.RunnerJob) {
	ran(j)

	j.Spec.CompletedAt, j.Spec.Conclusion, j.Status.Logs = whole(305), "failure", j.Name+"-log"
	j.Status.Timeline = append(j.Status.Timeline,
		v1alpha1.JobEvent{Moment: v1alpha1.MomentFinished, Time: *micro(305), Message: "failure"},
		v1alpha1.JobEvent{Moment: v1alpha1.MomentDestroyed, Time: *micro(311.5), Message: "MachineClaim linux-x7k2p: VM 100105 is gone: JobDone"},
	)
}

const atMaximum = "RunnerPool linux has all machines that scaling.maxReplicas allows (10): queued jobs wait until other jobs end; " +
	"raise maxReplicas if there is capacity for more"

func TestList(t *testing.T) {
	t.Parallel()

	jobs := []v1alpha1.RunnerJob{
		*sample("29679449530", v1alpha1.JobQueued, waiting("linux", "AtMaximum", atMaximum)),
		*sample("29679449531", v1alpha1.JobQueued, func(j *v1alpha1.RunnerJob) { j.Spec.Name = "deploy\x1b[2J \u202egnihton\n" }),
		*sample("29679449526", v1alpha1.JobRunning, ran),
		*sample("29679449520", v1alpha1.JobCompleted, finished),
		*sample("29679449519", v1alpha1.JobCompleted, func(j *v1alpha1.RunnerJob) {
			j.Spec.Conclusion, j.Spec.CompletedAt, j.Namespace = "cancelled", whole(30), "team-b"
		}),
	}
	cases := map[string]struct {
		jobs          []v1alpha1.RunnerJob
		format        string
		allNamespaces bool
	}{
		"list.txt":       {jobs: jobs, format: cli.OutputTable},
		"list-all.txt":   {jobs: jobs, format: cli.OutputTable, allNamespaces: true},
		"list-wide.txt":  {jobs: jobs, format: cli.OutputWide},
		"list-name.txt":  {jobs: jobs, format: cli.OutputName},
		"list.json":      {jobs: jobs, format: cli.OutputJSON},
		"list.yaml":      {jobs: jobs, format: cli.OutputYAML},
		"list-none.txt":  {format: cli.OutputTable},
		"list-none.json": {format: cli.OutputJSON},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			golden(t, name, printed(t, tc.format, newList(tc.jobs, at(400), tc.allNamespaces)))
		})
	}
}

// printed returns the content as a command with the format prints it.
func printed(t *testing.T, format string, content cli.Content) string {
	t.Helper()

	var (
		output cli.Output
		out    bytes.Buffer
	)

	output.AddFlag(&cobra.Command{}, format)

	if err := output.Print(&out, content); err != nil {
		t.Fatal(err)
	}

	return out.String()
}

func claim(name string, edits ...func(*v1alpha1.MachineClaim)) v1alpha1.MachineClaim {
	out := v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: name},
		Status: v1alpha1.MachineClaimStatus{
			Phase:       v1alpha1.MachineClaimProvisioning,
			VMRef:       &v1alpha1.VMReference{HypervisorCluster: "proxmox-prod", VMID: "100105", Node: "pve1"},
			NetworkInfo: &v1alpha1.NetworkInfo{IPAddress: "192.0.2.7"},
			Conditions:  []metav1.Condition{{Type: "Ready", Reason: "Creating", Message: "the clone is at 40%"}},
		},
	}
	for _, edit := range edits {
		edit(&out)
	}

	return out
}

func TestExplain(t *testing.T) {
	t.Parallel()

	log := func(lines int, cut bool) *v1alpha1.RunnerLog {
		var text strings.Builder
		for i := range lines {
			fmt.Fprintf(&text, "\x1b[32mstep %d\x1b[0m is done\r\n", i+1)
		}

		return &v1alpha1.RunnerLog{Spec: v1alpha1.RunnerLogSpec{Text: text.String(), Cut: cut}}
	}
	machine := claim("linux-x7k2p", func(c *v1alpha1.MachineClaim) {
		c.Status.Phase = v1alpha1.MachineClaimReady
		c.Status.Conditions[0].Reason, c.Status.Conditions[0].Message = "JobRunning", "job gh-29679449526"
	})
	unplaced := claim("linux-9qq4z", func(c *v1alpha1.MachineClaim) {
		c.Status.Phase, c.Status.VMRef, c.Status.NetworkInfo = v1alpha1.MachineClaimPending, nil, nil
		c.Status.Conditions[0].Reason, c.Status.Conditions[0].Message = "NoCapacity", "no node of proxmox-prod has 8 GiB of memory free"
	})

	keptOne := claim("linux-bad01")
	keptOne.Status.Phase, keptOne.Status.KeptUntil = v1alpha1.MachineClaimFailed, whole(3600)
	keptOne.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Kept",
		Message: "the machine failed (BootstrapTimeout) and is kept until noon: log in to node pve1 and run: qm terminal 105",
	}}

	cases := map[string]struct {
		of  *jobObjects
		all bool
	}{
		"job-waits.txt": {of: &jobObjects{job: sample("29679449530", v1alpha1.JobQueued, waiting("linux", "AtMaximum", atMaximum))}},
		"job-coming.txt": {of: &jobObjects{
			job:        sample("29679449530", v1alpha1.JobQueued, waiting("linux", "NoCapacity", "MachineClaim linux-9qq4z: no node of proxmox-prod has 8 GiB of memory free")),
			candidates: []v1alpha1.MachineClaim{claim("linux-x7k2p"), unplaced, unplaced, unplaced, unplaced, unplaced, unplaced},
		}},
		"job-kept.txt": {of: &jobObjects{
			job: sample("29679449530", v1alpha1.JobQueued, waiting("linux", "MachinesFailing", "the last 3 machines failed")), kept: []v1alpha1.MachineClaim{keptOne},
		}},
		"job-unseen.txt":    {of: &jobObjects{job: sample("29679449530", v1alpha1.JobQueued, func(j *v1alpha1.RunnerJob) { j.Status.Timeline = nil })}},
		"job-received.txt":  {of: &jobObjects{job: sample("29679449530", v1alpha1.JobQueued, received(at(380)))}},
		"job-stuck.txt":     {of: &jobObjects{job: sample("29679449530", v1alpha1.JobQueued, received(at(300)))}},
		"job-runs.txt":      {of: &jobObjects{job: sample("29679449526", v1alpha1.JobRunning, ran), claim: &machine}},
		"job-done.txt":      {of: &jobObjects{job: sample("29679449520", v1alpha1.JobCompleted, finished), log: log(50, true)}},
		"job-done-log.txt":  {of: &jobObjects{job: sample("29679449520", v1alpha1.JobCompleted, finished), log: log(25, true)}, all: true},
		"job-no-log.txt":    {of: &jobObjects{job: sample("29679449520", v1alpha1.JobCompleted, finished), logProblem: "no permission to read RunnerLog gh-29679449520-log"}},
		"job-cancelled.txt": {of: &jobObjects{job: sample("29679449519", v1alpha1.JobCompleted, func(j *v1alpha1.RunnerJob) { j.Spec.Conclusion, j.Spec.CompletedAt = "cancelled", whole(30) })}},
		"job-done.json":     {of: &jobObjects{job: sample("29679449520", v1alpha1.JobCompleted, finished), log: log(2, false)}},
		"job-waits.json": {of: &jobObjects{
			job: sample("29679449530", v1alpha1.JobQueued, waiting("linux", "AtMaximum", atMaximum)), candidates: []v1alpha1.MachineClaim{claim("linux-x7k2p")},
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			details := newDetails(tc.of, at(400))

			if strings.HasSuffix(name, ".json") {
				golden(t, name, printed(t, cli.OutputJSON, cli.Content{Data: details}))

				return
			}

			var out bytes.Buffer

			printer{&out, time.UTC}.printDetails(details, tc.all)
			golden(t, name, out.String())
		})
	}
}

// TestSort checks that queued jobs come first, and that the last completed job is the first of the completed jobs.
func TestSort(t *testing.T) {
	t.Parallel()

	at := func(second int) *metav1.Time { return &metav1.Time{Time: time.Unix(int64(second), 0)} }
	job := func(name string, state v1alpha1.JobState, queued int, completed *metav1.Time) v1alpha1.RunnerJob {
		return v1alpha1.RunnerJob{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.RunnerJobSpec{State: state, QueuedAt: at(queued), CompletedAt: completed},
		}
	}
	all := []v1alpha1.RunnerJob{
		job("soon over", v1alpha1.JobCompleted, 3, at(20)), job("runs", v1alpha1.JobRunning, 2, nil),
		job("long waited", v1alpha1.JobCompleted, 1, at(30)), job("newer", v1alpha1.JobQueued, 5, nil), job("older", v1alpha1.JobQueued, 4, nil),
	}
	Sort(all)

	var got []string
	for i := range all {
		got = append(got, all[i].Name)
	}

	if diff := cmp.Diff([]string{"older", "newer", "runs", "long waited", "soon over"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()

	other := sample("29679449526", v1alpha1.JobQueued, func(j *v1alpha1.RunnerJob) {
		j.Name, j.Namespace = "gh-29679449526-aabbccdd", "team-b"
		j.Spec.URL = "https://ghes.example.com/acme/app/actions/runs/7/job/29679449526"
	})
	jobs := []v1alpha1.RunnerJob{
		*sample("29679449526", v1alpha1.JobRunning), *other,
		*sample("29679449520", v1alpha1.JobCompleted, func(j *v1alpha1.RunnerJob) { j.Spec.Name = "integration tests" }),
	}

	cases := []struct {
		name, id, want string
		wantErr        []string
	}{
		{name: "name", id: "gh-29679449520", want: "gh-29679449520"},
		{name: "namespace and name", id: "team-b/gh-29679449526-aabbccdd", want: "gh-29679449526-aabbccdd"},
		{name: "id", id: " 29679449520 ", want: "gh-29679449520"},
		{name: "address", id: "https://github.com/acme/app/actions/runs/10683749869/job/29679449526", want: "gh-29679449526"},
		{name: "address of a step", id: "https://GitHub.com/acme/app/actions/runs/10683749869/job/29679449526?pr=3#step:4:1", want: "gh-29679449526"},
		{name: "address of a run with one job", id: "https://ghes.example.com/acme/app/actions/runs/7/", want: "gh-29679449526-aabbccdd"},
		{name: "address of a run with more", id: "https://github.com/acme/app/actions/runs/10683749869", wantErr: []string{
			"several jobs", "ci/gh-29679449526 ", "ci/gh-29679449520 ",
		}},
		{name: "id of two servers' jobs", id: "29679449526", wantErr: []string{"several jobs", "ci/gh-29679449526 ", "team-b/gh-29679449526-aabbccdd "}},
		{name: "a wrong figure", id: "29679449521", wantErr: []string{`found no job "29679449521" in namespace ci`, "similar jobs are", "gh-29679449520"}},
		{name: "what the job is called", id: "Integration", wantErr: []string{"similar jobs are", "gh-29679449520"}},
		{name: "an address with a wrong figure", id: "https://github.com/acme/app/actions/runs/1/job/29679449529", wantErr: []string{"gh-29679449520"}},
		{name: "nothing like it", id: "zzz", wantErr: []string{`found no job "zzz"`, "hyperfleet jobs --all-namespaces"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()

			got, err := findJob(jobs, tc.id, "in namespace ci")

			switch {
			case len(tc.wantErr) == 0 && (err != nil || got.Name != tc.want):
				t.Errorf("found %v, %v; want %s", got, err, tc.want)
			case len(tc.wantErr) > 0 && err == nil:
				t.Fatalf("found %s", got.Name)
			}

			for _, part := range tc.wantErr {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q lacks %q", err, part)
				}
			}

			if code := cli.ExitCode(err); len(tc.wantErr) > 0 && code != cli.ExitFailed {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
