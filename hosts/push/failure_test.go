// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/plan/parts"
	"github.com/hyperfleet/hyperfleet/hosts/push"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/sim/machost"
)

const (
	firstPath  = "/usr/local/libexec/first"
	secretPath = "/etc/token"
	lastPath   = "/usr/local/libexec/last"
	token      = "hunter2-hunter2-hunter2"
)

// newSmallPlan returns a plan of four parts: first, token, script, last.
func newSmallPlan(t *testing.T, version, script string) plan.Plan {
	t.Helper()

	place := func(path string) parts.FileSpec { return parts.FileSpec{Path: path, Mode: 0o600, Owner: "root:wheel"} }
	content := func(name string) plan.Content {
		return plan.NewText(strings.Repeat(name+" "+version+"\n", 10_000))
	}

	p, err := plan.New(
		parts.NewFile("first", plan.File, place(firstPath), content("first")),
		parts.NewSecret("token", place(secretPath), log.NewSecret(token)),
		parts.NewScript("script", script, "true"),
		parts.NewFile("last", plan.File, place(lastPath), content("last")),
	)

	return must(t, p, err)
}

const okScript = "main() { true; }"

// formatOutcomes formats the parts with their outcomes.
func formatOutcomes(result push.Result) string {
	var out []string
	for _, part := range result.Parts {
		out = append(out, part.Label+" "+string(part.Outcome))
	}

	return strings.Join(out, ", ")
}

// Each failure has its kind, stops the push at its part, and leaves no part half applied. The next
// push fixes everything.
func TestPushFailures(t *testing.T) {
	t.Parallel()

	script := func(what machost.FaultKind) func(*testing.T, *machost.Host) {
		return func(_ *testing.T, h *machost.Host) { h.Inject(machost.Fault{Label: "first", Kind: what, Times: 1}) }
	}

	cases := map[string]struct {
		trouble  func(*testing.T, *machost.Host)
		script   string
		fix      func(*testing.T, *machost.Host)
		kind     ssh.Kind
		wantText string
		want     string
	}{
		"a step hangs": {
			trouble: script(machost.Hang), kind: ssh.TimedOut, wantText: "stopped after its timeout of 2s",
			want: "first failed, token not-reached, script not-reached, last not-reached",
		},
		"the connection is lost during a step": {
			trouble: script(machost.Cut), kind: ssh.Unreachable, wantText: "run first",
			want: "first failed, token not-reached, script not-reached, last not-reached",
		},
		"the connection is lost before the result arrives": {
			trouble: script(machost.CutLate), kind: ssh.Unreachable, wantText: "run first",
			want: "first failed, token not-reached, script not-reached, last not-reached",
		},
		"the host restarts": {
			trouble: script(machost.Reboot), kind: ssh.Unreachable, wantText: "run first",
			want: "first failed, token not-reached, script not-reached, last not-reached",
		},
		"the disk is full": {
			trouble: func(t *testing.T, h *machost.Host) {
				t.Helper()

				if err := h.SetDiskFull(t.Context(), true); err != nil {
					t.Fatal(err)
				}
			},
			fix: func(t *testing.T, h *machost.Host) {
				t.Helper()

				if err := h.SetDiskFull(t.Context(), false); err != nil {
					t.Fatal(err)
				}
			},
			kind: ssh.Rejected, wantText: "No space left on device",
			want: "first failed, token not-reached, script not-reached, last not-reached",
		},
		"a script that fails": {
			script: "main() { echo failed: " + token + " >&2; exit 3; }",
			kind:   ssh.Rejected, wantText: "the script exited with code 3: failed: REDACTED",
			want: "first applied, token applied, script failed, last not-reached",
		},
		"a script that succeeds and removes another part": {
			script: "main() { rm " + firstPath + "; }",
			kind:   ssh.VerificationFailed, wantText: "first was applied without an error",
			want: "first failed, token applied, script applied, last applied",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			host, target := startHost(t, machost.Options{Name: "h"})

			old := newSmallPlan(t, "old", okScript)
			if result := push.Apply(t.Context(), dialHost(t, target), old, old.FirstBootSteps(), push.Options{}); result.Err != nil {
				t.Fatal(result.Err)
			}

			before := [2]string{host.ReadFile(firstPath), host.ReadFile(lastPath)}
			conn := dialHost(t, target)

			if tc.trouble != nil {
				tc.trouble(t, host)
			}

			if tc.script == "" {
				tc.script = okScript
			}

			next := newSmallPlan(t, "new", tc.script)
			all := next.FindDrifted(nil, nil)

			result := push.Apply(t.Context(), conn, next, next.DriftSteps(all...), push.Options{Timeout: timeoutFor(tc.kind)})
			if got := ssh.KindOf(result.Err); got != tc.kind || !strings.Contains(result.Err.Error(), tc.wantText) {
				t.Errorf("kind %q: %v", got, result.Err)
			}

			if diff := cmp.Diff(tc.want, formatOutcomes(result)); diff != "" {
				t.Error(diff)
			}

			if strings.Contains(result.Err.Error(), token) {
				t.Errorf("the secret is in %v", result.Err)
			}

			requireNoPartialFiles(t, host, before, next)

			if tc.fix != nil {
				tc.fix(t, host)
			}

			repaired := newSmallPlan(t, "new", okScript)

			fixed := push.Apply(t.Context(), redial(t, target), repaired, repaired.DriftSteps(all...), push.Options{})
			if fixed.Err != nil {
				t.Error(fixed.Err)
			}
		})
	}
}

// timeoutFor returns a timeout that is long enough for any part, except for tests of timeouts.
func timeoutFor(kind ssh.Kind) time.Duration {
	if kind == ssh.TimedOut {
		return 2 * time.Second
	}

	return waitTimeout
}

// requireNoPartialFiles requires that each file has its old or its new content, and that no temporary file
// is left.
func requireNoPartialFiles(t *testing.T, host *machost.Host, before [2]string, next plan.Plan) {
	t.Helper()

	for i, label := range []string{"first", "last"} {
		part, _ := next.FindPart(label)
		if got := host.ReadFile(part.Path); got != before[i] && got != part.Content.String() && got != "" {
			t.Errorf("%s is incomplete: %d bytes", label, len(got))
		}
	}
}

// redial connects to a host that was restarted.
func redial(t *testing.T, target ssh.Target) *ssh.Conn {
	t.Helper()

	deadline, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()

	for {
		conn, err := ssh.New(ssh.Options{}).Dial(deadline, target)
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })

			return conn
		}

		if ssh.KindOf(err) != ssh.Unreachable || deadline.Err() != nil {
			t.Fatal(err)
		}
	}
}

// waitForHangingScript waits until a script hangs on the host.
func waitForHangingScript(t *testing.T, host *machost.Host) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	for {
		processes, err := host.Processes(t.Context())
		if err == nil && slices.Contains(processes, "/bin/sleep 1") {
			return
		}

		if ctx.Err() != nil {
			t.Errorf("no script hangs: %v\n%s", err, strings.Join(processes, "\n"))

			return
		}
	}
}

// An operator that was killed leaves its script running. The next operator stops this script and
// its child processes before it runs its own.
func TestOneScriptAtATime(t *testing.T) {
	t.Parallel()

	host, target := startHost(t, machost.Options{})

	host.Inject(machost.Fault{Label: "first", Kind: machost.Hang, Times: 1})

	ctx, cancel := context.WithCancel(t.Context())
	gone := dialHost(t, target)
	p := newSmallPlan(t, "1", okScript)

	var waiting sync.WaitGroup
	defer waiting.Wait()

	waiting.Go(func() {
		defer cancel()

		waitForHangingScript(t, host)
	})

	result := push.Apply(ctx, gone, p, p.FirstBootSteps(), push.Options{})
	if !errors.Is(result.Err, context.Canceled) {
		t.Fatal(result.Err)
	}

	_ = gone.Close()

	if result := push.Apply(t.Context(), dialHost(t, target), p, p.FirstBootSteps(), push.Options{}); result.Err != nil {
		t.Fatal(result.Err)
	}

	processes, err := host.Processes(t.Context())
	if err != nil || slices.ContainsFunc(processes, func(s string) bool { return strings.Contains(s, "/bin/bash -s") }) {
		t.Errorf("the earlier script still runs: %v\n%s", err, strings.Join(processes, "\n"))
	}
}

// A concurrent probe does not stop the operator's script.
func TestProbeDuringPush(t *testing.T) {
	t.Parallel()

	host, target := startHost(t, machost.Options{})
	p := newSmallPlan(t, "1", okScript)

	host.Inject(machost.Fault{Label: "first", Kind: machost.Hang, Times: 1})

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	operator := dialHost(t, target)
	ended := make(chan error, 1)

	go func() { ended <- push.Apply(ctx, operator, p, p.FirstBootSteps(), push.Options{}).Err }()

	waitForHangingScript(t, host)

	states, err := push.Probe(t.Context(), dialHost(t, target), p, push.Options{Concurrent: true})
	if err != nil || len(states) == 0 {
		t.Errorf("probe: %v, %v", states, err)
	}

	select {
	case err := <-ended:
		t.Errorf("the probe stopped the push: %v", err)
	default:
	}

	// A probe of the operator stops the script.
	if _, err := push.Probe(t.Context(), dialHost(t, target), p, push.Options{}); err != nil {
		t.Error(err)
	}

	if err := <-ended; err == nil {
		t.Error("the push continued during the next operator's script")
	}
}

// If the script of the next operator stops a push, the stopped push still probes the host and does
// not stop that script.
func TestStoppedPushDoesNotStopTheNext(t *testing.T) {
	t.Parallel()

	host, target := startHost(t, machost.Options{})
	p := newSmallPlan(t, "1", okScript)

	host.Inject(machost.Fault{Label: "first", Kind: machost.Hang, Times: 1})
	host.Inject(machost.Fault{Label: "probe", Kind: machost.Hang, Times: 1})

	before, next := dialHost(t, target), dialHost(t, target)
	ended, looked := make(chan push.Result, 1), make(chan error, 1)

	go func() { ended <- push.Apply(t.Context(), before, p, p.FirstBootSteps(), push.Options{}) }()

	waitForHangingScript(t, host)

	go func() {
		_, err := push.Probe(t.Context(), next, p, push.Options{})
		looked <- err
	}()

	result := <-ended
	if ssh.KindOf(result.Err) != ssh.Rejected || len(result.LostParts) == 0 {
		t.Errorf("push: %v; lost parts: %v", result.Err, result.LostParts)
	}

	waitForHangingScript(t, host)

	select {
	case err := <-looked:
		t.Errorf("the push stopped the next operator's script: %v", err)
	default:
	}

	if _, err := push.Probe(t.Context(), dialHost(t, target), p, push.Options{}); err != nil {
		t.Error(err)
	}

	if err := <-looked; err == nil {
		t.Error("a stopped script returned no error")
	}
}

// Light hosts accept every part, and report the parts in their probe.
func TestManyHosts(t *testing.T) {
	t.Parallel()

	const hosts = 30

	p := newSmallPlan(t, "1", okScript)

	for range hosts {
		t.Run("host", func(t *testing.T) {
			t.Parallel()

			host, target := startHost(t, machost.Options{Light: true})
			conn := dialHost(t, target)

			result := push.Apply(t.Context(), conn, p, p.FirstBootSteps(), push.Options{})
			if result.Err != nil || len(host.Digests()) != 4 {
				t.Errorf("%v: %v", result.Err, host.Digests())
			}

			host.DropScript("last")

			states, err := push.Probe(t.Context(), conn, p, push.Options{})
			if diff := cmp.Diff([]string{"last"}, p.FindDrifted(p.Digests(), p.LostParts(states))); diff != "" || err != nil {
				t.Errorf("%v: %s", err, diff)
			}
		})
	}
}
