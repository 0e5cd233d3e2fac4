// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

func newGoodReport() Report {
	return Report{
		Jobs: 50, JobsCompleted: 50, VMsCreated: 50, CallsPerVM: 9.5, MaxCallsPerVM: 11,
		TotalCalls:    map[string]int{"vm": 400, "storage": 75, "listing": 60, "task": 90},
		PlatformCalls: map[string]int{"jit": 50, "delete": 50}, PlatformCallsPerJob: 2,
		KubernetesWrites: map[string]int{"machineclaims status": 300, "events": 150}, KubernetesWritesPerJob: 9, KubernetesConflicts: map[string]int{"runnerjobs put": 5},
		MakespanSeconds: 24.1, FloorSeconds: 23, Ratio: 1.048, CleanupSeconds: 1.5, RSSMiB: 61.25,
		Webhooks:  Webhooks{Delivered: 150},
		Latencies: Latencies{QueuedToClone: Latency{Count: 50, P50: 0.5, P95: 9, Max: 9.5}, Clone: Latency{Count: 50, P50: 2.1, P95: 2.6, Max: 3}},
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name string
		edit func(*Report)
		want []string
	}{
		{name: "all ran, nothing left", edit: func(*Report) {}},
		{
			name: "a slow run still passes: time is measured, not judged",
			edit: func(r *Report) { r.Ratio, r.CallsPerVM = 9, 99 },
		},
		{name: "job missing", edit: func(r *Report) { r.JobsCompleted = 49 }, want: []string{"49 of 50 jobs succeeded"}},
		{
			name: "job failed", edit: func(r *Report) { r.JobsCompleted, r.JobsFailed = 49, 1 },
			want: []string{"49 of 50 jobs succeeded", "1 job failed"},
		},
		{name: "VM left", edit: func(r *Report) { r.VMsLeft = 1 }, want: []string{"1 VM left on the hypervisor"}},
		{
			name: "another owner's VM touched", edit: func(r *Report) { r.VMsLeft, r.ForeignVMsTouched = 1, 1 },
			want: []string{"1 VM of other owners modified"},
		},
		{name: "claim left", edit: func(r *Report) { r.ClaimsLeft = 2 }, want: []string{"2 claims left"}},
		{
			name: "runner left", edit: func(r *Report) { r.RunnersLeft = 3 },
			want: []string{"3 runners left at the CI platform"},
		},
		{
			name: "ISO left", edit: func(r *Report) { r.ISOsLeft = 4 },
			want: []string{"4 ISOs left on the hypervisor's storage"},
		},
		{name: "violation", edit: func(r *Report) { r.Violations = 5 }, want: []string{"5 calls violated the rules of a simulator"}},
		{
			name: "earlier problems stay", edit: func(r *Report) { r.Problems = []string{"operator ended"} },
			want: []string{"operator ended"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			report := newGoodReport()
			tt.edit(&report)
			report.evaluate()

			if diff := cmp.Diff(tt.want, report.Problems); diff != "" || report.Passed != (len(tt.want) == 0) {
				t.Errorf("passed %v, problems %s", report.Passed, diff)
			}
		})
	}
}

func TestReportJSON(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer

	report := newGoodReport()
	report.evaluate()

	if err := report.writeJSON(&out); err != nil {
		t.Fatal(err)
	}

	if strings.Count(out.String(), "\n") != 1 || !strings.HasSuffix(out.String(), "}\n") {
		t.Errorf("not one object on one line: %q", out.String())
	}

	var fields map[string]any
	if err := json.Unmarshal(out.Bytes(), &fields); err != nil {
		t.Fatal(err)
	}

	var names []string
	for name := range fields {
		names = append(names, name)
	}

	slices.Sort(names)

	want := []string{
		"callsPerVM", "claimsLeft", "cleanupSeconds", "failedCalls", "floorSeconds", "foreignVMsTouched", "isosLeft",
		"jobs", "jobsCompleted", "jobsFailed", "kubernetesConflicts", "kubernetesWrites", "kubernetesWritesPerJob", "latencies", "makespanSeconds", "maxCallsPerVM", "passed", "platformCalls", "platformCallsPerJob",
		"problems",
		"ratio", "rssMiB", "runnersLeft", "totalCalls", "violations", "vmCrashes", "vmsCreated", "vmsLeft", "webhooks",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("fields of the JSON object: %s", diff)
	}

	if problems, ok := fields["problems"].([]any); !ok || len(problems) != 0 {
		t.Errorf("problems are %v, want an empty list", fields["problems"])
	}
}

func TestReportText(t *testing.T) {
	t.Parallel()

	report := newGoodReport()
	compareGolden(t, "report.txt", report.formatText())
}

func TestLatencies(t *testing.T) {
	t.Parallel()

	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	micro := func(ms int) *metav1.MicroTime {
		m := metav1.NewMicroTime(at(ms))

		return &m
	}
	claims := []claimRecord{
		{
			name: "complete lifecycle", runner: "r", firstSeen: at(1000), deletionSeen: at(12000),
			times: v1alpha1.MachineTimes{CloneStarted: micro(1500), Started: micro(3500), Ready: micro(7000)},
		},
		{name: "not beyond the clone, clocks disagree", firstSeen: at(2000), times: v1alpha1.MachineTimes{CloneStarted: micro(1990)}},
		{name: "made for no job", firstSeen: at(9000)},
	}
	one := func(v float64) Latency { return Latency{Count: 1, P50: v, P95: v, Max: v} }

	got := computeLatencies([]time.Time{at(900), at(950)}, claims, []control.Job{
		{RunnerName: "r", StartedAt: at(7250), CompletedAt: at(10000)}, {StartedAt: at(1), CompletedAt: at(2)},
	})
	want := Latencies{
		ReceivedToClaim: Latency{Count: 2, P50: 0.1, P95: 1.05, Max: 1.05},
		ClaimToClone:    Latency{Count: 2, P50: 0, P95: 0.5, Max: 0.5},
		Clone:           one(2), Boot: one(3.5), JobStart: one(0.25), Destroyed: one(2), Life: one(11),
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	if got := computeSpan([]time.Time{at(5000), at(1000)}, []time.Time{at(3000), at(9000)}); got != 8*time.Second {
		t.Errorf("span %s, want 8s", got)
	}

	if got := computeSpan(nil, []time.Time{at(1)}); got != 0 {
		t.Errorf("span without a start %s, want 0", got)
	}
}

// TestQueuedToClone checks that the n-th clone is paired with the n-th job in the order of time. Claims without a clone,
// and clones without a job, are ignored.
func TestQueuedToClone(t *testing.T) {
	t.Parallel()

	at := func(s int64) time.Time { return time.Unix(s, 0) }
	claim := func(s int64) claimRecord {
		cloneStarted := metav1.NewMicroTime(at(s))

		return claimRecord{times: v1alpha1.MachineTimes{CloneStarted: &cloneStarted}}
	}
	jobs := []control.Job{{QueuedAt: at(20)}, {QueuedAt: at(10)}}

	got := queuedToCloneLatency(jobs, []claimRecord{claim(26), {}, claim(11), claim(90)})
	if want := (Latency{Count: 2, P50: 1, P95: 6, Max: 6}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestPlatformCalls(t *testing.T) {
	t.Parallel()

	state := control.State{Requests: map[string]int{"validate": 3, "jit": 8, "ping": 90}, MachineCalls: []string{"ping"}}
	report := Report{Jobs: 4}
	report.countPlatformCalls(map[string]int{"validate": 3, "jit": 1}, state.ClientRequests())

	if diff := cmp.Diff(map[string]int{"jit": 7}, report.PlatformCalls); diff != "" || report.PlatformCallsPerJob != 1.75 {
		t.Errorf("%v per job, calls %s", report.PlatformCallsPerJob, diff)
	}

	if len(state.Requests) != 3 {
		t.Errorf("the state was changed: %v", state.Requests)
	}
}

// TestKubernetesWrites checks that only accepted writes and conflicts since the first job are counted. Leases, reads and
// rejected writes are ignored.
func TestKubernetesWrites(t *testing.T) {
	t.Parallel()

	const page = `# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="machineclaims",subresource="status",verb="PATCH"} %d
apiserver_request_total{code="409",resource="machineclaims",subresource="status",verb="PATCH"} 3
apiserver_request_total{code="201",resource="events",subresource="",verb="POST"} 4
apiserver_request_total{code="200",resource="events",subresource="",verb="PATCH"} 1
apiserver_request_total{code="200",resource="leases",subresource="",verb="PUT"} 70
apiserver_request_total{code="200",resource="machineclaims",subresource="",verb="WATCH"} 9
apiserver_request_total{code="403",resource="machineclaims",subresource="",verb="DELETE"} 9
`

	before, err := parseKubeWrites(strings.NewReader("# TYPE apiserver_request_total counter\n"))
	if err != nil {
		t.Fatal(err)
	}

	now, err := parseKubeWrites(strings.NewReader(fmt.Sprintf(page, 15)))
	if err != nil {
		t.Fatal(err)
	}

	report := Report{Jobs: 4}
	report.countKubeWrites(before, now)

	if diff := cmp.Diff(map[string]int{"machineclaims status": 15, "events": 5}, report.KubernetesWrites); diff != "" {
		t.Error(diff)
	}

	if report.KubernetesWritesPerJob != 5 || report.conflictsPerJob() != 0.75 || len(report.KubernetesConflicts) != 1 {
		t.Errorf("%v per job and conflicts %v, want 5 and 3 in all", report.KubernetesWritesPerJob, report.KubernetesConflicts)
	}
}

func TestFormatLogLine(t *testing.T) {
	t.Parallel()

	tests := []struct{ name, line, want string }{
		{
			name: "operator",
			line: `{"time":"2026-01-02T03:04:05.678Z","level":"ERROR","msg":"step failed","controller":"machineclaim",` +
				`"controllerKind":"MachineClaim","MachineClaim":{"name":"a"},"name":"a","error":"no room"}`,
			want: "03:04:05.678 ERROR step failed controller=machineclaim error=no room name=a",
		},
		{name: "output of another program", line: "panic: oh no", want: "panic: oh no"},
		{name: "JSON that is no log line", line: `{"a":1}`, want: `{"a":1}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			if got := formatLogLine(tt.line); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
