// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// openTestProvider creates a provider as the operator does.
func openTestProvider(t *testing.T, platform github.Platform, url, token, group string) workload.Provider {
	t.Helper()

	template := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t"}}
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{Organization: githubtest.Org, APIURL: url}}

	runner, err := platform.ResolveRunner(template, v1alpha1.Workload{Config: &v1alpha1.WorkloadConfig{
		GitHub: &v1alpha1.GitHubActionsConfig{RunnerGroup: group},
	}})
	if err != nil {
		t.Fatal(err)
	}

	out, err := platform.Open(workload.Config{Runner: runner, Template: template, Secrets: map[string]string{"token": token}})
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// The installations of one App have their own rate limits.
func TestInstallationsHaveTheirOwnLimits(t *testing.T) {
	t.Parallel()

	private, key := newKey(t)
	options := newAppOptions(&private.PublicKey, map[string]string{"organization_self_hosted_runners": "write"})
	other := options.App.Installations[0]
	other.ID++
	options.App.Installations = append(options.App.Installations, other)
	options.Faults = control.Faults{SecondaryRateLimit: 1}
	server, platform := githubtest.New(t, options), github.NewPlatform()

	issue := func(installation int64, name string) error {
		template := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t"}}
		template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{
			Organization: githubtest.Org, APIURL: server.URL, App: &v1alpha1.GitHubApp{},
		}}

		runner, err := platform.ResolveRunner(template, v1alpha1.Workload{})
		if err != nil {
			t.Fatal(err)
		}

		p, err := platform.Open(workload.Config{Runner: runner, Template: template, Secrets: map[string]string{
			"app.id": strconv.Itoa(appID), "app.privateKey": string(key), "app.installationId": strconv.FormatInt(installation, 10),
		}})
		if err != nil {
			t.Fatal(err)
		}

		_, err = p.IssueCredential(t.Context(), newRunnerRequest(name))

		return err
	}

	if err := issue(authenticateAsInstallation, "a"); !workload.Is(err, workload.RateLimited) {
		t.Fatal(err)
	}

	if err := server.SetFaults(control.Faults{}); err != nil {
		t.Fatal(err)
	}

	if err := issue(authenticateAsInstallation, "b"); !workload.Is(err, workload.RateLimited) {
		t.Errorf("the limited installation: %v", err)
	}

	if err := issue(other.ID, "c"); err != nil {
		t.Errorf("another installation: %v", err)
	}
}

// getRetryAfter returns the delay of a call, or 0 if the call is not delayed.
func getRetryAfter(t *testing.T, what string, err error) time.Duration {
	t.Helper()

	if err == nil {
		return 0
	}

	got, ok := errors.AsType[*workload.Error](err)
	if !ok || got.Kind != workload.RateLimited || got.RetryAfter < time.Millisecond {
		t.Fatalf("%s: %v, want RateLimited", what, err)
	}

	return got.RetryAfter
}

// When few calls are left, polls stop first, then reading jobs slows down, then no runners are
// created, and runners are removed until no call is left.
func TestCallPriorities(t *testing.T) {
	t.Parallel()

	const limit, reserve, removals = 300, 30, 3

	clk := clocktesting.NewFakeClock(time.Now())
	server := githubtest.New(t, sim.Options{RateLimit: limit, Clock: clk})
	p := newProviderWithClock(t, newRepositoryConfig(server), clk)
	polls := asInterface[workload.Poller](t, p)
	job := strconv.FormatInt(server.Queue(control.JobSpec{Labels: []string{"x"}})[0].ID, 10)

	var ids []string

	issue := func(name string) error {
		made, err := p.IssueCredential(t.Context(), newRunnerRequest(name))
		if err == nil {
			ids = append(ids, made.RunnerID)
		}

		return err
	}
	repair := func() error {
		_, err := p.GetJob(t.Context(), githubtest.Repo, job)

		return err
	}
	spend := func(calls int) {
		for range calls {
			clk.Step(time.Millisecond) // so that no list is cached

			if _, err := p.FindRunner(t.Context(), "nobody", 0); !workload.Is(err, workload.NotFound) {
				t.Fatalf("listing: %v", err)
			}
		}
	}

	if _, err := polls.ListJobs(t.Context(), nil); err != nil { // five lists and one run
		t.Fatal(err)
	}

	spend(limit - reserve - 6)

	if _, err := polls.ListJobs(t.Context(), nil); getRetryAfter(t, "poll", err) < 30*time.Minute {
		t.Errorf("a poll with the reserve left: %v, want it to wait for the next hour", err)
	}

	slowed := 0

	for range 10 {
		if wait := getRetryAfter(t, "repair", repair()); wait > 0 {
			slowed++

			if wait > time.Minute+time.Second {
				t.Fatalf("a confirmation waits %s, want a short delay", wait)
			}

			clk.Step(wait)

			if err := repair(); err != nil {
				t.Fatalf("a confirmation after its delay: %v", err)
			}
		}
	}

	if slowed < 4 {
		t.Errorf("%d of 10 confirmations were delayed", slowed)
	}

	for i := 0; ; i++ {
		if wait := getRetryAfter(t, "making a runner", issue("r"+strconv.Itoa(i))); wait > 0 {
			break
		}
	}

	if len(ids) < removals {
		t.Fatalf("%d runners were created from the reserve", len(ids))
	}

	for i, id := range ids[:removals] {
		if err := p.Deregister(t.Context(), id); err != nil {
			t.Errorf("removal %d of the last calls: %v", i, err)
		}
	}

	if wait := getRetryAfter(t, "removing a runner", p.Deregister(t.Context(), ids[removals])); wait == 0 || wait > time.Hour {
		t.Errorf("without remaining calls a removal waits %s", wait)
	}

	clk.Step(time.Hour)

	if _, err := polls.ListJobs(t.Context(), nil); err != nil {
		t.Errorf("a poll in the next hour: %v", err)
	}
}

// A secondary rate limit stops all calls except removals, and no call is made to test the limit.
func TestSecondaryLimitAllowsOnlyRemovals(t *testing.T) {
	t.Parallel()

	clk := clocktesting.NewFakeClock(time.Now())
	server := githubtest.New(t, sim.Options{Clock: clk})
	p := newProviderWithClock(t, newRepositoryConfig(server), clk)
	polls := asInterface[workload.Poller](t, p)

	made, err := p.IssueCredential(t.Context(), newRunnerRequest("first"))
	if err != nil {
		t.Fatal(err)
	}

	if err := server.SetFaults(control.Faults{SecondaryRateLimit: 1, RetryAfter: 90 * time.Second}); err != nil {
		t.Fatal(err)
	}

	_, err = p.IssueCredential(t.Context(), newRunnerRequest("second"))
	getRetryAfter(t, "making a runner", err)

	if err := server.SetFaults(control.Faults{}); err != nil {
		t.Fatal(err)
	}

	clk.Step(30 * time.Second)

	calls := func() (sum int) {
		for _, n := range server.State().Requests {
			sum += n
		}

		return sum
	}
	before := calls()

	_, issueErr := p.IssueCredential(t.Context(), newRunnerRequest("second"))
	_, findErr := p.FindRunner(t.Context(), "x", 0)
	_, jobErr := p.GetJob(t.Context(), githubtest.Repo, "5")
	_, pollErr := polls.ListJobs(t.Context(), nil)

	for what, err := range map[string]error{"making": issueErr, "listing": findErr, "repair": jobErr, "poll": pollErr} {
		if wait := getRetryAfter(t, what, err); wait != time.Minute {
			t.Errorf("%s waits %s, want the remaining delay", what, wait)
		}
	}

	if calls() != before {
		t.Errorf("%d calls during the delay", calls()-before)
	}

	if err := p.Deregister(t.Context(), made.RunnerID); err != nil || calls() != before+1 {
		t.Errorf("a removal in the pause: %v", err)
	}

	clk.Step(time.Minute)

	if _, err := p.IssueCredential(t.Context(), newRunnerRequest("second")); err != nil {
		t.Errorf("after the pause: %v", err)
	}
}

// GitHub limits a credential and not a provider.
func TestProvidersShareTheirCredentialsLimits(t *testing.T) {
	t.Parallel()

	const other = "ghp_anotherpersonalaccesstoken0000000000"

	for name, test := range map[string]struct {
		platform github.Platform
		token    string
		want     workload.Kind
	}{
		"one credential, one platform": {github.NewPlatform(), githubtest.PAT, workload.RateLimited},
		"another credential":           {github.NewPlatform(), other, ""},
		"the zero platform":            {github.Platform{}, githubtest.PAT, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := githubtest.New(t, sim.Options{
				Faults: control.Faults{SecondaryRateLimit: 1}, Groups: []sim.Group{{Owner: githubtest.Org, Name: "fast"}},
				PATs: []sim.PAT{{Token: githubtest.PAT, Scopes: []string{"admin:org"}}, {Token: other, Scopes: []string{"admin:org"}}},
			})
			first := openTestProvider(t, test.platform, server.URL, githubtest.PAT, "")

			if _, err := first.IssueCredential(t.Context(), newRunnerRequest("a")); !workload.Is(err, workload.RateLimited) {
				t.Fatal(err)
			}

			if err := server.SetFaults(control.Faults{}); err != nil {
				t.Fatal(err)
			}

			_, err := openTestProvider(t, test.platform, server.URL, test.token, "fast").IssueCredential(t.Context(), newRunnerRequest("b"))
			if workload.KindOf(err) != test.want {
				t.Errorf("the other provider: %v, want %q", err, test.want)
			}

			if err := first.Deregister(t.Context(), "77"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRegistrationsAreSpaced(t *testing.T) {
	t.Parallel()

	const many, burst = 80, 50

	clk := clocktesting.NewFakeClock(time.Now())
	server := githubtest.New(t, sim.Options{Clock: clk, SecondaryPoints: 900})
	p := newProviderWithClock(t, newRepositoryConfig(server), clk)

	waits := map[string]time.Duration{}

	for i := range many {
		name := fmt.Sprintf("r-%03d", i)

		_, err := p.IssueCredential(t.Context(), newRunnerRequest(name))
		if wait := getRetryAfter(t, name, err); wait > 0 {
			waits[name] = wait

			checkError(t, err, workload.RateLimited, github.ReasonPaced, "create runner "+name)
		}
	}

	if len(waits) != many-burst {
		t.Fatalf("%d of %d wait", len(waits), many)
	}

	delays := map[time.Duration]bool{}
	for _, wait := range waits {
		delays[wait] = true
	}

	if len(delays) != len(waits) {
		t.Errorf("%d waiting callers got %d different retry times", len(waits), len(delays))
	}

	// Every caller that retries after its delay can register.
	for begun := clk.Now(); len(waits) > 0; clk.Step(100 * time.Millisecond) {
		for name, wait := range waits {
			if clk.Since(begun) < wait {
				continue
			}

			if _, err := p.IssueCredential(t.Context(), newRunnerRequest(name)); err != nil {
				t.Fatalf("%s, after %s: %v", name, wait, err)
			}

			delete(waits, name)
		}
	}
}

// Whenever callers register, no minute has more registrations than GitHub allows.
func TestRegistrationLimit(t *testing.T) {
	t.Parallel()

	const mostInAMinute, mostInFive = 180, 1500

	property.Check(t, "no window has too many", property.Options{}, prop.ForAll(func(seed uint64) bool {
		dice := rand.New(rand.NewPCG(seed, 1))
		clk := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
		register := github.NewRegistrationGate(clk)

		var taken []time.Time

		for range 3000 { // ten minutes
			clk.Step(time.Duration(dice.IntN(41)) * 10 * time.Millisecond)

			if register() == nil {
				taken = append(taken, clk.Now())
			}
		}

		return findMaxInWindow(taken, time.Minute) <= mostInAMinute && findMaxInWindow(taken, 5*time.Minute) <= mostInFive
	}, gen.UInt64()))
}

// findMaxInWindow returns the largest number of times in any window.
func findMaxInWindow(times []time.Time, window time.Duration) int {
	most, from := 0, 0

	for i, at := range times {
		for at.Sub(times[from]) >= window {
			from++
		}

		most = max(most, i-from+1)
	}

	return most
}

// Servers without rate limits send no headers. That is the default of GitHub Enterprise Server.
func TestNoDelaysWithoutLimits(t *testing.T) {
	t.Parallel()

	const many = 120

	made := 0
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		made++

		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"runner":{"id":%d,"name":"x"},"encoded_jit_config":"e30="}`, made)
	}))
	defer plain.Close()

	p := newTestProvider(t, &github.Settings{Token: githubtest.PAT, Organization: "acme", APIURL: plain.URL})

	for i := range many {
		if _, err := p.IssueCredential(t.Context(), newRunnerRequest("r"+strconv.Itoa(i))); err != nil {
			t.Fatalf("runner %d: %v", i, err)
		}
	}
}

// The messages that users see if GitHub fails, for every call that conditions report.
func TestErrorMessages(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		faults control.Faults
		revoke bool
		group  string
		kind   workload.Kind
		reason string
		words  string
	}{
		"revoked token": {
			revoke: true, kind: workload.Rejected, reason: github.ReasonCredentials,
			words: "GitHub rejected the credentials (GitHub's message: Bad credentials): the token is wrong, expired or revoked; " +
				"put a valid token into the Secret",
		},
		"403 rate limit": {
			faults: control.Faults{RateLimit: 1}, kind: workload.RateLimited, reason: github.ReasonRateLimited,
			words: ": GitHub's rate limit is exceeded",
		},
		"403 secondary rate limit": {
			faults: control.Faults{SecondaryRateLimit: 1}, kind: workload.RateLimited, reason: github.ReasonRateLimited,
			words: ": GitHub requested a delay (secondary rate limit)",
		},
		"too many registrations": {
			faults: control.Faults{RegistrationsLimited: 1}, kind: workload.RateLimited, reason: github.ReasonRateLimited,
			words: "create runner trouble: GitHub requested a delay",
		},
		"missing runner group": {
			group: "gpus", kind: workload.Rejected, reason: github.ReasonGroup,
			words: `organization octo-org has no runner group "gpus": create the group at GitHub or change workload.config.github.runnerGroup`,
		},
		"5xx": {faults: control.Faults{ServerError: 1}, words: "at GitHub: status 502 (GitHub's message: Server Error)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := githubtest.New(t, sim.Options{})
			config := newOrganizationConfig(server)
			config.RunnerGroup = test.group
			p := newTestProvider(t, config)

			if test.group == "" {
				if err := p.Validate(t.Context()); err != nil { // the provider worked before
					t.Fatal(err)
				}
			}

			if test.revoke {
				server.RevokeToken(githubtest.PAT)
			}

			if err := server.SetFaults(test.faults); err != nil {
				t.Fatal(err)
			}

			req := newRunnerRequest("trouble")
			req.Group = test.group

			_, issueErr := p.IssueCredential(t.Context(), req)
			errs := map[string]error{"Issue": issueErr}

			if test.group == "" && test.faults.RegistrationsLimited+test.faults.RateLimit == 0 {
				_, errs["Find"] = p.FindRunner(t.Context(), "x", 0)
			}

			if test.group != "" {
				errs["Validate"] = p.Validate(t.Context())
			}

			for call, err := range errs {
				if test.kind != "" {
					checkError(t, err, test.kind, test.reason, test.words)
				} else if err == nil || workload.KindOf(err) != "" || !strings.Contains(err.Error(), test.words) {
					t.Errorf("%s: %v, want ...%s...", call, err, test.words)
				}

				if test.kind != workload.RateLimited {
					continue
				}

				if wait := getRetryAfter(t, call, err); wait < time.Second || wait > time.Hour {
					t.Errorf("%s is delayed for %s", call, wait)
				}
			}
		})
	}
}
