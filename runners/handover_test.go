// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/handover"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	simgithub "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/generic"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// handoverFixture is a fixture: a namespace with a template of method callback, and a GitHub simulator.
type handoverFixture struct {
	t         *testing.T
	namespace string
	github    *githubtest.Server
	clock     *clocktesting.FakePassiveClock
	recorder  *events.FakeRecorder
	// transport wraps the transport to GitHub.
	transport func(http.RoundTripper) http.RoundTripper
	// identity verifies SVIDs. It is nil if the test has no SPIRE server.
	identity identity.Registry
}

func newHandoverFixture(t *testing.T) *handoverFixture {
	t.Helper()

	w := &handoverFixture{
		t: t, namespace: env.Namespace(t), github: githubtest.New(t, simgithub.Options{}),
		clock: clocktesting.NewFakePassiveClock(time.Now()), recorder: events.NewFakeRecorder(1000),
	}
	createSecrets(t, w.namespace)

	template := newTemplate(w.namespace, "linux", "cluster")
	template.Spec.Bootstrap = v1alpha1.Bootstrap{
		Method: v1alpha1.BootstrapCallback,
		Config: &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{
			Credentials: newSecretSource("pat"), APIURL: w.github.URL, Owner: "octo-org", Repository: "octo-repo",
		}},
	}
	env.Create(w.t, template)

	return w
}

// createClaim creates a claim with a recorded offer of a credential, after the case has changed its status.
func (w *handoverFixture) createClaim(name string, change func(*v1alpha1.MachineClaimStatus)) *v1alpha1.MachineClaim {
	w.t.Helper()

	return w.createOfferedClaim(newClaim(w.namespace, name), change)
}

func (w *handoverFixture) createOfferedClaim(claim *v1alpha1.MachineClaim, change func(*v1alpha1.MachineClaimStatus)) *v1alpha1.MachineClaim {
	w.t.Helper()

	claim.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{
		Handover: &v1alpha1.CredentialHandover{OfferedAt: metav1.NewMicroTime(w.clock.Now())},
	}
	if change != nil {
		change(&claim.Status)
	}

	return createClaim(w.t, claim)
}

func (w *handoverFixture) getBootstrapInfo(claim *v1alpha1.MachineClaim) *v1alpha1.BootstrapInfo {
	w.t.Helper()

	return getObject(w.t, w.namespace, claim.Name, &v1alpha1.MachineClaim{}).Status.BootstrapInfo
}

// startOperator starts a replica. Its only state is in the API server.
func (w *handoverFixture) startOperator() *httptest.Server {
	w.t.Helper()

	metrics, err := handover.NewMetrics(prometheus.NewRegistry(), nil)
	if err != nil {
		w.t.Fatal(err)
	}

	egress, err := bounds.NewEgressPolicy([]string{w.github.URL}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	workloads := &connect.Workloads{
		Secrets: &connect.Secrets{Reader: env.Client, OperatorNamespace: w.namespace, Egress: egress},
		Platforms: map[string]workload.Platform{
			v1alpha1.WorkloadGitHubActions: github.Platform{}, v1alpha1.WorkloadGeneric: generic.Platform{},
		},
	}
	if w.transport != nil {
		workloads.Transport = func(_ string, next http.RoundTripper) http.RoundTripper { return w.transport(next) }
	}

	mux := http.NewServeMux()
	mux.Handle(handover.Pattern, &handover.Handler{
		Client: env.Client, Live: env.Client, Recorder: w.recorder, Clock: w.clock, Metrics: metrics, Workloads: workloads,
		Identity: w.identity, Settings: newSettings(),
	})

	server := httptest.NewServer(mux)
	w.t.Cleanup(server.Close)

	return server
}

func newSettings() vmspec.Settings { return vmspec.Settings{OperatorUID: "op", ReportKey: key} }

// requestCredential sends the request of the claim's machine, with the given bearer token.
func requestCredential(t *testing.T, operator *httptest.Server, claim *v1alpha1.MachineClaim, bearer string) operatorResponse {
	t.Helper()

	return sendRequest(t, operator, vmspec.CredentialPath(claim), bearer, "")
}

func newClaimBearer(claim *v1alpha1.MachineClaim) string {
	return "Bearer " + vmspec.ClaimCode(key, claim.Namespace, claim.Name, claim.UID)
}

func TestCredentialIsIssuedOnce(t *testing.T) {
	t.Parallel()

	w := newHandoverFixture(t)
	claim := w.createClaim("machine", nil)

	var given guest.Credential

	first := requestCredential(t, w.startOperator(), claim, newClaimBearer(claim))
	if err := json.Unmarshal([]byte(first.body), &given); err != nil || first.status != http.StatusOK || given.JITConfig == "" {
		t.Fatalf("%+v, error %v", first, err)
	}

	// A replica without requests of the machine refuses the used code too.
	again := requestCredential(t, w.startOperator(), claim, newClaimBearer(claim))
	if again.status != http.StatusConflict || again.refusal.Reason != guest.ReasonCredentialRefused {
		t.Errorf("replay: %+v", again)
	}

	state := w.github.State()
	if state.Registered != 1 || len(state.Runners) != 1 || state.Runners[0].Name != vmspec.RunnerName(claim) {
		t.Errorf("runners %+v, %d registered", state.Runners, state.Registered)
	}

	now := getObject(t, w.namespace, claim.Name, &v1alpha1.MachineClaim{})

	info := now.Status.BootstrapInfo
	if info.Handover.UsedAt == nil || info.Handover.GivenAt == nil || info.RunnerID == "" || info.RunnerName != vmspec.RunnerName(claim) {
		t.Errorf("recorded: %+v", info)
	}

	kept, err := json.Marshal(now)
	if err != nil {
		t.Fatal(err)
	}

	recorded := formatEvents(w.recorder)
	if !strings.Contains(recorded, handover.ReasonHandedOver) || !strings.Contains(recorded, handover.ReasonRefused) {
		t.Errorf("events:\n%s", recorded)
	}

	for _, secret := range []string{given.JITConfig, strings.TrimPrefix(newClaimBearer(claim), "Bearer ")} {
		if strings.Contains(string(kept)+recorded, secret) {
			t.Errorf("a secret is in the claim or its events:\n%s\n%s", kept, recorded)
		}
	}
}

func TestCredentialRefusals(t *testing.T) { //nolint:tparallel // the code after the subtests needs all of them to be done
	t.Parallel()

	w := newHandoverFixture(t)
	operator := w.startOperator()
	good, other := w.createClaim("good", nil), w.createClaim("other", nil)
	earlier := good.DeepCopy()
	earlier.UID = "00000000-0000-4000-8000-00000000dead"
	nobody := good.DeepCopy()
	nobody.Name = "nobody"
	now := metav1.NewMicroTime(w.clock.Now())
	long := metav1.NewMicroTime(now.Add(-time.Hour))
	deleted := w.createClaim("deleted", nil)
	deleted.Finalizers = []string{v1alpha1.FinalizerVMCleanup}

	if err := env.Client.Update(t.Context(), deleted); err != nil {
		t.Fatal(err)
	}

	deleteObject(t, deleted)

	cases := map[string]struct {
		claim  *v1alpha1.MachineClaim
		bearer string
		want   int
	}{
		"without a code":                                  {good, "", http.StatusUnauthorized},
		"a code that is no bearer token":                  {good, strings.TrimPrefix(newClaimBearer(good), "Bearer "), http.StatusUnauthorized},
		"the code of another claim":                       {good, newClaimBearer(other), http.StatusUnauthorized},
		"the code of an earlier claim with the same name": {good, newClaimBearer(earlier), http.StatusUnauthorized},
		"an earlier claim with the same name":             {earlier, newClaimBearer(earlier), http.StatusGone},
		"a claim that does not exist":                     {nobody, newClaimBearer(nobody), http.StatusGone},
		"a claim that is being deleted":                   {deleted, newClaimBearer(deleted), http.StatusGone},
		"a machine without an offer":                      {w.createClaim("none", func(s *v1alpha1.MachineClaimStatus) { s.BootstrapInfo.Handover = nil }), "", http.StatusForbidden},
		"a machine that is not placed":                    {w.createClaim("new", func(s *v1alpha1.MachineClaimStatus) { s.BootstrapInfo = nil }), "", http.StatusForbidden},
		"a stopped machine":                               {w.createClaim("off", func(s *v1alpha1.MachineClaimStatus) { s.Times = &v1alpha1.MachineTimes{Stopped: &now} }), "", http.StatusGone},
		"a machine that has ended":                        {w.createClaim("over", func(s *v1alpha1.MachineClaimStatus) { s.Times = &v1alpha1.MachineTimes{Ended: &now} }), "", http.StatusGone},
		"a claim whose credential is being issued":        {w.createClaim("underway", func(s *v1alpha1.MachineClaimStatus) { s.BootstrapInfo.Handover.UsedAt = &now }), "", http.StatusServiceUnavailable},
		"a claim whose handover was interrupted":          {w.createClaim("broken", func(s *v1alpha1.MachineClaimStatus) { s.BootstrapInfo.Handover.UsedAt = &long }), "", http.StatusConflict},
		"a claim whose credential was issued": {w.createClaim("has", func(s *v1alpha1.MachineClaimStatus) {
			s.BootstrapInfo.Handover.UsedAt, s.BootstrapInfo.Handover.GivenAt = &now, &now
		}), "", http.StatusConflict},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			bearer := tc.bearer
			if bearer == "" && tc.want != http.StatusUnauthorized {
				bearer = newClaimBearer(tc.claim)
			}

			got := requestCredential(t, operator, tc.claim, bearer)
			if got.status != tc.want || got.refusal.Message == "" {
				t.Errorf("%+v, want %d", got, tc.want)
			}

			if last := tc.want != http.StatusServiceUnavailable; last != (got.refusal.Reason != "") || last == (got.retryAfter != "") {
				t.Errorf("reason %q, Retry-After %q", got.refusal.Reason, got.retryAfter)
			}
		})
	}

	if state := w.github.State(); state.Registered != 0 {
		t.Errorf("%d credentials were issued", state.Registered)
	}

	// None of the refused requests affects the machine's own request.
	if got := requestCredential(t, operator, good, newClaimBearer(good)); got.status != http.StatusOK {
		t.Errorf("own request: %+v", got)
	}
}

// If many callers use the same code at the same time, only one gets a credential.
func TestConcurrentCredentialRequests(t *testing.T) {
	t.Parallel()

	w := newHandoverFixture(t)
	claim := w.createClaim("machine", nil)
	replicas := []*httptest.Server{w.startOperator(), w.startOperator(), w.startOperator(), w.startOperator()}

	var (
		wait sync.WaitGroup
		mu   sync.Mutex
		got  = map[int]int{}
	)

	for i := range 4 * len(replicas) {
		wait.Go(func() {
			answer := requestCredential(t, replicas[i%len(replicas)], claim, newClaimBearer(claim))

			mu.Lock()
			defer mu.Unlock()

			got[answer.status]++
		})
	}

	wait.Wait()

	if got[http.StatusOK] != 1 || w.github.State().Registered != 1 {
		t.Errorf("responses by status %v, %d credentials were issued", got, w.github.State().Registered)
	}

	for status := range got {
		switch status {
		case http.StatusOK, http.StatusConflict, http.StatusServiceUnavailable, http.StatusTooManyRequests:
		default:
			t.Errorf("responses by status %v", got)
		}
	}
}

// If the operator crashes after it has recorded the use of the code, whether it has issued the credential
// or not, the machine gets no credential. The operator refuses its next request with a terminal refusal.
func TestCrashAfterCodeIsUsed(t *testing.T) {
	t.Parallel()

	for name, made := range map[string]bool{"before it is issued": false, "after it was issued": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newHandoverFixture(t)
			claim := w.createClaim("machine", nil)
			w.transport = func(next http.RoundTripper) http.RoundTripper {
				return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
					if !strings.HasSuffix(r.URL.Path, "/generate-jitconfig") {
						return next.RoundTrip(r)
					}

					if made {
						if response, err := next.RoundTrip(r); err == nil {
							_ = response.Body.Close()
						}
					}

					panic(http.ErrAbortHandler) // the handler stops here
				})
			}

			if got := requestCredential(t, w.startOperator(), claim, newClaimBearer(claim)); got.status != 0 {
				t.Fatalf("the operator did not crash: %+v", got)
			}

			w.transport = nil

			if got := requestCredential(t, w.startOperator(), claim, newClaimBearer(claim)); got.status != http.StatusServiceUnavailable || got.retryAfter == "" {
				t.Errorf("first request after the crash: %+v", got)
			}

			w.clock.SetTime(w.clock.Now().Add(2 * time.Minute))

			got := requestCredential(t, w.startOperator(), claim, newClaimBearer(claim))
			if got.status != http.StatusConflict || !strings.Contains(got.refusal.Message, "handover failed") {
				t.Errorf("later request: %+v", got)
			}

			if state := w.github.State(); state.Registered != map[bool]int{true: 1}[made] {
				t.Errorf("%d credentials were issued", state.Registered)
			}
		})
	}
}

// If the platform does not issue a credential, the machine can retry with the same code.
func TestCodeStaysValidIfIssuingFails(t *testing.T) {
	t.Parallel()

	for name, faults := range map[string]control.Faults{
		"an error":      {ServerError: 1},
		"a rate limit":  {SecondaryRateLimit: 1, RetryAfter: 90 * time.Second},
		"revoked token": {Unauthorized: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newHandoverFixture(t)
			claim := w.createClaim("machine", nil)

			if err := w.github.SetFaults(faults); err != nil {
				t.Fatal(err)
			}

			got := requestCredential(t, w.startOperator(), claim, newClaimBearer(claim))
			if got.status != http.StatusServiceUnavailable || got.retryAfter == "" || got.refusal.Reason != "" {
				t.Errorf("while the platform fails: %+v", got)
			}

			if name == "a rate limit" && (len(got.retryAfter) < 2 || got.retryAfter == "5") {
				t.Errorf("Retry-After %q is not GitHub's", got.retryAfter)
			}

			if err := w.github.SetFaults(control.Faults{}); err != nil {
				t.Fatal(err)
			}

			if used := w.getBootstrapInfo(claim).Handover.UsedAt; used != nil {
				t.Error("the code is recorded as used")
			}

			if got := requestCredential(t, w.startOperator(), claim, newClaimBearer(claim)); got.status != http.StatusOK {
				t.Errorf("after the platform recovered: %+v", got)
			}
		})
	}
}

// A machine that sends too many requests must wait. Guesses do not use up the limit of machines.
func TestRateLimits(t *testing.T) {
	t.Parallel()

	w := newHandoverFixture(t)
	operator := w.startOperator()
	claim := w.createClaim("machine", func(s *v1alpha1.MachineClaimStatus) { s.BootstrapInfo.Handover = nil })
	victim := w.createClaim("victim", nil)

	status := func(c *v1alpha1.MachineClaim, bearer string, times int) map[int]int {
		out := map[int]int{}

		for range times {
			got := requestCredential(t, operator, c, bearer)
			out[got.status]++

			if (got.status == http.StatusTooManyRequests) != (got.retryAfter != "") {
				t.Fatalf("%+v", got)
			}
		}

		return out
	}

	if got := status(claim, newClaimBearer(claim), 10); got[http.StatusForbidden] != 5 || got[http.StatusTooManyRequests] != 5 {
		t.Errorf("responses to one machine: %v", got)
	}

	w.clock.SetTime(w.clock.Now().Add(5 * time.Second))

	if got := status(claim, newClaimBearer(claim), 2); got[http.StatusForbidden] != 1 {
		t.Errorf("responses after a while: %v", got)
	}

	if got := status(victim, newClaimBearer(claim), 60); got[http.StatusUnauthorized] != 50 || got[http.StatusTooManyRequests] != 10 {
		t.Errorf("responses to guesses: %v", got)
	}

	if got := requestCredential(t, operator, victim, newClaimBearer(victim)); got.status != http.StatusOK {
		t.Errorf("the machine whose code was guessed: %+v", got)
	}

	all := map[int]int{}

	for i := range 210 {
		one := claim.DeepCopy()
		one.Name = fmt.Sprintf("machine-%d", i)
		one.UID = types.UID(one.Name)

		for status, n := range status(one, newClaimBearer(one), 1) {
			all[status] += n
		}
	}

	if all[http.StatusGone] != 198 || all[http.StatusTooManyRequests] != 12 {
		t.Errorf("responses to many machines: %v", all)
	}
}

// A machine that is bound to a job gets the credential of the job while the job is queued.
func TestBoundJobs(t *testing.T) {
	t.Parallel()

	w := newHandoverFixture(t)
	operator := w.startOperator()
	load := v1alpha1.Workload{Type: v1alpha1.WorkloadGeneric, Config: &v1alpha1.WorkloadConfig{
		Generic: &v1alpha1.GenericConfig{Source: "nightly", Command: []string{"/bin/true"}},
	}}

	for name, tc := range map[string]struct {
		job   v1alpha1.RunnerJobSpec
		other string // job that the claim names, if it names another job
		want  int
	}{
		"waits":     {job: v1alpha1.RunnerJobSpec{State: v1alpha1.JobQueued}, want: http.StatusOK},
		"taken":     {job: v1alpha1.RunnerJobSpec{State: v1alpha1.JobRunning, RunnerName: "another"}, want: http.StatusGone},
		"over":      {job: v1alpha1.RunnerJobSpec{State: v1alpha1.JobCompleted, Conclusion: "cancelled"}, want: http.StatusGone},
		"not-there": {job: v1alpha1.RunnerJobSpec{State: v1alpha1.JobQueued}, other: "gone", want: http.StatusGone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			tc.job.Platform, tc.job.ID, tc.job.Repository = v1alpha1.WorkloadGeneric, name, "nightly"
			env.Create(w.t, &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "job-" + name}, Spec: tc.job})

			machine := newClaim(w.namespace, name)
			machine.Spec.WorkloadConfig = load
			claim := w.createOfferedClaim(machine, func(s *v1alpha1.MachineClaimStatus) {
				s.BootstrapInfo.BoundJob = cmp.Or(tc.other, "job-"+name)
			})

			got := requestCredential(t, operator, claim, newClaimBearer(claim))
			if got.status != tc.want || (tc.want == http.StatusGone) != (got.refusal.Reason == guest.ReasonJobGone) {
				t.Errorf("%+v, want %d", got, tc.want)
			}

			if tc.want == http.StatusOK && !strings.Contains(got.body, `"job_id":"waits"`) {
				t.Errorf("credential %s", got.body)
			}

			// If the job no longer exists, the code is not used, because no credential was issued.
			if used := w.getBootstrapInfo(claim).Handover.UsedAt != nil; used != (tc.want == http.StatusOK) {
				t.Errorf("used: %t", used)
			}
		})
	}
}
