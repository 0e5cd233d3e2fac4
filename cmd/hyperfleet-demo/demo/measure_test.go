// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
)

func TestCountJobs(t *testing.T) {
	t.Parallel()

	at := func(s int64) time.Time { return time.Unix(s, 0) }
	got := countJobs([]control.Job{
		{Status: "queued", QueuedAt: at(1)},
		{Status: "waiting", QueuedAt: at(1)},
		{Status: "in_progress", QueuedAt: at(2)},
		{Status: "completed", Conclusion: "success", QueuedAt: at(3), CompletedAt: at(9)},
		{Status: "completed", Conclusion: "failure", QueuedAt: at(4), CompletedAt: at(8)},
		{Status: "completed", Conclusion: "cancelled", QueuedAt: at(5), CompletedAt: at(7)},
	})
	want := jobCounts{
		queued: 2, running: 1, succeeded: 1, failed: 2,
		queueTimes: []time.Time{at(1), at(1), at(2), at(3), at(4), at(5)}, endTimes: []time.Time{at(9), at(8), at(7)},
	}

	if diff := cmp.Diff(want, got, cmp.AllowUnexported(jobCounts{})); diff != "" {
		t.Error(diff)
	}

	if got.finished() != 3 || !latestTime(got.endTimes).Equal(at(9)) || !latestTime(nil).IsZero() {
		t.Errorf("%d over, the last at %v", got.finished(), latestTime(got.endTimes))
	}
}

func TestHypervisorSince(t *testing.T) {
	t.Parallel()

	before := hypervisorState{
		vms: map[int]vmState{
			100: {label: "100 accounting", fingerprint: "a"},
			101: {label: "101 lookalike", fingerprint: "b"},
			102: {label: "102 old", fingerprint: "c"},
		},
		isos: []string{"local:iso/debian.iso"},
	}
	tests := []struct {
		name    string
		now     hypervisorState
		vms     []string
		isos    []string
		touched int
	}{
		{name: "as before", now: before},
		{
			name: "new ones are ours", isos: []string{"local:iso/hyperfleet-1.iso"}, vms: []string{"100000 demo-a"},
			now: hypervisorState{
				vms: map[int]vmState{
					100: before.vms[100], 101: before.vms[101], 102: before.vms[102], 100000: {label: "100000 demo-a"},
				},
				isos: append([]string{"local:iso/hyperfleet-1.iso"}, before.isos...),
			},
		},
		{
			name: "changed and deleted VMs of others are counted", touched: 2,
			now: hypervisorState{
				vms: map[int]vmState{100: {fingerprint: "x"}, 101: before.vms[101]}, isos: before.isos,
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			vms, isos, touched := tt.now.diff(before)
			if diff := cmp.Diff(tt.vms, vms) + cmp.Diff(tt.isos, isos); diff != "" || touched != tt.touched {
				t.Errorf("%d touched, want %d; %s", touched, tt.touched, diff)
			}
		})
	}
}

func TestParsePeak(t *testing.T) {
	t.Parallel()

	for status, want := range map[string]float64{
		"Name:\thyperfleet\nVmPeak:\t  999 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n": 2 << 20,
		"Name:\tx\n":         0,
		"VmHWM:\tmany kB\n":  0,
		"VmHWM:\t     1 kB":  1024,
		"":                   0,
		"\nVmHWM:\n":         0,
		"XVmHWM:\t 4096 kB ": 0,
	} {
		if got := parsePeakMemory(status); got != want {
			t.Errorf("parsePeak(%q) = %g, want %g", status, got, want)
		}
	}

	if _, err := os.Stat("/proc/self/status"); err == nil && readPeakMemory(os.Getpid()) < 1<<20 {
		t.Errorf("peak of this process: %g bytes", readPeakMemory(os.Getpid()))
	}
}

func TestReadExports(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "sim.log")
	text := "starting\nexport A_URL=http://127.0.0.1:1\nexport B='it'\\''s'\nexport C=\"two words\"\nexport broken\n"

	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	got, err := readExports(path, "A_URL", "B")
	if err != nil {
		t.Fatal(err)
	}

	want := map[string]string{"A_URL": "http://127.0.0.1:1", "B": "it's", "C": "two words"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	if _, err := readExports(path, "A_URL", "D"); !errors.Is(err, errProbeNotReady) {
		t.Errorf("error %v, want that D is missing", err)
	}

	if _, err := readExports(path + ".none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want that the file is missing", err)
	}
}

func TestWhyNotReady(t *testing.T) {
	t.Parallel()

	pool := func(generation int64, conditions ...metav1.Condition) *v1alpha1.RunnerPool {
		return &v1alpha1.RunnerPool{
			ObjectMeta: metav1.ObjectMeta{Generation: generation},
			Status:     v1alpha1.RunnerPoolStatus{Conditions: conditions},
		}
	}
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, ObservedGeneration: 2}
	not := metav1.Condition{
		Type: "Ready", Status: metav1.ConditionFalse, ObservedGeneration: 2, Reason: "SecretNotFound", Message: "make it",
	}

	tests := []struct {
		name string
		pool *v1alpha1.RunnerPool
		want string
	}{
		{name: "ready", pool: pool(2, ready)},
		{name: "not reconciled", pool: pool(1), want: "the operator has not reconciled the object yet"},
		{name: "stale", pool: pool(3, ready), want: "the operator has not reconciled the last change of the object yet"},
		{name: "why", pool: pool(2, not), want: "SecretNotFound: make it"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			if got := notReadyMessage(tt.pool); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestExplainListsLeftovers(t *testing.T) {
	t.Parallel()

	var claims []string
	for range 12 {
		claims = append(claims, "demo-a Terminating")
	}

	s := &stack{leftovers: observation{claimNames: claims, isoNames: []string{"pve1 local:iso/x.iso"}}}
	got := s.explain(&Report{Problems: []string{"left: 12 claims"}}, nil)

	for _, want := range []string{
		"FAILED\n  - left: 12 claims\n", "  claims left:\n    - demo-a Terminating\n", "    - and 2 more\n",
		"  ISOs left:\n    - pve1 local:iso/x.iso\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}

	if strings.Contains(got, "VMs left") {
		t.Errorf("lists objects that are not left:\n%s", got)
	}
}

func TestModelReachesTheSimulator(t *testing.T) {
	t.Parallel()

	for _, nodes := range []int{1, 2, 3, 5} {
		o := Options{Nodes: nodes, Clone: 2 * time.Second, Boot: 3 * time.Second, ParallelClones: 4, Seed: 7}

		text, err := yaml.Marshal(o.hypervisorModel())
		if err != nil {
			t.Fatal(err)
		}

		got, err := pve.ParseModel(text)
		if err != nil {
			t.Fatalf("%d nodes: %v", nodes, err)
		}

		want := o.hypervisorModel()
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(pve.Guest{}, "Script")); diff != "" {
			t.Errorf("%d nodes: the simulator has another model: %s", nodes, diff)
		}

		sim, err := pve.New(got)
		if err != nil {
			t.Fatalf("%d nodes: %v", nodes, err)
		}

		in := sim.FloorInput(10, time.Second)
		if in.CloneSlots != 4*nodes || in.Clone != 2*time.Second || in.Boot != 3*time.Second {
			t.Errorf("%d nodes: the floor is computed from %+v", nodes, in)
		}

		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestCountCalls(t *testing.T) {
	t.Parallel()

	r := Report{VMsCreated: 2, TotalCalls: map[string]int{}}
	before := hypervisorState{
		vms:   map[int]vmState{9001: {}},
		calls: pve.CallCounts{ByClass: map[pve.Class]int{pve.ClassVM: 3, pve.ClassStorage: 1, pve.ClassListing: 5}, Errors: 1},
	}
	r.countCalls(pve.CallCounts{
		ByClass: map[pve.Class]int{pve.ClassVM: 15, pve.ClassStorage: 5, pve.ClassListing: 25, pve.ClassTask: 30},
		ByVM:    map[int]int{9001: 40, 100000: 6, 100001: 5}, Errors: 4,
	}, before)

	want := Report{
		VMsCreated: 2, CallsPerVM: 8, MaxCallsPerVM: 6, FailedCalls: 3,
		TotalCalls: map[string]int{"vm": 12, "storage": 4, "listing": 20, "task": 30},
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
}

func TestClonesMade(t *testing.T) {
	t.Parallel()

	got := countClones([]pve.TaskState{
		{Type: "qmclone", Exit: "OK"}, {Type: "qmclone", Exit: "WARNINGS: 1"}, {Type: "qmclone"},
		{Type: "qmclone", Exit: "can't lock file"}, {Type: "qmstart", Exit: "OK"},
	})
	if got != 2 {
		t.Errorf("%d clones, want 2", got)
	}
}

// TestPause checks that the delay grows with the duration of an observation.
func TestPause(t *testing.T) {
	t.Parallel()

	for took, want := range map[time.Duration]time.Duration{
		time.Millisecond: 500 * time.Millisecond, 50 * time.Millisecond: 500 * time.Millisecond, 200 * time.Millisecond: 2 * time.Second,
	} {
		if got := observeDelay(500*time.Millisecond, took); got != want {
			t.Errorf("after an observation of %s, the delay is %s, want %s", took, got, want)
		}
	}
}
