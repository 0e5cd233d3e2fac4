// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/cloudinit"
)

// maxGrowth is the maximum number of bytes that rendering a hostile template may allocate, including garbage.
const maxGrowth = 16 << 20

// listHostileTemplates returns templates that would use gigabytes or run forever, and the limits that stop
// them.
func listHostileTemplates() map[string]struct{ text, want string } {
	const bytes = "more than 2097152 bytes of text in total"

	return map[string]struct{ text, want string }{
		"kept by each call": {`{{define "a"}}{{$x:=printf "%060000d" 1}}{{template "a"}}{{end}}{{template "a"}}`, bytes},
		"small, by each call": {
			`{{define "a"}}{{$x:=printf "%07000d" 1}}{{template "a"}}{{end}}{{template "a"}}`, "more than 100 deep",
		},
		"two templates":     {`{{define "a"}}{{template "b"}}{{end}}{{define "b"}}{{template "a"}}{{end}}{{template "a"}}`, "more than 100 deep"},
		"wide verbs":        {`{{$x := printf "` + strings.Repeat("%1000000d", 2000) + `" 1}}`, bytes},
		"width by argument": {`{{$x := printf "` + strings.Repeat("%[1]*[1]d", 2000) + `" 1000000}}`, bytes},
		"precision":         {`{{$x := printf "%.1000000f%.1000000f%.1000000f" 1.0 1.0 1.0}}`, bytes},
		"list with width":   {`{{$x := printf "%900000s" .Labels}}`, bytes},
		"kept in a list":    {`{{range $i := 1000}}{{$x := printf "%0100000d" $i}}{{end}}`, bytes},
		"joined":            {`{{$x := "x"}}` + strings.Repeat(`{{$x = print $x $x}}`, 60), bytes},
		"escaped":           {`{{$x := "\\"}}` + strings.Repeat(`{{$x = js $x}}`, 60), bytes},
		"encoded":           {`{{$x := "<"}}` + strings.Repeat(`{{$x = base64 (toJson $x)}}`, 200), bytes},
		"written":           {`{{range 100000}}` + strings.Repeat("x", 600) + `{{end}}`, "more than 512 KiB"},
		"loops in loops":    {`{{range 100000}}{{range 100000}}{{end}}{{end}}`, "more than 100000 steps"},
		"long rounds":       {`{{range 50000}}{{if 0}}` + strings.Repeat("{{1}}", 100) + `{{end}}{{end}}`, "more than 100000 steps"},
		"nested blocks":     {strings.Repeat("{{if 1}}", 30000), "more than 5000 actions"},
		"uncounted":         {`{{hyperfleetLeave}}`, "unknown function hyperfleetLeave"},
	}
}

// TestHostileTemplatesAreBounded: a user's template cannot exhaust the operator's memory.
func TestHostileTemplatesAreBounded(t *testing.T) {
	for name, tt := range listHostileTemplates() {
		t.Run(name, func(t *testing.T) {
			in := newSampleInput()
			in.UserData = "#cloud-config\n" + tt.text

			err := requireBounded(t, in)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "cloudInit.userData") {
				t.Errorf("error: %.300v, want %q", err, tt.want)
			}
		})
	}
}

// A key that occurs thousands of times is reported once, because all pairs would use gigabytes.
func TestRepeatedKeysAreReportedOnce(t *testing.T) {
	in := newSampleInput()
	in.MetaData = strings.Repeat("a: 1\n", 3500)

	err := requireBounded(t, in)
	if err == nil || !strings.Contains(err.Error(), "duplicate key a, first used in line 1") || len(err.Error()) > 200 {
		t.Errorf("error: %.300v", err)
	}
}

// requireBounded renders, and fails the test if rendering allocates too much. All allocations count, so the
// time of garbage collections does not matter.
func requireBounded(t *testing.T, in cloudinit.Input) error {
	t.Helper()

	var before, after runtime.MemStats

	runtime.ReadMemStats(&before)

	_, err := cloudinit.Render(in)

	runtime.ReadMemStats(&after)

	if grown := after.TotalAlloc - before.TotalAlloc; grown > maxGrowth {
		t.Errorf("rendering allocated %d bytes, at most %d", grown, maxGrowth)
	}

	return err
}
