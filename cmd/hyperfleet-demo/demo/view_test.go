// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func newSampleView() view {
	return view{
		elapsed: 72*time.Second + 340*time.Millisecond,
		total:   10, queued: 4, running: 2, completed: 3, failed: 1,
		vms: 4, runners: 3, isos: 2,
		rows: []row{
			{
				claim: "demo-7kqxz", phase: "Ready", vm: "pve1/100000", runner: "demo-7kqxz-0a1b2c3d",
				job: "build #1001", age: 65 * time.Second, inPhase: 1500 * time.Millisecond,
			},
			{
				claim: "demo-é2345", phase: "Bootstrapping (Started)", vm: "pve2/100001",
				runner: "demo-e2345-4e5f6a7b", age: 7 * time.Second, inPhase: 400 * time.Millisecond,
			},
			{claim: "demo-9abcd", phase: "Provisioning", vm: "pve3/100002", age: 3 * time.Second, inPhase: 3 * time.Second},
			{claim: "demo-fghij", phase: "Pending", age: 100 * time.Millisecond, inPhase: 100 * time.Millisecond},
		},
	}
}

func TestRender(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name          string
		view          view
		width, height int
	}{
		{name: "wide", view: newSampleView(), width: 120, height: 40},
		{name: "narrow-leaves-columns-out", view: newSampleView(), width: 64, height: 40},
		{name: "tiny-is-clipped", view: newSampleView(), width: 10, height: 40},
		{name: "low-counts-what-is-not-shown", view: newSampleView(), width: 120, height: 9},
		{name: "empty", view: view{total: 3, queued: 3}, width: 80, height: 24},
		{name: "no-jobs", view: view{}, width: 80, height: 24},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			lines := tt.view.render(tt.width, tt.height)
			for _, line := range lines {
				if got, most := utf8.RuneCountInString(line), max(tt.width, minWidth); got > most {
					t.Errorf("line of %d columns, at most %d: %q", got, most, line)
				}
			}

			if len(lines) >= tt.height {
				t.Errorf("%d lines do not fit a terminal of %d", len(lines), tt.height)
			}

			compareGolden(t, "view-"+tt.name+".txt", strings.Join(lines, "\n")+"\n")
		})
	}
}

// compareGolden compares got with a golden file. With -update, it writes the file.
func compareGolden(t *testing.T, name, got string) {
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
		t.Errorf("%s (review, then run with -update):\n%s", path, diff)
	}
}

func TestChanges(t *testing.T) {
	t.Parallel()

	one := row{claim: "demo-a", phase: "Pending"}
	moved := row{claim: "demo-a", phase: "Provisioning", vm: "pve1/100000", age: 2 * time.Second}
	older := moved
	older.age, older.inPhase = 9*time.Second, 7*time.Second

	busy := moved
	busy.job = "build #1"

	tests := []struct {
		name        string
		before, now view
		want        []string
	}{
		{name: "nothing", before: view{rows: []row{one}}, now: view{rows: []row{one}}},
		{name: "only older", before: view{rows: []row{moved}}, now: view{rows: []row{older}}},
		{name: "new claim", now: view{rows: []row{one}}, want: []string{"demo-a  Pending"}},
		{
			name: "next phase", before: view{rows: []row{one}}, now: view{rows: []row{moved}},
			want: []string{"demo-a  Provisioning  vm pve1/100000"},
		},
		{
			name: "job assigned", before: view{rows: []row{moved}}, now: view{rows: []row{busy}},
			want: []string{"demo-a  Provisioning  vm pve1/100000  job build #1"},
		},
		{name: "deleted", before: view{rows: []row{older}}, want: []string{"demo-a  deleted after 9.0s"}},
		{
			name: "job counts", before: view{total: 5, completed: 1}, now: view{total: 5, completed: 2, running: 1, failed: 1},
			want: []string{"jobs: 2 of 5 done, 1 running, 0 queued, 1 failed"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			if diff := cmp.Diff(tt.want, tt.now.changes(tt.before)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestConsolePlain(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer

	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	con := newConsole(&out, clock)

	if err := con.runStep("apply CRDs", func() (string, error) {
		clock.SetTime(time.Unix(2, 0))

		return "5 applied", nil
	}); err != nil {
		t.Fatal(err)
	}

	con.show(view{rows: []row{{claim: "demo-a", phase: "Pending"}}})
	con.show(view{rows: []row{{claim: "demo-a", phase: "Pending"}}})
	con.printf("queued %d jobs", 3)
	con.close()

	want := "[   2.0s] apply CRDs: 5 applied (2.0s)\n[   2.0s] demo-a  Pending\n[   2.0s] queued 3 jobs\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestConsoleLive(t *testing.T) {
	t.Parallel()

	var out writes

	con := &console{
		out: &out, clock: clocktesting.NewFakePassiveClock(time.Unix(0, 0)), start: time.Unix(0, 0),
		size: func() (int, int) { return 80, 24 },
	}

	con.show(view{total: 2})
	con.show(view{total: 2, completed: 1})
	con.printf("done")
	con.close()

	if len(out) != 4 {
		t.Fatalf("%d writes, want one for each change: %q", len(out), out)
	}

	frame := len(view{total: 2}.render(80, 24))
	if up := "\x1b[" + string(rune('0'+frame)) + "A\r"; !strings.HasPrefix(out[1], screen.BeginFrame+up) {
		t.Errorf("second frame does not go up %d lines first: %q", frame, out[1])
	} else if !strings.HasPrefix(out[2], up+screen.EraseBelow) {
		t.Errorf("line does not erase the frame: %q", out[2])
	}

	if out[3] != screen.ShowCursor {
		t.Errorf("close wrote %q, want the cursor back", out[3])
	}
}

// writes records each write separately.
type writes []string

func (w *writes) Write(p []byte) (int, error) {
	*w = append(*w, string(p))

	return len(p), nil
}
